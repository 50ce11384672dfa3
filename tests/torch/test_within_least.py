"""What a training can do with at the least, where ticks alone do not show it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.capture.recording.recorder import live_ram_bytes
from elbowroom.engine.residence import RamResidence
from elbowroom.run.learner import Learner
from elbowroom.run.room import run_of
from elbowroom.run.step_kinds import StepKind
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Outcome,
    Setup,
    Training,
    assert_equal,
    assert_swapped,
    finish,
    mean_square,
    mlp,
    needs,
    ordinary,
    seeded,
    train,
    train_within,
)

ROWS, COLUMNS = 128, 64
TENSOR_BYTES = 4 * ROWS * COLUMNS


class Waves(nn.Module):
    """Two rows of ops whose results live until the last one returns, and a sum of both that saves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(COLUMNS))

    def inner(self, x: Tensor) -> Tensor:
        first = x * self.scale
        second = first.sin()
        third = second.sin()
        return third.sin()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.inner(x), self.inner(x)]).sum(0)


def waves() -> Training:
    return ordinary(Waves(), torch.randn(ROWS, COLUMNS))


def test_a_budget_is_met_that_only_holds_where_storages_go_between_two_ticks() -> None:
    # given: at `cat` the three arguments of `sin` are gone in truth, as `inner` has returned, but there is no tick
    # between its last op and `cat`, so that an observed step still holds them
    least, peak = needs(waves)
    assert least < peak
    # when
    outcome, room = train_within(waves, budget=least - TENSOR_BYTES)
    # then
    assert_equal(outcome, train(waves))
    assert_swapped(room)
    assert room.simulated is not None
    assert room.simulated.peak_allocated_bytes <= least - TENSOR_BYTES


def refused_at(budget_bytes: int, setup: Setup = waves) -> int:
    """What is then named as the least. The error itself would keep the frames of the training alive."""
    try:
        train_within(setup, budget=budget_bytes)
    except er.Infeasible as problem:
        return problem.least_feasible_bytes
    raise AssertionError("a training fits into less than the least")


def test_the_least_budget_that_is_named_counts_what_goes_between_two_ticks() -> None:
    # when
    named = refused_at(needs(waves)[0] // 2)  # far less: a plan in force may hold 1 % more than its budget
    # then it is lower than that of an observed step, and can be met
    assert named <= needs(waves)[0] - TENSOR_BYTES
    outcome, room = train_within(waves, budget=named)
    assert_equal(outcome, train(waves))
    assert_swapped(room)


def test_a_budget_that_no_plan_could_meet_is_refused_after_two_steps() -> None:
    # given
    steps = 0

    def counted() -> Training:
        training = waves()
        (step,) = [training.step]

        def one(number: int) -> Tensor:
            nonlocal steps
            steps += 1
            return step(number)

        training.step = one
        return training

    # when
    with pytest.raises(er.Infeasible) as refused:
        train_within(counted, budget=1)
    # then: what is named is enough, if not the very least
    assert steps == 3, "the third one is refused where it begins"
    named = refused.value.least_feasible_bytes
    del refused
    outcome, _ = train_within(waves, budget=named)
    assert_equal(outcome, train(waves))


def test_a_plan_that_reserved_more_than_its_budget_is_made_again_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    # given an allocator that holds 3 MiB more than the budget until a plan is made again
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)])
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4096, 256)
    planned: list[int] = []
    with er.within(live_ram_bytes() + 30 * 2**20, min_size=2**20) as room:
        again: list[int] = []
        made = Learner.reserved_more

        def reserved_more(self: Learner, key: Hashable, known: StepKind, more_bytes: int) -> None:
            again.append(known.course.peak_bytes)
            made(self, key, known, more_bytes)

        monkeypatch.setattr(Learner, "reserved_more", reserved_more)
        monkeypatch.setattr(RamResidence, "beyond", lambda _self, _budget: 0 if again else 3 * 2**20)
        # when
        for _ in range(9):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            planned.append(run_of(room).planned_peak_bytes)
    # then what is followed from there on holds so much less
    assert len(again) == 1
    assert planned[-1] <= again[0] - 3 * 2**20
    assert [step.mismatches for step in room.steps] == [0] * 9


def with_states(make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> Setup:
    """A training whose optimizer has states, and whose gradients are let go before each backward."""

    def setup() -> Training:
        model, x = mlp(width=256), torch.randn(64, 256)
        optimizer = make(model.parameters())

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(x))
            loss.backward()
            optimizer.step()
            return loss

        return Training(step, [model], [optimizer])

    return setup


@pytest.mark.parametrize(
    "make",
    [partial(torch.optim.SGD, lr=0.1, momentum=0.9), torch.optim.AdamW, partial(torch.optim.Adam, foreach=True)],
    ids=["momentum", "AdamW", "foreach"],
)
def test_the_least_that_is_named_is_held_from_the_first_step_on(
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    # given what is named once states exist, and gradients were seen to be let go
    setup = with_states(make)
    named = refused_at(1, setup)
    # when
    outcome, room = train_within(setup, budget=named)
    # then
    assert_equal(outcome, train(setup))
    assert room.steps[-1].mode == "plan"
    assert run_of(room).kinds.measured_peak_bytes <= named + MIN_SIZE_BYTES, "in observed steps too"


def test_what_a_script_keeps_of_each_step_does_not_end_a_run_within_its_least() -> None:
    # given twice the least size more after each step, as predictions that are collected; no plan can move them
    setup = with_states(torch.optim.AdamW)
    named = refused_at(1, setup)
    kept: list[Tensor] = []

    def collecting() -> Training:
        training = setup()
        bare = training.step

        def step(number: int) -> Tensor:
            kept.append(torch.zeros(2 * MIN_SIZE_BYTES, dtype=torch.uint8))
            return bare(number)

        training.step = step
        return training

    # when
    outcome, room = train_within(collecting, budget=named)
    # then
    more_bytes = sum(each.nbytes for each in kept)
    assert_equal(outcome, train(setup))
    assert room.steps[-1].mode == "plan"
    assert MIN_SIZE_BYTES < more_bytes <= named // 100
    assert run_of(room).kinds.measured_peak_bytes <= named + more_bytes + MIN_SIZE_BYTES


def bits(outcome: Outcome) -> list[bytes]:
    """Copies that are no tensors, so that no memory of the training is counted for them."""
    return [each.numpy().tobytes() for each in (*outcome.losses, *outcome.state.values())]


def test_trainings_one_after_the_other_hold_the_budget_too() -> None:
    # given a model and an optimizer for each fold of a cross-validation, which end before the next ones are made
    setup = with_states(torch.optim.Adam)
    plain = [bits(train(setup, 5)) for _ in range(3)]
    least, most = needs(setup, allow=("swap", "state"))
    budget = most - (most - least) // 3
    # when
    gc.collect()
    before, after, folds = live_ram_bytes(), list[int](), list[list[bytes]]()
    with er.within(budget, min_size=MIN_SIZE_BYTES, allow=("swap", "state")) as room:
        for _ in range(3):
            folds.append(bits(finish(seeded(setup), 5)))
            gc.collect()
            after.append(live_ram_bytes())
    # then no fold keeps anything of one before
    assert folds == plain
    assert max(after) <= before + MIN_SIZE_BYTES
    assert [step.mode for step in room.steps].count("plan") >= 3 * 3
    assert run_of(room).kinds.measured_peak_bytes <= budget + MIN_SIZE_BYTES


def in_turn() -> Training:
    """Two models with an optimizer each, the smaller one first, that train in turn: steps of two kinds."""
    models = [mlp(width=128), mlp(width=256)]
    batches = [torch.randn(64, 128), torch.randn(64, 256)]
    optimizers = [torch.optim.Adam(each.parameters()) for each in models]

    def step(number: int) -> Tensor:
        turn = number % 2
        optimizers[turn].zero_grad()
        loss = mean_square(models[turn](batches[turn]))
        loss.backward()
        optimizers[turn].step()
        return loss

    return Training(step, models, optimizers)


def test_states_of_an_optimizer_that_first_steps_later_count_in_the_plans_of_before() -> None:
    # given a budget that each kind of step meets by itself, once those of the other have been refused
    steps, budget = 10, refused_at(1, in_turn)
    for _ in range(2):
        try:
            train_within(in_turn, steps, budget)
            break
        except er.Infeasible as problem:
            budget = problem.least_feasible_bytes
    # when
    outcome, room = train_within(in_turn, steps, budget)
    # then
    assert_equal(outcome, train(in_turn, steps))
    assert run_of(room).kinds.measured_peak_bytes <= budget + MIN_SIZE_BYTES
