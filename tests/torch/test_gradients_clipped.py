"""Clipping and gradient scalers use gradients that are away, some at a time: the same numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import elbowroom as er
from elbowroom.engine.gradient_hooks import GRAD
from elbowroom.engine.lent_gradients import LentGradients
from elbowroom.engine.list_parts import joined, parted, takes_lists
from elbowroom.engine.optimizer_parts import Found
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Training,
    assert_equal,
    finish,
    mean_square,
    mlp,
    moved_as_planned,
    same_within,
    seeded,
    train,
)

STEPS = 8
LAYERS = 6
PARAMETERS: tuple[Means, ...] = ("swap", "state", "gradient", "parameter")
Clip = Callable[[nn.Module, torch.optim.Optimizer], Any]
ATEN: Any = torch.ops.aten


def by_norm(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    return clip_grad_norm_(model.parameters(), 0.01)


def by_greatest(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    return clip_grad_norm_(model.parameters(), 0.01, norm_type=float("inf"))


def one_by_one(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    return clip_grad_norm_(model.parameters(), 0.01, foreach=False)


def by_value(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    clip_grad_value_(model.parameters(), 1e-4)


def twice(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    return clip_grad_norm_(model.parameters(), 0.01) + clip_grad_norm_(model.parameters(), 0.001)


def by_hand(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    """Code of the user gets gradients whole, after torch's has had them without bytes."""
    norm = clip_grad_norm_(model.parameters(), 0.01)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return norm + torch.stack([each.sum() for each in gradients]).sum() + gradients[0].numpy().sum()


def scaled_by_hand(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    """A loop for the norm, and one that scales."""
    total = torch.zeros(())
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.detach().norm() ** 2
    for p in model.parameters():
        p.grad.mul_(0.01 / (total.sqrt() + 1e-6))  # pyright: ignore[reportOptionalMemberAccess]
    return total


def logged(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    """A variable still has the gradient before as the next one is read."""
    norms: dict[str, float] = {}
    for name, p in model.named_parameters():
        gradient = p.grad
        if gradient is not None:
            norms[name] = gradient.norm().item()
    return torch.tensor(list(norms.values())).sum()


def with_noise(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    for p in model.parameters():
        if p.grad is not None:
            p.grad += 1e-3 * torch.randn_like(p.grad)


def replaced(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    for p in model.parameters():
        p.grad = None if p.grad is None else p.grad.clamp(-1e-4, 1e-4)


def past_operators(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    """NumPy writes to the memory, which no version counts."""
    for p in model.parameters():
        if p.grad is not None:
            array = p.grad.numpy()
            array *= 0.5


def kept_for_later(model: nn.Module, _: torch.optim.Optimizer) -> Any:
    """Views of the first ones are read once all others have been."""
    views = [p.grad[:1] for p in list(model.parameters())[:2] if p.grad is not None]
    norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
    return torch.stack([*norms, *(each.sum() for each in views)]).sum()


LOOPS = (scaled_by_hand, logged, with_noise, replaced, past_operators, kept_for_later)
"""Loops of a user over gradients. Those that leave again are the first three."""
CLIPS: dict[str, Clip] = {
    each.__name__: each for each in (by_norm, by_greatest, one_by_one, by_value, twice, by_hand, *LOOPS)
}
AWAY: list[int] = []


def training(clip: Clip, kind: type[torch.optim.Optimizer]) -> Training:
    model, inputs = mlp(96, LAYERS), torch.randn(4, 96)
    optimizer = kind(model.parameters(), lr=1e-2)  # pyright: ignore[reportCallIssue]

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        norm = clip(model, optimizer)
        found = [GRAD.__get__(p) for p in model.parameters()]
        AWAY.append(sum(each is not None and RAW_STORAGE(each).nbytes() == 0 for each in found))
        found.clear()
        optimizer.step()
        return loss.detach() if norm is None else torch.stack([loss.detach(), norm.detach()])

    return Training(step, [model], [optimizer])


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("name", CLIPS)
def test_gradients_that_are_clipped_leave_again_and_keep_their_bits(
    name: str, kind: type[torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_budget, "_ways", lambda request: [request])  # plans move everything
    plain = train(lambda: training(CLIPS[name], kind), STEPS)
    gc.collect()
    AWAY.clear()
    # when
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=PARAMETERS) as room:
        inside = finish(seeded(lambda: training(CLIPS[name], kind)), STEPS)
    # then
    assert_equal(inside, plain)
    if CLIPS[name] not in (by_hand, replaced, past_operators, kept_for_later):
        assert moved_as_planned(room) >= {"gradient", "parameter"}
        assert [step.mode for step in room.steps].count("plan") >= STEPS // 2
        # gradients leave again in the observed step, but for the last ones that a loop had, and in planned ones
        assert AWAY[0] >= (LAYERS if CLIPS[name] not in LOOPS else LAYERS - 2)
        assert max(AWAY[-STEPS // 2 :]) > 0


@pytest.mark.parametrize("clips", [False, True])
def test_a_gradient_scaler_finds_gradients_that_are_away(clips: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_budget, "_ways", lambda request: [request])

    def setup() -> Training:
        model, inputs = mlp(96, LAYERS), torch.randn(4, 96)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(inputs))
            scaler.scale(loss).backward()
            if clips:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.01)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return Training(step, [model], [optimizer])

    room = same_within(setup, STEPS, 100 << 30, planner="on_demand", allow=PARAMETERS)
    assert moved_as_planned(room) >= {"gradient", "parameter"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, float("inf")])
def test_norms_in_parts_are_those_of_the_whole(dtype: torch.dtype, order: float) -> None:
    shapes = [(3,), (96, 96), (1000,), (257, 33), (1,), (16, 3, 3, 3), (1 << 16,), (5, 7)]
    tensors = [torch.randn(shape).to(dtype) for shape in shapes]
    op = ATEN._foreach_norm.Scalar
    # when
    calls = parted((tensors, order), {})
    # then
    assert takes_lists(op)
    assert calls is not None
    assert len(calls) > 1
    found = joined([op(*args, **kwargs) for args, kwargs in calls])
    assert all(torch.equal(a, b) for a, b in zip(found, op(tensors, order), strict=True))


def test_lists_that_torch_may_treat_in_two_ways_are_not_parted() -> None:
    dense = [torch.randn(8, 8) for _ in range(4)]
    assert parted((dense, 2.0), {}) is not None
    # another dtype, strides, integers, one number for each, nothing at all, one tensor
    assert parted(([*dense, torch.randn(8, 8).double()], 2.0), {}) is None
    assert parted(([*dense, torch.randn(8, 8).t()], 2.0), {}) is None
    assert parted(([*dense, torch.randn(8, 16)[:, ::2]], 2.0), {}) is None
    assert parted(([each.int() for each in dense], 2.0), {}) is None
    assert parted((dense, dense, dense, torch.ones(4)), {}) is None
    assert parted(([], 2.0), {}) is None
    assert parted((dense[:1], 2.0), {}) is None
    # and no operator with a number for each tensor, or that is over no lists
    assert not takes_lists(ATEN._foreach_add_.ScalarList)
    assert not takes_lists(ATEN.cat.default)


def test_gradients_that_were_read_stay_once_operators_run_on_another_stream() -> None:
    # given three gradients that were read on the first stream, one after the other
    storages = {key: torch.empty(8).untyped_storage() for key in "abc"}
    entries = {key: SimpleNamespace(alive=lambda key=key: storages[key], home=0, n=1) for key in "abc"}
    away = SimpleNamespace(entries=entries, left=[], arrive=entries.pop, changed=lambda key: None)
    away.leave = lambda key, *_: away.left.append(key)
    executor = SimpleNamespace(stream=lambda: stream[0], beside_the_plan=nullcontext)
    conductor = SimpleNamespace(aside=nullcontext, known=lambda: None)
    stream = [0]
    lent = LentGradients(
        cast("Any", away),
        cast("Any", executor),
        cast("Any", conductor),
        lambda key: Found(storages[str(key)], torch.float32, 32, held=False),
    )
    assert lent.lend("a")
    assert lent.lend("b")
    assert away.left == ["a"]
    # when an operator runs on another one, where a kernel may still use the last
    stream[0] = 1
    lent.note_stream()
    stream[0] = 0
    # then it does not leave, and on that stream none is lent
    assert lent.lend("c")
    assert away.left == ["a"]
    stream[0] = 1
    entries["d"] = SimpleNamespace(alive=lambda: storages["a"], home=0, n=1)
    assert not lent.lend("d")
    assert "d" in entries
