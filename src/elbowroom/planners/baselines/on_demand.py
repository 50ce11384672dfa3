"""on_demand: swap everything that may move, optimizer states and gradients included, each back only when it is used.

Computes: every movable save, state and gradient swapped, on to the disk if the host is full. Nothing is prefetched.
Reference: `torch.autograd.graph.save_on_cpu` (PyTorch documentation) for what autograd saves; Ren et al.,
"ZeRO-Offload" (USENIX ATC 2021), for states and gradients.
Optimal: for allocated memory; no plan of swaps needs less. So a run refuses a budget if this plan does not meet it.
Ignores: the budget (a plan that does not meet it is refused), copies that could be hidden, time.
Cost: linear in the saves and states.
"""

from __future__ import annotations

from elbowroom.plan import Plan
from elbowroom.planners.budget.infeasible import infeasible
from elbowroom.planners.optimal.state_choice import all_away
from elbowroom.planners.problem import Problem, as_plan, movable, moves_on_demand, peak_of, with_disk

NAME = "on_demand"


def on_demand(problem: Problem) -> Plan:
    """Swap everything.

    Raises:
        Infeasible: the step needs more than the budget even so.
    """
    left = all_away(with_disk(problem))
    n = movable(left)
    moves = moves_on_demand(left.step, n)
    if peak_of(left.step, moves) > problem.budget_bytes:
        raise infeasible(left, NAME, n)
    return as_plan(left, NAME, moves)
