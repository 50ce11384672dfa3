"""Tensors of subclasses take part by the storages behind them: the same bits, and the bytes leave."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

import elbowroom as er
from elbowroom.planners import Means
from elbowroom.run.room import run_of
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Setup,
    Training,
    assert_same_within,
    assert_swapped,
    by_loss,
    finish,
    mean_square,
    mlp,
    ordinary,
    same_within,
    seeded,
    telling,
    tight_budget,
    train_within,
)


def two(tensor: Tensor) -> Any:
    """Another one beside it, so that a mix-up of the two shows."""
    return TwoTensor(tensor.detach().clone(), tensor.detach() * 0.5)


def both(tensor: Any) -> Tensor:
    """The two inside, as one plain tensor."""
    return torch.cat([tensor.a.flatten(), tensor.b.flatten()]) if isinstance(tensor, TwoTensor) else tensor.flatten()


def with_parameters(make: Callable[[Tensor], Any]) -> nn.Module:
    model = mlp()
    for layer in model:
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, nn.Parameter(make(parameter)))
    return model


def of_two() -> Setup:
    """All parameters and the batch are TwoTensors; what a step returns tells both halves of each gradient."""

    def setup() -> Training:
        model, batch = with_parameters(two), two(torch.randn(96, 64))
        return telling(model, batch, torch.optim.SGD(model.parameters(), lr=0.1), both)

    return setup


@pytest.mark.parametrize("allow", [["swap"], ["swap", "recompute"]], ids=["swapped", "recomputed too"])
def test_tensors_that_wrap_two_others_are_swapped_by_those(allow: list[Means]) -> None:
    # given
    setup = of_two()
    # when
    room = same_within(setup, 9, allow=allow)
    # then
    assert room.steps[-1].mode == "plan"
    # five activations of 96 x 64 floats are saved, each of them twice; the last need not leave
    assert room.steps[-1].swapped_out_bytes + room.steps[-1].recomputed_bytes >= 2 * 2 * 96 * 64 * 4
    assert sum(step.mismatches for step in room.steps) == 0
    assert not run_of(room).passed


def test_parameters_that_wrap_others_are_never_moved() -> None:
    # given
    setup = of_two()
    # when
    _, room = train_within(setup, budget=2**30)
    # then: weights of 64 x 64 floats stay, activations of 96 x 64 leave in the observed step
    assert room.trace is not None
    saved = {room.trace.storages[save.storage].size_bytes for save in room.trace.saves}
    assert 96 * 64 * 4 in saved
    assert 64 * 64 * 4 not in saved


class Noted(Tensor):
    """Bytes of its own, with a note: as MONAI's MetaTensor."""


def test_tensors_that_only_add_attributes_are_swapped() -> None:
    # given: whatever is made from a noted tensor is noted, so all that autograd saves of inputs is
    setup = lambda: ordinary(mlp(), torch.randn(96, 64).as_subclass(Noted))  # noqa: E731
    # when
    room = same_within(setup)
    # then
    assert_swapped(room)
    assert not run_of(room).passed


def test_jagged_tensors_are_swapped_by_their_values() -> None:
    # given
    def setup() -> Training:
        model, rows = mlp(), [torch.randn(n, 64) for n in (20, 50, 30)]

        def loss(_: int) -> Tensor:
            return mean_square(model(torch.nested.nested_tensor(rows, layout=torch.jagged)).values())

        return by_loss(loss, model, torch.optim.AdamW(model.parameters()))

    # when / then
    assert_same_within(setup)


class Opaque(Tensor):
    """Wraps a tensor and does not say so."""

    held: Tensor

    @staticmethod
    def __new__(cls: type, held: Tensor) -> Any:
        made = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bare = tree_map(lambda each: each.held if isinstance(each, Opaque) else each, (args, kwargs or {}))
        return tree_map(lambda each: Opaque(each) if isinstance(each, Tensor) else each, func(*bare[0], **bare[1]))


def test_tensors_that_do_not_say_what_they_wrap_stay_and_are_counted_and_said_once() -> None:
    # given
    weight = torch.randn(64, 64, requires_grad=True)

    def step() -> Tensor:
        found: Any = torch.autograd.grad((Opaque(torch.ones(96, 64)) @ weight).sin().sum(), weight)[0]
        return found.held

    # when
    plain = step()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with er.within(2**30, min_size=MIN_SIZE_BYTES) as room:
            found = [step(), step()]
            room.end_step()
    # then: each step saves the batch and what sin was given
    assert all(torch.equal(each, plain) for each in found)
    assert dict(run_of(room).passed) == {"Opaque": 4}
    (message,) = [str(each.message) for each in told if "class Opaque" in str(each.message)]
    assert message.startswith("elbowroom: large saved tensors of class Opaque stay on the device")


# In-place changes, which the tensors inside do not count


@pytest.mark.filterwarnings(
    "ignore:elbowroom. (saved storage|no step of a training):RuntimeWarning"
)  # as the mistake is unlike
@pytest.mark.parametrize("when", ["observe", "plan"])
def test_a_wrapping_tensor_that_was_changed_in_place_is_refused_as_autograd_does(when: str) -> None:
    # given
    setup = of_two()

    def mistake() -> None:
        x = two(torch.ones(96, 64)).requires_grad_()
        y = x.exp()
        z = y * y
        with torch.no_grad():
            y.add_(1)
        z.sum().backward()

    # when
    with pytest.raises(RuntimeError) as expected:
        mistake()
    budget = tight_budget(setup)
    with er.within(budget, min_size=MIN_SIZE_BYTES):
        finish(seeded(setup), 0 if when == "observe" else 4)
        with pytest.raises(RuntimeError) as found:
            mistake()
    # then
    assert "modified by an inplace operation" in str(expected.value)
    assert "modified by an inplace operation" in str(found.value)


def test_bytes_that_a_wrapping_tensor_changed_are_saved_anew() -> None:
    # given: y is saved, changed in place, and saved again; only the second of the graphs is used
    def setup() -> Training:
        model, batch = with_parameters(two), two(torch.randn(96, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            y = model(batch) + 1
            dropped = y.detach().requires_grad_() * y.detach()
            with torch.no_grad():
                y.add_(1)
            z = y.detach()
            loss = mean_square(y * z.a.sin().mean()) + mean_square(TwoTensor(z.a, z.b) * y)
            loss.backward()
            optimizer.step()
            del dropped
            return both(loss.detach())

        return Training(step)

    # when / then
    same_within(setup)


def test_a_graph_of_wrapping_tensors_that_is_dropped_gives_everything_back() -> None:
    # given
    model, batch = with_parameters(two), two(torch.randn(96, 64))
    # when
    with er.within(2**30, min_size=MIN_SIZE_BYTES) as room:
        loss = mean_square(model(batch))
        held = run_of(room)._executor.tier.held_bytes
        del loss
        left = run_of(room)._executor.tier.held_bytes
        mean_square(model(batch)).backward()
        room.end_step()
    # then
    assert held > 0
    assert left == 0
