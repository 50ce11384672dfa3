"""Trainings in which every storage that may be swapped, or recomputed, is; their numbers are those of plain ones.

Between forward and backward all writes are waited for, and swaps come back on demand: all are read from the disk.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

import elbowroom as er
from elbowroom.planners.optimal.closed_recipes import ClosedRecipes
from elbowroom.planners.problem import Problem
from elbowroom.run.recompute import planning
from elbowroom.run.recompute.call_recorder import Calls
from elbowroom.run.recompute.recompute_programs import matched, why_impossible
from elbowroom.run.room import Room, run_of
from elbowroom.run.step_question import StepQuestion
from elbowroom.step.check import check
from elbowroom.step.last_step import last_step
from tests.torch.helpers import SEED, Outcome, Setup, Training, assert_equal, finish, same_bits, seeded, train

STEPS = 3
"""One observed, one under a first plan, one under the last."""

STEPS_OF_RECOMPUTES = 6
"""Two observed, one that records its calls, two that prove, one that drops."""

SOON_OPS = 2
"""What a recipe makes on its way and is dropped too stays if it is read at most this number of ops later."""

MIN_SIZE_BYTES = 1
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}
"""What has gradients on the CPU; torch.complex32 has no kernels there."""

_open: list[Room] = []


@dataclass(frozen=True, slots=True)
class Forced:
    """What a training did when all that may move was swapped.

    Attributes:
        planned: swaps of the plan.
        swapped_bytes: moved out in its last step.
        mismatches: saved storages that were not those of the trace.
    """

    planned: int
    swapped_bytes: int
    mismatches: int


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What a training did when all that may be recomputed was.

    Attributes:
        planned_bytes: dropped by the recipes whose calls can be made again.
        recomputed_bytes: rebuilt in its last step.
        mismatches: saved storages that were not those of the trace, or not rebuilt with the same bits.
        impossible: why the others stayed.
    """

    planned_bytes: int
    recomputed_bytes: int
    mismatches: int
    impossible: tuple[str, ...]


def train_swapping_all(setup: Setup) -> Forced:
    """Train plain and with every swap that is allowed, and compare every number bit by bit.

    A training that differs from itself when it is run twice is skipped: nothing can be said about it.
    """
    plain = _plain(setup, STEPS)
    trace, machine = _traced(setup)
    budget = machine.tiers[0].capacity_bytes
    plan = er.plan(trace, machine, budget, planner="swap_all", min_size=MIN_SIZE_BYTES)
    read_at = {save.storage: save.read_at for save in trace.saves}
    on_demand = (
        replace(each, back_before_op=min(read_at[each.storage], default=each.back_before_op)) for each in plan.swaps
    )
    room = _followed(setup, replace(plan, swaps=tuple(on_demand)), plain, STEPS)
    swapped_bytes, mismatches = room.steps[-1].swapped_out_bytes, sum(step.mismatches for step in room.steps)
    return Forced(planned=len(plan.swaps), swapped_bytes=swapped_bytes, mismatches=mismatches)


def train_recomputing_all(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> Recomputed:
    """As train_swapping_all, with every storage recomputed that has a recipe whose calls can be made again."""
    impossible: list[str] = []
    follow = planning.following

    def following(question: StepQuestion, calls: Calls, given: er.Plan) -> planning.Planned:
        trace = question.trace
        try:
            check(trace, given)
        except er.InvalidPlan as problem:  # of LBFGS, whose steps end at each call of its closure
            impossible.append(str(problem))
            given = replace(given, recomputes=())
        found = matched(last_step(trace), calls)
        why = [why_impossible(found, each) for each in given.recomputes]
        impossible.extend(filter(None, why))
        kept = tuple(each for each, reason in zip(given.recomputes, why, strict=True) if reason is None)
        return follow(question, calls, replace(given, recomputes=kept))

    monkeypatch.setattr(planning, "following", following)
    plain = _plain(setup, STEPS_OF_RECOMPUTES)
    trace, machine = _traced(setup)
    plan = recomputing_all(trace, machine)
    room = _followed(setup, plan, plain, STEPS_OF_RECOMPUTES)
    dropped = [storage for each in (room.plan or plan).recomputes for storage in each.storages]
    return Recomputed(
        planned_bytes=sum(trace.storages[storage].size_bytes for storage in dropped) if room.plan else 0,
        recomputed_bytes=room.steps[-1].recomputed_bytes,
        mismatches=sum(step.mismatches for step in room.steps),
        impossible=tuple(impossible),
    )


def recomputing_all(trace: er.Trace, machine: er.Machine, stay: Collection[int] = ()) -> er.Plan:
    """All that may be dropped is, but what is to stay; recipes make again what others drop, unless it is read soon."""
    problem = Problem(
        step=last_step(trace),
        machine=machine,
        tier=None,
        tier_bytes=0,
        budget_bytes=machine.tiers[0].capacity_bytes,
        min_size_bytes=MIN_SIZE_BYTES,
    )
    recipes = ClosedRecipes(problem)
    found = recipes.of(set(recipes.droppable).difference(stay), SOON_OPS, None)
    none = er.Plan(trace_id=trace.id, planner="by hand", budget_bytes=problem.budget_bytes)
    made = replace(none, recomputes=tuple(recipe.option.recompute for recipe in found))
    with suppress(er.InvalidPlan, er.InvalidRecord):
        check(trace, made)
        return made
    made = none
    for recipe in found:
        with suppress(er.InvalidPlan, er.InvalidRecord):
            longer = replace(made, recomputes=(*made.recomputes, recipe.option.recompute))
            check(trace, longer)
            made = longer
    return made


def _plain(setup: Setup, steps: int) -> Outcome:
    plain = train(setup, steps)
    if not same(plain, train(setup, steps)):
        pytest.skip("plain training, run twice, gives two results")
    gc.collect()
    return plain


def _traced(setup: Setup) -> tuple[er.Trace, er.Machine]:
    return er.capture(lambda: _counted(setup), steps=2, min_size=MIN_SIZE_BYTES), er.Machine.here(device="cpu")


def _followed(setup: Setup, plan: er.Plan, plain: Outcome, steps: int) -> Room:
    """A training under a plan, which gives the same bits as the plain one."""
    gc.collect()
    with er.within(plan=plan, min_size=MIN_SIZE_BYTES) as room:
        _open.append(room)
        try:
            inside = finish(seeded(setup), steps)
        finally:
            _open.remove(room)
    assert_equal(inside, plain)
    return room


def is_learnt(each: object) -> bool:
    """Whether it is a tensor that has a gradient."""
    return isinstance(each, Tensor) and each.requires_grad


class Fed(nn.Module):
    """A module whose learnt inputs are parameters, each passed on by an op, so that what is saved of them may move.

    Args:
        given: positional and named arguments.
    """

    def __init__(self, given: tuple[Sequence[Any], dict[str, Any]]) -> None:
        super().__init__()
        self.given = given
        leaves, _ = tree_flatten(given)
        self.learnt = nn.ParameterList([nn.Parameter(each.detach().clone()) for each in leaves if is_learnt(each)])

    def taken(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments of one call."""
        learnt = iter(self.learnt)
        return tree_map(lambda each: next(learnt).clone() if is_learnt(each) else each, self.given)


def written_training(model: nn.Module, rate: float) -> Training:
    """Forward, a wait until what leaves is written, backward, SGD; the same random numbers in every step."""
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(1))], lr=rate)

    def step(_: int) -> Tensor:
        torch.manual_seed(SEED)
        optimizer.zero_grad(set_to_none=True)
        loss = model()
        for room in _open:
            run_of(room)._executor.settle()
        loss.backward()
        optimizer.step()
        return loss

    return Training(step, [model], [optimizer])


def same(one: Outcome, other: Outcome) -> bool:
    """Whether two trainings gave the same bits."""
    pairs = [*zip(one.losses, other.losses, strict=True), *((one.state[name], other.state[name]) for name in one.state)]
    return all(same_bits(mine, theirs) for mine, theirs in pairs)


def _counted(setup: Setup) -> Callable[[], Tensor]:
    training, steps = seeded(setup), iter(range(STEPS))
    return lambda: training.step(next(steps))
