"""Clipping and gradient scalers use gradients that are away, some at a time: the same numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import elbowroom as er
from elbowroom.engine import parameters
from elbowroom.engine.gradient_hooks import GRAD
from elbowroom.engine.list_parts import joined, parted, takes_lists
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


CLIPS: dict[str, Clip] = {each.__name__: each for each in (by_norm, by_greatest, one_by_one, by_value, twice, by_hand)}
AWAY: list[int] = []


@pytest.fixture(autouse=True)
def _ram_loads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operators be seen from the first step on, as on CUDA."""
    monkeypatch.setattr(parameters, "_loads", lambda device: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)


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
    if name != "by_hand":
        assert moved_as_planned(room) >= {"gradient", "parameter"}
        assert [step.mode for step in room.steps].count("plan") >= STEPS // 2
        # all layers' gradients leave again in the observed step, and some at least in planned ones
        assert AWAY[0] == LAYERS
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
