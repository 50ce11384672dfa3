"""least: the least budget with which a step is slower than with everything kept by at most a given factor.

Computes: a plan. Without a slowdown, it is the plan for the least feasible budget. With one, the step time is assumed
to fall as the budget grows. The search closes in from both sides on the budget at which it meets the slowdown. It tries
by turns the middle, and the point where a line between the two sides meets the slowdown.
Reference: the bracketing root finders (Dekker, Brent), with turns in place of their tests of progress. Step time falls
along a convex curve, on which a line alone would close in from one side only.
Optimal: to `PRECISION` of the keep-all peak, if the planner's step time does fall as its budget grows.
Ignores: that it may not fall, with a planner that is not optimal.
Cost: two plans, and about seven more with a slowdown.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from elbowroom.errors import Infeasible, UsageError
from elbowroom.plan import Plan
from elbowroom.timeline import Timeline
from elbowroom.units import format_bytes
from elbowroom.watch import ENDS, Watch

PRECISION = Fraction(1, 100)
"""Share of the keep-all peak to which the search finds the budget."""
ROUGHLY = Fraction(1, 25)
"""The same share if only the side of a capacity matters."""
MOST_LIFTS = 8
"""Most raises of a budget that a refusal called feasible and that is refused itself."""


class Weighed(NamedTuple):
    """Plan and its simulation."""

    plan: Plan
    line: Timeline

    @property
    def step_ns(self) -> int:
        """Simulated time of the step."""
        return self.line.step_ns


Ask = Callable[[int], Weighed]


def checked_slowdown(slowdown: float | None) -> float | None:
    """Check a slowdown that a step may have.

    Raises:
        UsageError: it is below 1, or no number.
    """
    if slowdown is not None and not 1 <= slowdown < float("inf"):
        raise UsageError(
            f"slowdown: given {slowdown}; allowed is a factor of 1 or more on the step time with everything kept; "
            "write for example 1.2"
        )
    return slowdown


def least_plan(ask: Ask, kept: Weighed, slowdown: float | None, watch: Watch | None = None) -> Plan:
    """Search for the least budget.

    Args:
        ask: makes and weighs the plan for a budget in bytes; raises Infeasible.
        kept: the plan that keeps everything, with its peak as the budget.
        slowdown: allowed factor on the step time with everything kept; None for any time.
        watch: shows progress; None: Ctrl-C goes on to the caller.

    Returns:
        The plan of the least budget that was found; its `budget_bytes` is that budget.

    Raises:
        UsageError: the planner is slower than that at every budget.
    """
    low = lowest(ask)
    limit_ns = int(kept.step_ns * slowdown) if slowdown is not None else low.step_ns
    if low.step_ns <= limit_ns:
        return low.plan
    try:
        high = ask(max(kept.plan.budget_bytes, low.plan.budget_bytes))
    except ENDS as problem:
        if watch is None:
            raise
        watch.ends_early(problem, f"no budget was found at which a step takes {slowdown} times as long; {_slow(low)}")
        return low.plan
    if high.step_ns > limit_ns:
        raise UsageError(
            f"slowdown: given {slowdown}; planner {high.plan.planner!r} takes {high.step_ns / kept.step_ns:.3f} times "
            "as long even where everything fits; give at least that, or take a planner that looks at the budget"
        )
    return _closed_in(ask, low, high, limit_ns, max(1, int(kept.plan.budget_bytes * PRECISION)), watch).plan


def needed_bytes(ask: Ask, kept: Weighed, slowdown: float, capacity_bytes: int) -> int:
    """Return the least budget for a slowdown: roughly, but certainly on the right side of a capacity.

    Args:
        ask: as for `least_plan`.
        kept: as for `least_plan`.
        slowdown: allowed factor on the step time with everything kept.
        capacity_bytes: the result is at most this if and only if a plan within it is fast enough.
    """
    limit_ns, unit = int(kept.step_ns * slowdown), max(1, int(kept.plan.budget_bytes * ROUGHLY))
    high = kept
    try:
        within = ask(capacity_bytes)
    except Infeasible:
        within = None
    if within is not None and within.step_ns <= limit_ns:
        high = within if capacity_bytes < kept.plan.budget_bytes else kept
    low = lowest(ask) if within is None or within.step_ns <= limit_ns else within
    if low.step_ns <= limit_ns:
        return low.plan.budget_bytes
    return _closed_in(ask, low, high, limit_ns, unit).plan.budget_bytes


def _slow(low: Weighed) -> str:
    return f"this is the plan for {format_bytes(low.plan.budget_bytes)}, the least that is feasible, which is too slow"


def _closed_in(ask: Ask, low: Weighed, high: Weighed, limit_ns: int, unit: int, watch: Watch | None = None) -> Weighed:
    """Find the fast enough plan with the least budget, between one that is too slow and one that is not."""
    in_the_middle = False
    while high.plan.budget_bytes - low.plan.budget_bytes > unit:
        try:
            found = ask(_between(low, high, limit_ns, unit, in_the_middle=in_the_middle))
        except ENDS as problem:
            if watch is None:
                raise
            watch.ends_early(
                problem,
                f"{format_bytes(high.plan.budget_bytes)} is fast enough, {format_bytes(low.plan.budget_bytes)} is not; "
                "between them was not tried",
            )
            return high
        in_the_middle = not in_the_middle
        if found.step_ns > limit_ns:
            low = found
        else:
            high = found
    return high


def lowest(ask: Ask) -> Weighed:
    """Return the plan for the least feasible budget.

    Raises:
        Infeasible: no budget is found that the planner meets.
    """
    budget_bytes, lifts = 0, 0
    while True:
        try:
            return ask(budget_bytes)
        except Infeasible as problem:
            lifts += 1
            if lifts > MOST_LIFTS:
                raise
            budget_bytes = max(problem.least_feasible_bytes, budget_bytes + 1)


def _between(low: Weighed, high: Weighed, limit_ns: int, unit: int, *, in_the_middle: bool) -> int:
    """Return a budget between two; the lower one is too slow."""
    below, above = low.plan.budget_bytes, high.plan.budget_bytes
    share = Fraction(1, 2)
    if not in_the_middle and high.step_ns < low.step_ns:
        share = min(Fraction(low.step_ns - limit_ns, low.step_ns - high.step_ns), Fraction(1))
    at = below + int((above - below) * share)
    return min(max(at, below + (unit + 1) // 2), above - (unit + 1) // 2)


def first_met(least_bytes: int, plan_for: Callable[[int], object], most_bytes: int) -> int:
    """Return the first budget from `least_bytes` on that can be planned for; each refusal names the next one to try.

    What may move can depend on the budget. So a budget that one refusal names may be refused itself.

    Args:
        least_bytes: the first budget to try.
        plan_for: plans for a budget; raises Infeasible.
        most_bytes: a budget that is assumed to be met.
    """
    budget_bytes = least_bytes
    while budget_bytes < most_bytes:
        try:
            plan_for(budget_bytes)
        except Infeasible as problem:
            budget_bytes = max(problem.least_feasible_bytes, budget_bytes + 1)
        else:
            return budget_bytes
    return max(least_bytes, most_bytes)
