"""What the user's side does wrong: an exception in a step, a budget that nothing can meet."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.run.room import Room, run_of
from tests.torch.broken_disk import open_descriptors, own_threads, until
from tests.torch.broken_training import OBSERVED, PLANNED, Moment, broken, setup
from tests.torch.helpers import MIN_SIZE_BYTES, Outcome, assert_equal, seeded, train

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path) -> Iterator[None]:
    """No thread, no open file and no name, whatever went wrong."""
    gc.collect()
    threads, descriptors = own_threads(), open_descriptors()
    yield
    gc.collect()
    assert until(lambda: own_threads() <= threads)
    assert open_descriptors() <= descriptors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("moment", ["before", "between"])
@pytest.mark.parametrize("at", [OBSERVED, PLANNED], ids=["observed", "planned"])
def test_an_exception_in_a_step_comes_out_as_it_is_and_leaves_nothing(
    at: int, moment: Moment, error: type[BaseException], tmp_path: Path
) -> None:
    # given
    def breaks(_: Room) -> None:
        raise error("the user's own")

    # when
    seen = broken(tmp_path, at, moment, breaks)
    # then
    assert seen.error is error
    assert seen.text == "the user's own"
    assert len(seen.losses) == at
    assert seen.held_bytes == 0
    assert seen.goes_on_as_plain


def test_an_exception_in_backward_comes_out_as_it_is(tmp_path: Path) -> None:
    # given
    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(_: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(_: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> Tensor:
            raise ZeroDivisionError("in backward")

    weight = torch.randn(64, 64, requires_grad=True)

    def train() -> None:
        with er.within("1GiB", spill_dir=tmp_path, min_size=MIN_SIZE_BYTES):
            hidden = Refusing.apply((weight @ weight).tanh())
            (hidden @ weight).tanh().sum().backward()  # pyright: ignore[reportOperatorIssue]

    # when / then
    with pytest.raises(ZeroDivisionError, match="in backward"):
        train()


def test_after_an_exception_with_the_graph_alive_the_bytes_stay_readable_and_then_go(tmp_path: Path) -> None:
    # given
    training = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)], torch.nn.Tanh())
    batch = torch.randn(64, 64)
    expected = torch.autograd.grad(training(batch).sum(), list(training.parameters()))
    # when
    room = er.within("1GiB", spill_dir=tmp_path, min_size=MIN_SIZE_BYTES)
    with suppress(ValueError), room as opened:
        loss = training(batch).sum()
        raise ValueError
    # then
    assert run_of(opened)._executor.tier.held_bytes > 0
    found = torch.autograd.grad(loss, list(training.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    # when
    del loss
    # then
    assert run_of(opened)._executor.tier.held_bytes == 0


@pytest.mark.parametrize("min_size_bytes", [1, 2**20], ids=["moved", "passed through"])
def test_a_graph_that_is_dropped_without_backward_is_freed(min_size_bytes: int, tmp_path: Path) -> None:
    # given: an op that saves its own output
    weight = torch.randn(64, 64, requires_grad=True)
    with er.within("1GiB", spill_dir=tmp_path, min_size=min_size_bytes) as room:
        for _ in range(3):
            loss = (weight @ weight).tanh().exp().sum()
            # when
            hidden = (weight @ weight).exp()
            storage = weakref.ref(hidden.untyped_storage())
            del hidden
            # then
            assert storage() is None
            loss.backward()
            room.end_step()


def test_a_room_is_gone_when_nobody_holds_it(tmp_path: Path) -> None:
    # given
    def once() -> weakref.ref[Room]:
        with er.within("1GiB", spill_dir=tmp_path, min_size=MIN_SIZE_BYTES) as room:
            training = seeded(setup)
            training.step(0)
            training.step(1)
        return weakref.ref(room)

    # when
    room = once()
    gc.collect()
    # then
    assert room() is None


def test_a_budget_nothing_can_meet_names_the_least_one_and_that_one_works(tmp_path: Path) -> None:
    # given: an error that is kept would keep the room it came from
    def least() -> tuple[int, str, int]:
        losses: list[Tensor] = []
        training = seeded(setup)
        try:
            with er.within(1, spill_dir=tmp_path, min_size=MIN_SIZE_BYTES):
                losses.extend(training.step(i) for i in range(5))
        except er.Infeasible as error:
            return error.least_feasible_bytes, str(error), len(losses)
        raise AssertionError("a training fits into one byte")

    least_bytes, text, steps = least()
    assert "The least that 'swap_states' can meet is" in text
    assert f"({least_bytes} bytes)" in text
    assert "Give at least that." in text
    assert steps <= 2
    gc.collect()
    # when
    training = seeded(setup)
    with er.within(least_bytes, spill_dir=tmp_path, min_size=MIN_SIZE_BYTES) as room:
        losses = [training.step(i).clone() for i in range(5)]
    # then
    assert [step.mode for step in room.steps][-2:] == ["plan", "plan"]
    assert_equal(Outcome(losses, training.state()), train(setup))


def test_a_budget_nothing_can_meet_is_raised_before_any_wrong_step(tmp_path: Path) -> None:
    # when
    training = seeded(setup)
    losses: list[Tensor] = []
    with pytest.raises(er.Infeasible), er.within(1, spill_dir=tmp_path, min_size=MIN_SIZE_BYTES):
        losses.extend(training.step(i).clone() for i in range(5))
    gc.collect()
    # then: what was trained until then is as it should be, and goes on without a budget
    rest = [training.step(i).clone() for i in range(len(losses), 5)]
    assert_equal(Outcome(losses + rest, training.state()), train(setup))
