"""On a GPU: copies and kernels made slow in turn, and the numbers stay those of plain training, bit for bit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.runtime.streams import CudaStreams

pytestmark = pytest.mark.gpu

SLEEP_CYCLES = 2_000_000
"""About a millisecond: longer than any copy or kernel of these models."""
STEPS = 6


class Sleeps(torch.autograd.Function):
    """Holds up the stream in forward, in backward or in both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: bool, backward: bool) -> Tensor:
        ctx.backward_sleeps = backward
        if forward:
            torch.cuda._sleep(SLEEP_CYCLES)  # pyright: ignore[reportAttributeAccessIssue]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        if ctx.backward_sleeps:
            torch.cuda._sleep(SLEEP_CYCLES)  # pyright: ignore[reportAttributeAccessIssue]
        return gradients[0], None, None


class Layers(nn.Module):
    """Linear layers, each held up as told."""

    def __init__(self, forward: bool, backward: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(16))
        self.sleeps = forward, backward

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = Sleeps.apply(torch.tanh(layer(x)), *self.sleeps)  # pyright: ignore[reportAssignmentType]
        return x


def training(forward: bool = False, backward: bool = False) -> tuple[Callable[[], Tensor], nn.Module]:
    torch.manual_seed(7)
    model = Layers(forward, backward).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(8192, 512, device="cuda")

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model


def outcome(step: Callable[[], Tensor], model: nn.Module) -> list[Tensor]:
    losses = [step().cpu() for _ in range(STEPS)]
    return [*losses, *(p.detach().cpu() for p in model.parameters())]


def trained_within(budget: int, step: Callable[[], Tensor], then: Callable[[], object] = lambda: None) -> None:
    """Some steps within a budget, and something else in the end."""
    with er.within(budget):
        for _ in range(STEPS):
            step()
        then()


def least_budget() -> int:
    """Reserved bytes of plain training, times what lets it run only with most storages away."""
    step, _ = training()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    return int(0.8 * torch.cuda.max_memory_reserved())


def slow(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """Hold up each copy of one of the two streams before it begins."""
    copy = CudaStreams.copy

    def slowly(self: CudaStreams, target: Tensor, source: Tensor, stream: Any) -> None:
        if stream == getattr(self, which):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(SLEEP_CYCLES)  # pyright: ignore[reportAttributeAccessIssue]
        copy(self, target, source, stream)

    monkeypatch.setattr(CudaStreams, "copy", slowly)


def compared(forward: bool = False, backward: bool = False) -> er.Plan:
    """Train with and without a budget, and see the same bits; the plan that was followed."""
    plain = outcome(*training())
    budget = least_budget()
    gc.collect()
    torch.cuda.empty_cache()
    step, model = training(forward, backward)
    with er.within(budget) as room:
        inside = outcome(step, model)
    assert [step.mismatches for step in room.steps] == [0] * STEPS
    for one, other in zip(inside, plain, strict=True):
        assert torch.equal(one, other)
    assert room.plan is not None
    return room.plan


def test_nothing_slow() -> None:
    assert compared().swaps


@pytest.mark.parametrize("which", ["out", "back"])
def test_slow_copies_are_waited_for(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    slow(monkeypatch, which)
    assert compared().swaps


@pytest.mark.parametrize(("forward", "backward"), [(True, False), (False, True), (True, True)])
def test_slow_kernels_are_waited_for_by_copies(forward: bool, backward: bool) -> None:
    assert compared(forward, backward).swaps


def test_training_in_a_stream_of_the_user_gives_the_same_numbers() -> None:
    plain = outcome(*training())
    budget = least_budget()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step, model = training()
        with er.within(budget):
            inside = outcome(step, model)
    for one, other in zip(inside, plain, strict=True):
        assert torch.equal(one, other)


def test_a_budget_that_cannot_be_met_says_so_and_leaves_nothing_behind() -> None:
    # given
    step, _ = training()
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    # when
    with pytest.raises(er.Infeasible) as caught:
        trained_within(8 * 2**20, step)
    # then
    assert caught.value.least_feasible_bytes > 8 * 2**20
    del caught
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before
    step()


def test_memory_that_runs_out_in_the_users_code_ends_the_room_cleanly() -> None:
    # given
    step, _ = training()
    budget = least_budget()
    # when
    with pytest.raises(torch.OutOfMemoryError):
        trained_within(budget, step, then=lambda: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"))
    # then
    step()


def test_a_step_that_is_captured_as_a_graph_is_refused() -> None:
    step, _ = training()
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with er.within("90%"), pytest.raises(er.UsageError, match="CUDA graph"), torch.cuda.graph(graph):
        step()
