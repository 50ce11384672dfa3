"""A row of a public table: what was measured, and how to run the job again, or why that is not possible."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Level = Literal["allocated", "reserved", "within", "device"]
GB, GIB, MIB = 10**9, 2**30, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        id: unique in all tables.
        family: rows that are summed up together.
        model: rows of one model are never learnt from when another of it is judged.
        gpu: by its name in the GPU database.
        level: what the source measured; "within" is what is reserved within the capacity.
        measured_bytes: None where it ran out of memory.
        rounded_to_bytes: the unit of the last digit that the source gives.
        late: the driver's figure less that of a first sample, which was taken while the model was moved or before.
        spec: arguments of the table's `train`; empty where the job cannot be run again.
        reason: why it cannot.
        rivals: what other tools predicted, in bytes, where the source says so.
    """

    id: str
    family: str
    model: str = ""
    gpu: str = ""
    level: Level = "allocated"
    measured_bytes: int | None = None
    rounded_to_bytes: int = 0
    late: bool = False
    spec: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    rivals: dict[str, int] = field(default_factory=dict)


def lines(path: Path) -> Iterator[list[str]]:
    """The lines of a CSV file after its first."""
    with path.open() as file:
        yield from list(csv.reader(file))[1:]
