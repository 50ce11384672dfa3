"""A step that breaks off in the middle: the loop may go on, the numbers stay the same, and nothing is held."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.run.room import Room, run_of
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Outcome,
    Training,
    assert_equal,
    mean_square,
    mlp,
    same_bits,
    seeded,
    tight_budget,
)

pytestmark = pytest.mark.long

STEPS = 7
Moment = str
MOMENTS = ["in forward", "between forward and backward", "in backward", "in the optimizer", "after the step"]


class Break(Exception):
    """The user's own."""


def setup(at: int = -1, moment: Moment = "", error: type[BaseException] = Break) -> Training:
    """A perceptron whose step of one number breaks off at one moment."""
    body, batch = mlp(depth=5), torch.randn(192, 64)
    model = nn.Sequential(body, nn.Tanh())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    now = {"moment": ""}

    def maybe(where: Moment) -> None:
        if now["moment"] == where:
            raise error(where)

    def backward(gradient: Tensor) -> Tensor:
        maybe("in backward")
        return gradient

    body[4].register_forward_hook(lambda *_: maybe("in forward"))
    body[4].register_forward_hook(lambda _m, _a, output: output.register_hook(backward) and None)
    optimizer.register_step_pre_hook(lambda *_: maybe("in the optimizer"))

    def step(number: int) -> Tensor:
        now["moment"] = moment if number == at else ""
        optimizer.zero_grad(set_to_none=True)
        loss = mean_square(model(batch))
        maybe("between forward and backward")
        loss.backward()
        optimizer.step()
        maybe("after the step")
        return loss.detach()

    return Training(step, [model], [optimizer])


def finish_anyway(training: Training, steps: int = STEPS) -> Outcome:
    """Do all steps; one that breaks off is passed over."""
    losses: list[Tensor] = []
    for number in range(steps):
        with suppress(Break):
            losses.append(training.step(number).clone())
    return Outcome(losses, training.state())


@contextmanager
def quiet() -> Iterator[None]:
    """A step that broke off and the next one look like one step that nobody planned for, which is said once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "elbowroom: (saved storage|no step of a training)", RuntimeWarning)
        yield


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("at", [0, 1, 3], ids=["first", "second", "planned"])
def test_a_loop_that_goes_on_after_a_broken_step_gets_the_same_numbers(at: int, moment: Moment) -> None:
    # given
    plain = finish_anyway(seeded(lambda: setup(at, moment)))
    budget = tight_budget(setup)
    # when
    with quiet(), er.within(budget, min_size=MIN_SIZE_BYTES) as room:
        inside = finish_anyway(seeded(lambda: setup(at, moment)))
    # then
    assert_equal(inside, plain)
    assert "plan" in [step.mode for step in room.steps]
    assert run_of(room)._executor.tier.held_bytes == 0


def broken_off(
    at: int, moment: Moment, error: type[BaseException]
) -> tuple[Room, weakref.ref[Tensor], dict[str, Tensor]]:
    """A loop that is left by an exception: its room, one of its activations, and what the training looks like then."""
    seen: list[weakref.ref[Tensor]] = []
    training = seeded(lambda: setup(at, moment, error))
    training.modules[0][1].register_forward_pre_hook(
        lambda _m, args: seen.append(weakref.ref(args[0].untyped_storage()))
    )
    with suppress(error), quiet(), er.within(tight_budget(setup), min_size=MIN_SIZE_BYTES) as room:
        for number in range(STEPS):
            training.step(number)
    return room, seen[-1], training.state()


def broken_off_plainly(at: int, moment: Moment, error: type[BaseException]) -> dict[str, Tensor]:
    training = seeded(lambda: setup(at, moment, error))
    with suppress(error):
        for number in range(STEPS):
            training.step(number)
    return training.state()


@pytest.mark.parametrize("moment", MOMENTS[1:])
@pytest.mark.parametrize("at", [0, 3], ids=["observed", "planned"])
@pytest.mark.parametrize("error", [Break, KeyboardInterrupt])
def test_a_loop_that_is_left_in_the_middle_of_a_step_leaves_nothing_behind(
    error: type[BaseException], at: int, moment: Moment
) -> None:
    # given
    plain = broken_off_plainly(at, moment, error)
    # when
    room, activation, state = broken_off(at, moment, error)
    gc.collect()
    # then
    assert activation() is None
    assert run_of(room)._executor.tier.held_bytes == 0
    assert not run_of(room)._executor._by_key
    assert state.keys() == plain.keys()
    assert all(same_bits(value, plain[name]) for name, value in state.items())


def graph_without_backward(model: nn.Module, batch: Tensor) -> None:
    model(batch)


def graph_with_a_retained_backward(model: nn.Module, batch: Tensor) -> None:
    mean_square(model(batch)).backward(retain_graph=True)


def graph_with_a_loop_through_python(model: nn.Module, batch: Tensor) -> None:
    loss = mean_square(model(batch))
    cycle = [loss]
    cycle.append(cycle)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("mode", ["observe", "plan", "keep"])
@pytest.mark.parametrize(
    "use",
    [graph_without_backward, graph_with_a_retained_backward, graph_with_a_loop_through_python],
    ids=lambda use: use.__name__,
)
def test_a_graph_that_nobody_holds_any_more_is_freed(use: Callable[[nn.Module, Tensor], None], mode: str) -> None:
    # given a model with an op that saves its own output, and one that saves its input
    seen: list[weakref.ref[torch.UntypedStorage]] = []
    training = seeded(setup)
    model, batch = (
        nn.Sequential(training.modules[0], nn.Sigmoid(), nn.GELU(), nn.Linear(64, 4), nn.Tanh()),
        torch.ones(192, 64),
    )
    for layer in list(model.children())[1:]:
        layer.register_forward_hook(lambda _m, _a, output: seen.append(weakref.ref(output.untyped_storage())))
    # when
    budget = 2**40 if mode == "keep" else tight_budget(setup)
    with quiet(), er.within(budget, min_size=MIN_SIZE_BYTES) as room:
        for number in range(0 if mode == "observe" else 4):
            training.step(number)
        assert [step.mode for step in room.steps[2:]] == ([] if mode == "observe" else [mode])
        use(model, batch)
        gc.collect()
        # then
        assert [storage for storage in seen if storage() is not None] == []
    assert run_of(room)._executor.tier.held_bytes == 0
