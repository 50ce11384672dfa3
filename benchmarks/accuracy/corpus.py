"""The rig's corpus: training jobs run by the real CUDA build of PyTorch, and what its allocator held. No torch."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import ROOT

DATA = ROOT / "tests" / "data" / "rig"
LEVELS = ("allocated", "reserved", "requested")
Line = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training job.

    Attributes:
        spec: how to build it; the fields are described in tests/data/rig/README.md.
        result: what was measured.
        capacities: the same job with too little room, or just enough.
    """

    spec: dict[str, Any]
    result: dict[str, Any]
    capacities: tuple[Case, ...] = ()

    @property
    def id(self) -> str:
        return self.spec["id"]

    @property
    def family(self) -> str:
        return self.spec["family"]

    @property
    def peaks(self) -> dict[str, int]:
        """Highest bytes of all steps, by level."""
        return {level: max(step[f"{level}_peak"] for step in self.result["steps"]) for level in LEVELS}

    @property
    def out_of_memory(self) -> bool:
        return bool(self.result.get("oom"))


def read_corpus(data: Path = DATA) -> list[Case]:
    """The jobs that had room, each with those of its runs that had less."""
    alone: dict[str, Case] = {}
    limited: dict[str, list[Case]] = {}
    for line in _lines(data / "corpus.jsonl"):
        case = Case(**json.loads(line))
        if case.family.startswith("oom-"):
            limited.setdefault(case.spec["base"], []).append(case)
        else:
            alone[case.id] = case
    return [
        Case(spec=case.spec, result=case.result, capacities=tuple(limited.get(case.id, ()))) for case in alone.values()
    ]


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        yield from path.read_text().splitlines()
        return
    with gzip.open(path.with_name(path.name + ".gz"), "rt") as lines:
        yield from lines


def read_history(path: Path) -> list[Line]:
    """("a" or "f", number, bytes) of step 2 and later, of a full history."""
    found: list[Line] = []
    step = -1
    with gzip.open(path, "rt") as lines:
        for line in lines:
            event = json.loads(line)
            if isinstance(event, dict):
                step = int(event["mark"].partition(".")[0])
            elif step >= 2 and event[0] in "af":
                found.append((event[0], event[1], event[2]))
    return found
