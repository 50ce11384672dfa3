"""Moments of a run that does not exist, for what shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elbowroom.run.run_now import RunNow

MIB = 2**20


@dataclass(frozen=True)
class Moved:
    """Stands for the figures of a step, whose class needs torch."""

    step_ns: int = 800_000_000
    stall_ns: int = 20_000_000
    swapped_out_bytes: int = 24 * MIB
    swapped_back_bytes: int = 23 * MIB
    recomputed_bytes: int = 0
    mismatches: int = 0


def moment(**changes: Any) -> RunNow:
    """A step of a plan on a GPU, with changes."""
    values: dict[str, Any] = {
        "device": "cuda:0",
        "steps": 2,
        "in_step_ns": 250_000_000,
        "mode": "plan",
        "plan": "24.0 MiB swapped to host (6)",
        "budget_bytes": 40 * MIB,
        "planned_peak_bytes": 30 * MIB,
        "device_bytes": 20 * MIB,
        "resident_bytes": 500 * MIB,
        "lower_bytes": {"host": 12 * MIB, "disk": 0},
        "pinned_bytes": 16 * MIB,
        "stall_ns": 0,
        "last_step_ns": 800_000_000,
        "recent": (Moved(), Moved()),
        **changes,
    }
    return RunNow(**values)
