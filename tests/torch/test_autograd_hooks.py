"""What users and torch itself do with saved tensors goes on working: hooks, checkpoints, functions of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import elbowroom as er
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Training,
    assert_equal,
    assert_same_within,
    by_loss,
    mean_square,
    mlp,
    ordinary,
    same_within,
    seeded,
    train,
    train_within,
)

Block = Callable[[nn.Module, Tensor], Tensor]


class Blocks(nn.Module):
    """Blocks, every second of which is run in its own way."""

    def __init__(self, run: Block) -> None:
        super().__init__()
        self.run = run
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = self.run(block, x) if number % 2 else block(x)
        return x


def on_cpu(block: nn.Module, x: Tensor) -> Tensor:
    with save_on_cpu():
        return block(x)


def as_halves(block: nn.Module, x: Tensor) -> Tensor:
    """Hooks that change what is saved, so that it matters whose are used."""
    with saved_tensors_hooks(lambda t: t.to(torch.float16), lambda t: t.to(torch.float32)):
        return block(x)


def in_a_list(block: nn.Module, x: Tensor) -> Tensor:
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        kept.append(tensor.detach().clone())
        return len(kept) - 1

    with saved_tensors_hooks(pack, lambda number: kept[number]):
        return block(x)


def one_inside_the_other(block: nn.Module, x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t.clone(), lambda t: t), save_on_cpu():
        return block(x)


def recomputed(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)


def recomputed_reentrantly(block: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=True)


def recomputed_twice_over(block: nn.Module, x: Tensor) -> Tensor:
    def outer(y: Tensor) -> Tensor:
        return checkpoint(block, y, use_reentrant=False) * 2

    return checkpoint(outer, x, use_reentrant=False)


RUNS = [on_cpu, as_halves, in_a_list, one_inside_the_other, recomputed, recomputed_reentrantly, recomputed_twice_over]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_blocks_with_hooks_or_checkpoints_of_their_own_give_the_same_numbers(run: Block) -> None:
    def setup() -> Training:
        return ordinary(Blocks(run), torch.randn(128, 64))

    assert_same_within(setup)


@pytest.mark.parametrize("run", [recomputed, recomputed_reentrantly], ids=lambda run: run.__name__)
def test_checkpoints_and_accumulation_together_give_the_same_numbers(run: Block) -> None:
    def setup() -> Training:
        model, batches = Blocks(run), torch.randn(3, 96, 64)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            losses = []
            for batch in batches:
                loss = mean_square(model(batch)) / len(batches)
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            return torch.stack(losses)

        return Training(step, [model], [optimizer])

    assert_same_within(setup)


def test_saving_on_cpu_around_the_whole_step_gives_the_same_numbers() -> None:
    def setup() -> Training:
        training = ordinary(mlp(), torch.randn(96, 64))
        bare = training.step

        def step(number: int) -> Tensor:
            with save_on_cpu():
                return bare(number)

        training.step = step
        return training

    room = same_within(setup, budget=2**30, allow=["swap"])

    # the user's hooks see every tensor, so there is nothing to swap (but optimizer states, which may not here)
    assert sum(step.swapped_out_bytes for step in room.steps) == 0


def test_hooks_switched_off_by_the_user_say_so_as_they_do_without_elbowroom() -> None:
    def step() -> None:
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            mlp()(torch.randn(4, 64))

    with er.within(2**30), pytest.raises(RuntimeError, match="not here"):
        step()


# Functions of one's own


class Everything(torch.autograd.Function):
    """Saves inputs, outputs, an intermediate, a tensor that is none of them, and things that are no tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, power: float) -> tuple[Tensor, Tensor]:
        between = (x @ weight).tanh()
        out, mask = between**2 + x, between > 0
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(x, weight, between, out, mask, torch.full((40, 40), power))
        ctx.power, ctx.kept = power, between * 2
        ctx.set_materialize_grads(False)
        return out, mask

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _mask: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, between, out, mask, full = ctx.saved_tensors
        inner = gradient * ctx.kept * (1 - between**2) + out * 1e-3 * mask + full.mean() - ctx.power
        return gradient + inner @ weight.t(), x.t() @ inner, None


class Changes(torch.autograd.Function):
    """Changes its input in place and saves the result, twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.exp_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        first, second = ctx.saved_tensors
        return gradient * (first + second) / 2


class Twice(torch.autograd.Function):
    """Can be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x


class NewStyle(torch.autograd.Function):
    """With a setup_context of its own."""

    @staticmethod
    def forward(x: Tensor, scale: Tensor) -> Tensor:
        return x.sin() * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, scale, output = ctx.saved_tensors
        return gradient * x.cos() * scale, (gradient * output / scale).sum()


class Own(nn.Module):
    """A function of one's own after each linear layer."""

    def __init__(self, call: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.weights = nn.ParameterList(torch.randn(64, 64) * 0.1 for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer, weight in zip(self.layers, self.weights, strict=True):
            x = self.call(layer(x), weight)
        return x


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "saves everything": lambda x, weight: Everything.apply(x, weight, 0.5)[0],
    "changes its input": lambda x, weight: Changes.apply(x.tanh() @ weight),
    "can be differentiated twice": lambda x, weight: Twice.apply(x @ weight),
    "has a setup_context": lambda x, weight: NewStyle.apply(x @ weight, weight[0, 0].exp()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_ones_own_gives_the_same_numbers(name: str) -> None:
    def setup() -> Training:
        return ordinary(Own(FUNCTIONS[name]), torch.randn(96, 64))

    assert_same_within(setup)


def test_a_function_of_ones_own_is_differentiated_twice_to_the_same_numbers() -> None:
    def setup() -> Training:
        model, batch = Own(FUNCTIONS["can be differentiated twice"]), torch.randn(96, 64)

        def loss(_: int) -> Tensor:
            x = batch.clone().requires_grad_()
            (slope,) = torch.autograd.grad(mean_square(model(x)), x, create_graph=True)
            return mean_square(slope) + mean_square(model(batch))

        return by_loss(loss, model, torch.optim.SGD(model.parameters(), lr=0.01))

    assert_same_within(setup)


def test_a_saved_tensor_that_is_changed_by_the_function_that_reads_it_counts_as_it_does_without_hooks() -> None:
    # given a function whose backward changes what it saved, as some fused kernels do; and a graph that is kept
    class Spoils(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.exp())
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (saved,) = ctx.saved_tensors
            saved.data.mul_(0.5)
            return gradient * saved

    def setup() -> Training:
        model, batch = mlp(), torch.randn(96, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(Spoils.apply(model(batch)))
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])

    # when
    plain = train(setup)
    inside, _ = train_within(setup, budget=2**30)
    with er.within(2**30, min_size=MIN_SIZE_BYTES):
        training = seeded(setup)
        first = training.step(0)

    # then
    assert_equal(inside, plain)
    assert torch.equal(first, plain.losses[0])
