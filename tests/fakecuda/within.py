"""Runs inside the rig: a training within a budget, and after each step what the allocator says of it.

stdin: one JSON object {"model": name, "shares": of the keep-all reserved peak, "steps": n, ...}. If it has that peak as
"plain", no plain training comes before. Prints one JSON object after "@@". Needs torch and numpy, and the project on
PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, cast

import torch

import elbowroom as er
from elbowroom.engine.residence import resident_bytes
from elbowroom.planners.budget.run_budget import simulated
from elbowroom.run import background_planning as beside
from elbowroom.run.recompute.checksums import Checksums, Samples
from elbowroom.run.room import run_of
from elbowroom.run.step_kinds import StepKind
from elbowroom.run.training import TrainingRun
from tests.fakecuda import MOVES
from tests.fakecuda.within_models import MODELS
from tests.torch.plain_gds import PlainGdsFile

Figures = dict[str, Any]


def peaks() -> tuple[int, int]:
    """(allocated, reserved) since they were reset."""
    found = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    return found


def plain(step: Callable[[], Any], steps: int = 3) -> tuple[int, int]:
    """Peaks of the last step without elbowroom."""
    for _ in range(steps):
        peaks()
        step()
    return peaks()


def _planned_bytes(run: TrainingRun) -> int:
    """What the plan of this step swaps of what is saved; 0 without a plan. A better plan may have been made since."""
    schedule = None if (known := run.known()) is None else known.schedule
    return 0 if schedule is None else sum(schedule.saved[n][0] for n in schedule.swapped if n < len(schedule.saved))


@lru_cache(maxsize=2)
def _simulated_bytes(kind: StepKind) -> int:
    return simulated(kind.trace, kind.machine, kind.course).peak_allocated_bytes


def planned(room: er.Room, line: er.Timeline) -> Figures:
    """What the plan of a room moves."""
    assert room.plan is not None
    assert room.trace is not None
    tiers = Counter(swap.tier for swap in room.plan.swaps)
    saves = {save.storage for save in room.trace.saves}
    states = [swap.storage for swap in room.plan.swaps if swap.storage not in saves]
    return {
        "plan": {"swaps": len(room.plan.swaps), "bytes": line.swapped_out_bytes, **tiers, "states": len(states)},
        "algorithms": Counter(algorithm.choice for algorithm in room.plan.algorithms),
    }


def within(
    step: Callable[[], Any],
    budget: str | int | None,
    steps: int,
    between: Callable[[], None] = lambda: None,
    **options: Any,
) -> Figures:
    """What each step did, what its plan says if it has one, and what is left; something may be done after each step."""
    found: Figures = {"steps": [], "budget_bytes": 0}
    with er.within(budget, **options) as room:
        for _ in range(steps):
            peaks()
            step()
            allocated, reserved = peaks()
            between()
            kind, tier = run_of(room).known(), cast("Any", run_of(room)._executor.tier)
            found["steps"].append(
                {
                    "allocated": allocated,
                    "reserved": reserved,
                    "pinned": run_of(room).pinned_bytes,
                    "host": tier.size_bytes,
                    "held": tier.held_bytes,
                    "resident": resident_bytes(),
                    "mode": run_of(room)._mode,
                    "planned": _planned_bytes(run_of(room)),
                    "simulated": 0 if kind is None else _simulated_bytes(kind),
                }
            )
        found["budget_bytes"] = run_of(room).budget_bytes
        found["recomputed"] = [step.recomputed_bytes for step in room.steps]
        found["links"] = [[link.out_bytes_per_s, link.back_bytes_per_s] for link in room.machine.links]
        line = room.simulated
        if line is not None:
            found |= planned(room, line)
    if line is not None:
        # Two optimizers make a step two kinds of ours, whose second one ends with the room.
        lines = [line, room.simulated or line]
        found["simulated"] = {
            "allocated": max(each.peak_allocated_bytes for each in lines),
            "reserved": max(each.peak_reserved_bytes for each in lines),
        }
    found["figures"] = [
        {"out": s.swapped_out_bytes, "back": s.swapped_back_bytes, "mismatches": s.mismatches} for s in room.steps
    ]
    found["after"] = {"host": tier.size_bytes, "live": torch.cuda.memory_allocated()}
    return found


def trust() -> None:
    """Kernels do nothing here, so no comparison of bytes means anything: let them all agree.

    Steps take next to no time, so that few of them would follow a plan that is made beside them: wait for plans.
    """
    setattr(beside, "PATIENCE_S", 600.0)  # noqa: B010
    setattr(Checksums, "of", lambda self, storage: torch.zeros((), dtype=torch.int64, device="cpu"))  # noqa: B010
    setattr(Samples, "differing", lambda self: [])  # noqa: B010


def main() -> None:
    spec = json.load(sys.stdin)
    trust()
    torch.cuda.gds.GdsFile = PlainGdsFile  # pyright: ignore[reportAttributeAccessIssue]
    found: Figures = {"plain": spec.get("plain") or plain_of(spec["model"]), "runs": []}
    for share in spec["shares"]:
        run = tried(spec, int(share * found["plain"]["reserved"]))
        if "least_feasible_bytes" in run:
            run["at_least"] = tried(spec, run["least_feasible_bytes"])
        found["runs"].append({"share": share, **run})
    print("@@" + json.dumps(found))


def plain_of(model: str) -> dict[str, int]:
    """Peaks of a model without elbowroom."""
    torch.manual_seed(0)
    step = MODELS[model]()
    allocated, reserved = plain(step)
    del step
    torch.cuda.empty_cache()
    return {"allocated": allocated, "reserved": reserved}


@cache
def _tried(model: str, budget: str, steps: int, options: str) -> Figures:
    torch.manual_seed(0)
    step = MODELS[model]()
    try:
        return within(step, budget, steps, **json.loads(options))
    except er.Infeasible as problem:
        return {"least_feasible_bytes": problem.least_feasible_bytes}
    finally:
        del step
        torch.cuda.empty_cache()


def tried(spec: Figures, device_bytes: int) -> Figures:
    """A run within a budget, or the least budget where it is refused; the same budget is run once."""
    budget = f"device={device_bytes}" + spec.get("below", "")
    return {**_tried(spec["model"], budget, spec["steps"], json.dumps({"allow": MOVES, **spec.get("options", {})}))}


if __name__ == "__main__":
    main()
