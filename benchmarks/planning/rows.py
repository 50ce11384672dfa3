"""Rows of the planning benchmark: one planner, on one trace and machine, within one budget. All of it simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from elbowroom.engine.expandable_segments import ON, SMALL_PAGES
from elbowroom.errors import Infeasible
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.planners import asking, requested
from elbowroom.planners.ask import Asking
from elbowroom.planners.budget.budgets import below_device
from elbowroom.simulate.simulate import simulate
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace
from elbowroom.units import Budget

Row = dict[str, Any]
SHARES = (0.75, 0.5, 0.35, 0.25)
"""Budgets, as shares of what the step reserves when everything is kept."""

CHECKPOINT = "recompute_blocks"
"""The planner that does as torch.utils.checkpoint on the blocks."""
ALLOCATOR = f"{ON},{SMALL_PAGES}"
"""Settings that a run gives the caching allocator."""

PLANNERS: dict[str, tuple[str, dict[str, object]]] = {
    "optimal": ("optimal", {}),
    "swap_greedy": ("swap_greedy", {}),
    "swap_all": ("swap_all", {}),
    "swap_states": ("swap_states", {}),
    "vdnn all": ("vdnn", {"policy": "all"}),
    "vdnn conv": ("vdnn", {"policy": "conv"}),
    "vdnn dyn": ("vdnn", {"policy": "dyn"}),
    "tflms": ("tflms", {}),
    "capuchin": ("capuchin", {}),
    "threshold": ("threshold", {}),
    "lms": ("lms", {}),
    CHECKPOINT: (CHECKPOINT, {}),
}
"""Label of a row: (planner, its options)."""


def roomy(name: str) -> Machine:
    """A GPU by name whose device holds anything, so that the budget alone decides; links and rates are its own.

    Its allocator has the settings of a run.
    """
    machine = Machine.of(name)
    device, *lower = machine.tiers
    return replace(machine, tiers=(replace(device, capacity_bytes=2**50), *lower), allocator=ALLOCATOR)


def kept(trace: Trace, machine: Machine) -> Row:
    """The step with everything kept."""
    return _figures(simulate(trace, machine))


def budgets(
    trace: Trace, machine: Machine, kept_bytes: int, limit_s: float, refused: Mapping[str, Row]
) -> Iterator[tuple[str, int]]:
    """(label, bytes) of every budget: shares of the keep-all peak, and the least of checkpoints and of `optimal`.

    What a planner names does not depend on the budget: once `refused` has a row of `optimal`, that one's is taken.
    """
    for share in SHARES:
        yield f"{share:.0%}", int(share * kept_bytes)
    for label, planner in (("checkpoint's", CHECKPOINT), ("least", "optimal")):
        known = refused.get(planner)
        yield label, known["least_feasible_bytes"] if known else least_bytes(trace, machine, limit_s, planner)


def again(refused: Mapping[str, Row], planner: str, budget_bytes: int) -> Row | None:
    """The row of a planner that named a larger least budget before; None where it did not."""
    known = refused.get(planner)
    is_less = known is not None and budget_bytes <= known["budget_bytes"] < known["least_feasible_bytes"]
    return {**known, "budget_bytes": budget_bytes} if known is not None and is_less else None


def least_bytes(trace: Trace, machine: Machine, limit_s: float, planner: str = "optimal") -> int:
    """The least that the allocator must be able to reserve under any plan of a planner."""
    try:
        _ask(trace, machine, planner, {}, limit_s).plan(1)
    except Infeasible as infeasible:
        return infeasible.least_feasible_bytes
    return 1


def _ask(trace: Trace, machine: Machine, planner: str, options: Mapping[str, object], limit_s: float) -> Asking:
    lower = below_device(machine, Budget())
    return asking(trace, machine, lower, requested(planner, options=options, time_limit_s=limit_s))


def row(trace: Trace, machine: Machine, label: str, budget_bytes: int, keep: Row, limit_s: float) -> Row:
    """One planner within one budget."""
    planner, options = PLANNERS[label]
    begin = time.process_time()
    found: Row = {"planner": label, "budget_bytes": budget_bytes}
    try:
        made = _ask(trace, machine, planner, options, limit_s).plan(budget_bytes)
    except Infeasible as infeasible:
        return found | {"least_feasible_bytes": infeasible.least_feasible_bytes, "seconds": _since(begin)}
    seconds = _since(begin)
    line = simulate(trace, machine, made)
    return found | {"seconds": seconds, "slowdown": line.step_ns / keep["step_ns"], **_figures(line), **_plan(made)}


def best_of(rows: Sequence[Row], without: str) -> Row | None:
    """The fastest row of the planners but one."""
    fit = [each for each in rows if each["planner"] != without and "step_ns" in each]
    return min(fit, key=lambda each: each["step_ns"], default=None)


def _since(begin: float) -> float:
    return round(time.process_time() - begin, 3)


def _figures(line: Timeline) -> Row:
    return {
        "step_ns": line.step_ns,
        "stall_ns": line.stall_ns,
        "recompute_ns": line.recompute_ns,
        "utilisation": round(line.utilisation, 5),
        "swapped_out_bytes": line.swapped_out_bytes,
        "swapped_back_bytes": line.swapped_back_bytes,
        "peak_allocated_bytes": line.peak_allocated_bytes,
        "peak_reserved_bytes": line.peak_reserved_bytes,
    }


def _plan(made: Plan) -> Row:
    bound: Row = {} if made.bound is None else {"lower_bound_ns": made.bound.lower_bound_ns, "gap": made.bound.gap}
    counts = {"swaps": len(made.swaps), "recomputes": len(made.recomputes), "algorithms": len(made.algorithms)}
    return counts | bound
