"""seeds: the baselines' plans as trials for `optimal` to start from.

Computes: the plan of every baseline that meets the budget, played. Reference: each baseline names its own. Optimal:
never by itself; it makes `optimal` no slower than any of them. Ignores: options of the baselines other than the
defaults. Cost: the baselines' together, and a play for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from elbowroom.errors import Infeasible
from elbowroom.plan import Plan, Recompute
from elbowroom.planners.baselines.capuchin import capuchin
from elbowroom.planners.baselines.keep_all import keep_all
from elbowroom.planners.baselines.lms import lms
from elbowroom.planners.baselines.on_demand import on_demand
from elbowroom.planners.baselines.recompute_blocks import recompute_blocks
from elbowroom.planners.baselines.swap_all import swap_all
from elbowroom.planners.baselines.swap_greedy import swap_greedy
from elbowroom.planners.baselines.swap_states import swap_states
from elbowroom.planners.baselines.tflms import tflms
from elbowroom.planners.baselines.threshold import threshold
from elbowroom.planners.baselines.vdnn import vdnn
from elbowroom.planners.budget.confirm_reserved import within_reserved
from elbowroom.planners.optimal.refine import Pool
from elbowroom.planners.optimal.state_choice import deciding
from elbowroom.planners.optimal.trial import Trial, tried
from elbowroom.planners.problem import Planner, Problem, peak_of
from elbowroom.step.last_step import LastStep
from elbowroom.step.moves import moves_of, moves_of_plan
from elbowroom.step.rebuilds import rebuild_of
from elbowroom.step.recipes import RecomputeOption

BASELINES: tuple[Planner, ...] = (
    keep_all,
    swap_all,
    swap_greedy,
    swap_states,
    recompute_blocks,
    vdnn,
    tflms,
    capuchin,
    threshold,
    lms,
    on_demand,
)
MOST_SAVES = 2000
"""With more saves, the baselines of QUADRATIC cost are left out: they would take longer than all else."""
QUADRATIC: tuple[Planner, ...] = (capuchin, vdnn)


def seeds(problem: Problem, baselines: Sequence[Planner] = BASELINES) -> Iterator[tuple[Planner, Plan]]:
    """Yield the plans of baselines that meet the budget with the allowed means."""
    many, is_enough = len(problem.step.saves) > MOST_SAVES, False
    for baseline in (each for each in baselines if not (many and each in QUADRATIC)):
        if baseline is swap_states and is_enough:  # its plan would be that of swap_greedy
            continue
        try:
            made = baseline(problem)
            is_enough |= baseline is swap_greedy
        except Infeasible:
            continue
        if _is_allowed(problem, made):
            yield baseline, made


def seeds_in_reserved(problem: Problem) -> Iterator[Plan]:
    """Yield plans of baselines whose reserved bytes are within the budget, as `elbowroom.plan` would return them."""
    many = len(problem.step.saves) > MOST_SAVES
    for baseline in (each for each in BASELINES[1:] if not (many and each in QUADRATIC)):
        try:
            made, _ = within_reserved(problem, baseline)
        except Infeasible:
            continue
        if made is not None and _is_allowed(problem, made):
            yield made


def _is_allowed(problem: Problem, made: Plan) -> bool:
    used = {"swap": made.swaps, "recompute": made.recomputes, "algorithm": made.algorithms}
    allowed = all(means in problem.allow for means, what in used.items() if what)
    return allowed and all(map(problem.judge, made.recomputes))


def trial_of(pool: Pool, made: Plan) -> tuple[Trial, Pool] | None:
    """Return a plan with the pool's algorithms as a trial, its swaps of states decided; None above the budget."""
    step = pool.problem.step
    moves = moves_of_plan(step, made)
    if peak_of(step, moves) > pool.problem.budget_bytes:
        return None
    state = moves.n >= len(step.saves)
    decided = replace(pool, problem=deciding(pool.problem, moves.n[state], moves.back[state]))
    saves = moves_of(decided.problem.step, moves.n[~state], moves.back[~state], rebuilds=moves.rebuilds)
    return tried(decided.basis([_option(step, recompute) for recompute in made.recomputes]), saves), decided


def _option(step: LastStep, recompute: Recompute) -> RecomputeOption:
    rebuild = rebuild_of(step, recompute)
    return RecomputeOption(
        kind="block",
        name="",
        recompute=recompute,
        inputs=rebuild.inputs,
        saved_bytes=int(step.size[rebuild.n].sum()),
        duration_ns=step.time_of(recompute.recipe),
        peak_bytes=rebuild.peak_bytes,
    )
