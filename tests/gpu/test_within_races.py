"""On a GPU: copies and kernels made slow in turn, and the numbers stay those of plain training, bit for bit."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.planners import DEFAULT_MEANS, Means
from elbowroom.run.room import Room
from tests.gpu.budgets import within_or_least
from tests.gpu.slow import needs_graphs, needs_kernels, sleep, slow

pytestmark = pytest.mark.gpu

WITH_PARAMETERS: tuple[Means, ...] = (*DEFAULT_MEANS, "parameter")
STEPS = 8
"""Recomputes are learnt and proven in the first six."""
Optimizer = Callable[[Any], torch.optim.Optimizer]


class Sleeps(torch.autograd.Function):
    """Holds up the stream in forward, in backward or in both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: bool, backward: bool) -> Tensor:
        ctx.backward_sleeps = backward
        if forward:
            sleep()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        if ctx.backward_sleeps:
            sleep()
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


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def fused_adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def training(
    forward: bool = False, backward: bool = False, optimizer: Optimizer = plain_sgd, batch_size: int = 8192
) -> tuple[Callable[[], Tensor], nn.Module]:
    torch.manual_seed(7)
    model = Layers(forward, backward).cuda()
    changed = optimizer(model.parameters())
    batch = torch.randn(batch_size, 512, device="cuda")

    def step() -> Tensor:
        changed.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        changed.step()
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


def share_of_plain(share: float, **settings: Any) -> int:
    """Of the reserved bytes of plain training."""
    step, _ = training(**settings)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    return int(share * torch.cuda.max_memory_reserved())


def compared(
    forward: bool = False, backward: bool = False, share: float = 0.8, allow: Sequence[Means] = DEFAULT_MEANS, **of: Any
) -> Room:
    """Train with and without a budget, and see the same bits; the room, which has ended."""
    plain = outcome(*training(**of))
    budget = share_of_plain(share, **of)
    gc.collect()
    torch.cuda.empty_cache()
    inside, room = within_or_least(lambda given: trained(given, allow, forward, backward, **of), budget)
    assert [step.mismatches for step in room.steps] == [0] * STEPS
    for one, other in zip(inside, plain, strict=True):
        assert torch.equal(one, other)
    assert room.plan is not None
    return room


def trained(budget: int, allow: Sequence[Means], forward: bool, backward: bool, **of: Any) -> tuple[list[Tensor], Room]:
    """Train within a budget."""
    step, model = training(forward, backward, **of)
    with er.within(budget, allow=allow) as room:
        return outcome(step, model), room


@needs_kernels
def test_nothing_slow() -> None:
    room = compared()
    assert room.plan is not None
    assert room.plan.swaps


@needs_kernels
@pytest.mark.parametrize("which", ["out", "back"])
def test_slow_copies_are_waited_for(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    slow(monkeypatch, which)
    assert compared().steps[-1].swapped_out_bytes > 0


@needs_kernels
@pytest.mark.parametrize("which", ["nothing", "out", "back"])
def test_optimizer_states_that_are_away_come_back_whole(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    # given 64 samples of 512 in 16 layers: nearly all that is held are parameters, gradients and states
    if which != "nothing":
        slow(monkeypatch, which)
    # when
    room = compared(share=0.75, optimizer=adamw, batch_size=64)
    # then
    assert room.plan is not None
    assert room.trace is not None
    states = {storage for part in room.trace.parts for storage in part.storages}
    assert any(swap.storage in states for swap in room.plan.swaps)


@needs_kernels
@pytest.mark.filterwarnings("ignore:elbowroom. .* of parameters are on the host now:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:elbowroom. .* of optimizer states stay on the host:RuntimeWarning")
@pytest.mark.parametrize("which", ["nothing", "out", "back", "kernels"])
@pytest.mark.parametrize("optimizer", [adamw, fused_adamw, momentum], ids=["adamw", "fused", "momentum"])
def test_parameters_that_are_away_come_back_whole(
    monkeypatch: pytest.MonkeyPatch, which: str, optimizer: Optimizer
) -> None:
    # given what is mostly parameters, gradients and states
    if which in ("out", "back"):
        slow(monkeypatch, which)
    late = which == "kernels"
    # when
    room = compared(late, late, share=0.5, allow=WITH_PARAMETERS, optimizer=optimizer, batch_size=64)
    # then
    assert room.plan is not None
    assert room.trace is not None
    parameters = {n for n, each in enumerate(room.trace.storages) if each.category == "parameter"}
    assert any(swap.storage in parameters for swap in room.plan.swaps)


@needs_kernels
@pytest.mark.parametrize(("forward", "backward"), [(False, False), (True, False), (False, True)])
def test_what_is_recomputed_has_the_same_bits(forward: bool, backward: bool) -> None:
    room = compared(forward, backward, allow=["recompute"])
    assert room.steps[-1].recomputed_bytes > 0


@needs_kernels
@pytest.mark.parametrize(("forward", "backward"), [(True, False), (False, True), (True, True)])
def test_slow_kernels_are_waited_for_by_copies(forward: bool, backward: bool) -> None:
    assert compared(forward, backward).steps[-1].swapped_out_bytes > 0


@needs_kernels
def test_training_in_a_stream_of_the_user_gives_the_same_numbers() -> None:
    plain = outcome(*training())
    budget = share_of_plain(0.8)
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
    budget = share_of_plain(0.8)
    # when
    with pytest.raises(er.Infeasible, match=r"1,024\.00 TiB more were asked for"):
        trained_within(budget, step, then=lambda: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"))
    # then
    step()


@needs_graphs
def test_a_step_that_is_captured_as_a_graph_is_refused() -> None:
    step, _ = training()
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with er.within("90%"), pytest.raises(er.UsageError, match="CUDA graph"), torch.cuda.graph(graph):
        step()
