"""confirming: plans whose reserved bytes, not only their allocated ones, stay within the budget.

Computes: for a machine with a caching allocator, the fastest plan found whose replay stays within the budget, with the
budget as the allocator's limit (Note: [At the limit] in allocator/of_trace.py). What the allocator holds follows from
the order and the sizes of all blocks, and no bound of it is known that is easy to plan with; so plans are made for
fewer allocated bytes until the replay of one is within the budget, and then for more.
Reference: bisection; the replay is elbowroom.allocator. Optimal: never provably, as reserved bytes need not grow with
allocated ones. Ignores: what the simulation does. Cost: ROUNDS times the planner's, plus replays of the plans it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from elbowroom.algorithms import with_algorithms
from elbowroom.driver import DRIVER
from elbowroom.errors import Infeasible
from elbowroom.lifetimes import last_step
from elbowroom.machine import Machine
from elbowroom.moves import moves_of_plan
from elbowroom.plan import Plan
from elbowroom.planners.infeasible import reserves_more
from elbowroom.planners.problem import Problem, peak_of
from elbowroom.rules import MAX_INT
from elbowroom.simulate import simulate
from elbowroom.trace import Trace

ROUNDS = 5
"""How many allocated budgets are tried."""
LOOKS = 4
"""How many plans for each are replayed, the fastest first."""

Solve = Callable[[Problem], Sequence[Plan]]


GAP = 1e-3
"""A plan that takes so little longer than its lower bound is not improved upon."""
LIMIT_BYTES = 2 << 20
"""The least limit of a plan is told to so many bytes: a segment is no smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A plan for a budget with what its simulation shows.

    Attributes:
        plan: with the budget that was asked for.
        step_ns: of the step, waits for the driver included.
        reserved_bytes: within the budget, or what it would reserve without a limit.
        is_driven: whether compute waits for the driver.
    """

    plan: Plan
    step_ns: int
    reserved_bytes: int
    is_driven: bool

    @property
    def is_proven(self) -> bool:
        """Whether hardly any plan can be faster."""
        return self.plan.bound is not None and self.plan.bound.gap <= GAP

    @property
    def fits(self) -> bool:
        """Whether the allocator stays within the budget."""
        return self.reserved_bytes <= self.plan.budget_bytes


def replayed(trace: Trace, machine: Machine, made: Plan, budget_bytes: int) -> Replayed:
    """What a plan does where the allocator may reserve so much."""
    asked = replace(made, budget_bytes=budget_bytes)
    line = simulate(trace, machine, asked)
    if asked.bound is not None:
        asked = replace(asked, bound=replace(asked.bound, step_ns=max(asked.bound.step_ns, line.step_ns)))
    return Replayed(
        plan=asked,
        step_ns=line.step_ns,
        reserved_bytes=line.peak_reserved_bytes,
        is_driven=any(span.name == DRIVER for span in line.spans),
    )


def least_limit(trace: Trace, machine: Machine, made: Plan) -> int:
    """The least that an allocator must be allowed to reserve for a plan, to LIMIT_BYTES."""
    step = with_algorithms(last_step(trace), made.algorithms)
    fails = peak_of(step, moves_of_plan(step, made)) - 1
    fits = max(fails + 1, simulate(trace, machine, replace(made, budget_bytes=MAX_INT)).peak_reserved_bytes)
    while fits - fails > LIMIT_BYTES:
        middle = (fails + fits) // 2
        fits, fails = (middle, fails) if replayed(trace, machine, made, middle).fits else (fits, middle)
    return fits


def confirmed(problem: Problem, planner: str, make: Callable[[Problem], Plan], made: Plan | None = None) -> Plan:
    """A plan of a planner that counts allocated bytes, whose reserved bytes are within the budget.

    Waits for the driver are avoided where a plan without them is found.

    Args:
        problem: what was asked; its budget counts reserved bytes.
        planner: its name.
        make: the planner.
        made: what it makes of the problem, where that is known.

    Raises:
        Infeasible: no plan that was tried is within the budget.
    """
    first = replayed(problem.step.trace, problem.machine, make(problem) if made is None else made, problem.budget_bytes)
    if first.fits and not first.is_driven:
        return first.plan
    try:
        return within_reserved(problem, planner, _least_bytes(problem, make), lambda asked: [make(asked)])
    except Infeasible:
        if first.fits:
            return first.plan
        raise


def _least_bytes(problem: Problem, make: Callable[[Problem], Plan]) -> int:
    """Allocated bytes that a planner can plan for at least."""
    try:
        make(replace(problem, budget_bytes=0))
    except Infeasible as found:
        return found.least_feasible_bytes
    return 0


def within_reserved(problem: Problem, planner: str, least_bytes: int, solve: Solve) -> Plan:
    """The fastest plan found whose simulated reserved peak is within the budget.

    Args:
        problem: what was asked; its budget counts reserved bytes.
        planner: its name.
        least_bytes: allocated bytes that can be planned for at least.
        solve: makes plans for a budget of allocated bytes, the fastest first.

    Raises:
        Infeasible: no plan that was tried is within the budget.
    """
    budget = problem.budget_bytes
    allowed, fails = budget, budget + 1
    best: Replayed | None = None
    fewest: Replayed | None = None
    for left in reversed(range(ROUNDS)):
        if (not least_bytes <= allowed < fails and fewest) or (best and best.is_proven):
            break
        found = _look(problem, solve(replace(problem, budget_bytes=allowed)))
        fewest = found if fewest is None or found.reserved_bytes < fewest.reserved_bytes else fewest
        if found.fits:
            best = found if best is None or found.step_ns < best.step_ns else best
        if found.fits and not found.is_driven:
            least_bytes = allowed + 1
            allowed = (allowed + fails) // 2
        else:
            fails = allowed
            over = max(allowed // 16, (allowed - least_bytes) // 4, 1)
            allowed = (least_bytes + fails) // 2 if best and not best.is_driven else max(least_bytes, allowed - over)
            if best is None and left == 1:  # the last round: if no other plan, the one that allocates least
                allowed = least_bytes
    if best is None:
        raise reserves_more(problem, planner, _least_of(problem, fewest) if fewest else least_bytes)
    return best.plan


def _least_of(problem: Problem, found: Replayed) -> int:
    return least_limit(problem.step.trace, problem.machine, found.plan)


def _look(problem: Problem, plans: Sequence[Plan]) -> Replayed:
    """Of some plans, fastest first, the fastest that is within the budget, else the one that reserves least."""
    looked: list[Replayed] = []
    for made in plans[:LOOKS]:
        looked.append(replayed(problem.step.trace, problem.machine, made, problem.budget_bytes))
        if looked[-1].fits and not looked[-1].is_driven:
            break
    fit = [each for each in looked if each.fits]
    return min(fit, key=lambda each: each.step_ns) if fit else min(looked, key=lambda each: each.reserved_bytes)
