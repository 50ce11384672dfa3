"""Run moment: what is shown of a run at one moment, in its process and from outside: each figure has its name here."""

from __future__ import annotations

from dataclasses import dataclass

from elbowroom.timeline import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMoment:
    """A run at one moment.

    Attributes:
        device: the device whose storages move, such as "cpu" or "cuda:0".
        steps: number of steps that have ended.
        mode: what the present step is, or else the last one: see `steps[].mode` of a run.
        plan: the plan in force in words, or why there is none.
        budget_bytes: what the device may hold.
        planned_peak_bytes: the most that the plan holds; 0 without one.
        device_bytes: what the device holds, as the budget counts it: reserved bytes on CUDA. Nothing counts the live
            storages in RAM at each moment, so there it is the most that a recorded step held; 0 before one.
        resident_bytes: resident memory of the process, with libraries and with freed memory that stays.
        lower_bytes: what lies on each lower tier.
        pinned_bytes: page-locked host memory.
        last_step_ns: time of the last step; None before it.
    """

    device: str
    steps: int
    mode: Mode
    plan: str
    budget_bytes: int
    planned_peak_bytes: int
    device_bytes: int
    resident_bytes: int
    lower_bytes: dict[str, int]
    pinned_bytes: int
    last_step_ns: int | None
