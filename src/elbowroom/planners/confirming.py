"""confirming: plans whose reserved bytes, not only their allocated ones, stay within the budget.

Computes: for a machine with a caching allocator, the fastest plan found whose replay stays within the budget. What the
allocator holds follows from the order and the sizes of all blocks, and no bound of it is known that is easy to plan
with; so plans are made for fewer allocated bytes until the replay of one is within the budget, and then for more.
Reference: bisection; the replay is elbowroom.allocator. Optimal: never provably, as reserved bytes need not grow with
allocated ones. Ignores: that an allocator at its limit gives cached segments back before it fails.
Cost: ROUNDS times the planner's, plus a replay for each plan looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from elbowroom.plan import Plan
from elbowroom.planners.infeasible import reserves_more
from elbowroom.planners.problem import Problem
from elbowroom.simulate import simulate

ROUNDS = 5
"""How many allocated budgets are tried."""
LOOKS = 4
"""How many plans for each are replayed, the fastest first."""

Solve = Callable[[Problem], Sequence[Plan]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A plan with what its simulation shows."""

    plan: Plan
    step_ns: int
    reserved_bytes: int


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
        if not least_bytes <= allowed < fails and fewest:
            break
        found = _look(problem, solve(replace(problem, budget_bytes=allowed)))
        fewest = found if fewest is None or found.reserved_bytes < fewest.reserved_bytes else fewest
        if found.reserved_bytes <= budget:
            best = found if best is None or found.step_ns < best.step_ns else best
            least_bytes = allowed + 1
            allowed = (allowed + fails) // 2
        else:
            fails = allowed
            over = max(found.reserved_bytes - budget, (allowed - least_bytes) // 4, 1)
            allowed = (least_bytes + fails) // 2 if best else max(least_bytes, allowed - over)
            if best is None and left == 1:  # the last round: if no other plan, the one that allocates least
                allowed = least_bytes
    if best is None:
        raise reserves_more(problem, planner, fewest.reserved_bytes if fewest else least_bytes)
    return best.plan


def _look(problem: Problem, plans: Sequence[Plan]) -> Replayed:
    """Of some plans, fastest first, the first that is within the budget, else the one that reserves least."""
    looked: list[Replayed] = []
    for made in plans[:LOOKS]:
        line = simulate(problem.step.trace, problem.machine, made)
        looked.append(Replayed(plan=made, step_ns=line.step_ns, reserved_bytes=line.peak_reserved_bytes))
        if line.peak_reserved_bytes <= problem.budget_bytes:
            return looked[-1]
    return min(looked, key=lambda replayed: replayed.reserved_bytes)
