"""Transforms of torch.func inside a room are left alone: the same numbers, no error, and nothing held for longer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import elbowroom as er
from elbowroom.capture.recording.never_moved import StorageSet
from elbowroom.capture.recording.observing_director import Observing
from elbowroom.engine.executor import Executor
from elbowroom.engine.saved_tensors import Hooks
from elbowroom.engine.tiers.base import HostTier
from tests.torch.helpers import MIN_SIZE_BYTES, SEED, Training, by_loss, mean_square, mlp, needs, ordinary, same_within

pytestmark = pytest.mark.long

pytestmark = [  # torch's own
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]

Weights = dict[str, Tensor]


def loss_of(model: nn.Module) -> Callable[[Weights, Tensor], Tensor]:
    return lambda weights, x: mean_square(functional_call(model, weights, (x,)))


def per_sample(model: nn.Module, x: Tensor) -> Tensor:
    weights = {name: p.detach() for name, p in model.named_parameters()}
    found = vmap(grad(loss_of(model)), in_dims=(None, 0))(weights, x)
    return torch.cat([each.flatten() for each in found.values()])


def forward_derivative(model: nn.Module, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangent = forward_ad.unpack_dual(model(dual)).tangent
    assert tangent is not None
    return tangent


USES: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "grad": lambda m, x: grad(lambda y: mean_square(m(y)))(x),
    "gradients of each sample": per_sample,
    "vmap": lambda m, x: vmap(m)(x),
    "vjp": lambda m, x: vjp(m, x)[1](x)[0],
    "jvp": lambda m, x: torch.stack(jvp(m, (x,), (x.cos(),))),
    "linearize": lambda m, x: linearize(m, x)[1](x),
    "jacrev": lambda m, x: jacrev(lambda y: m(y).sum(0))(x),
    "jacfwd": lambda m, x: jacfwd(lambda y: m(y[None])[0])(x[0]),
    "hessian": lambda m, x: hessian(lambda y: m(y).sum())(x[0]),
    "grad of grad": lambda m, x: grad(lambda y: grad(lambda z: mean_square(m(z)))(y).square().sum())(x),
    "forward-mode derivatives": forward_derivative,
    "a Jacobian of autograd, in one go": lambda m, x: torch.autograd.functional.jacobian(
        lambda y: m(y).sum(0), x, vectorize=True
    ),
}


@pytest.mark.filterwarnings("ignore:elbowroom. saved storage:RuntimeWarning")  # counted below
@pytest.mark.parametrize("use", USES)
def test_a_transform_beside_a_step_changes_no_number(use: str) -> None:
    # given a training whose loss reads what the transform gives
    def setup() -> Training:
        model = mlp()
        x, other = torch.randn(256, 64), torch.randn(4, 64)
        training = ordinary(model, x)
        before = training.step
        found = torch.zeros(())

        def step(i: int) -> Tensor:
            nonlocal found
            found = USES[use](model, other).detach().double().sum()
            return before(i) + found

        training.step = step
        return training

    # when
    room = same_within(setup, budget=lambda setup: needs(setup)[0])
    # then
    assert room.steps[0].swapped_out_bytes > 0
    if use != "linearize":  # torch traces anew what it linearizes, and keeps more of it while a step is recorded
        assert sum(step.mismatches for step in room.steps) == 0


def test_a_training_by_gradients_of_each_sample_gives_the_same_numbers() -> None:
    # given: each sample's gradient is clipped and their sum is the step's, as in differentially private training
    def setup() -> Training:
        model, batch = mlp(), torch.randn(32, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        each = vmap(grad_and_value(loss_of(model)), in_dims=(None, 0))

        def step(_: int) -> Tensor:
            weights = {name: p.detach() for name, p in model.named_parameters()}
            gradients, losses = each(weights, batch)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
            factors = (1 / norms).clamp(max=1)
            for name, p in model.named_parameters():
                p.grad = torch.einsum("n,n...->...", factors, gradients[name])
            optimizer.step()
            return losses.sum()

        return Training(step, [model], [optimizer])

    # when / then
    same_within(setup, budget=2**30)


def test_what_a_step_learns_through_a_transform_is_the_same() -> None:
    # given: the outer loss has gradients with respect to what the inner one was transformed with, as in MAML
    def setup() -> Training:
        model, batch = mlp(), torch.randn(96, 64)

        def loss(_: int) -> Tensor:
            weights: Weights = dict(model.named_parameters())
            inner = grad(loss_of(model))(weights, batch)
            moved = {name: w - 0.1 * inner[name] for name, w in weights.items()}
            return loss_of(model)(moved, batch.flip(0))

        return by_loss(loss, model, torch.optim.SGD(model.parameters(), lr=0.1))

    # when
    room = same_within(setup, budget=2**30)
    # then
    assert room.steps[0].swapped_out_bytes > 0  # what is outside of the transform goes on taking part


@pytest.mark.parametrize("use", ["jvp", "vmap", "hessian", "forward-mode derivatives"])
def test_a_transform_leaves_nothing_behind(use: str) -> None:
    # given
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Softmax(-1))
    inputs: list[weakref.ref[torch.UntypedStorage]] = []

    def once() -> None:
        x = torch.randn(96, 64)
        inputs.append(weakref.ref(x.untyped_storage()))
        USES[use](model, x)

    # when: nothing records, as torch's profiler keeps graphs that vmap made, without hooks too
    executor = Executor(HostTier())
    with Hooks(executor, Observing(executor, StorageSet()), MIN_SIZE_BYTES).installed():
        for _ in range(3):
            once()
    gc.collect()
    # then
    assert [ref() for ref in inputs] == [None, None, None]
    assert executor.tier.held_bytes == 0


def test_hooks_of_the_user_are_refused_by_transforms_as_ever() -> None:
    model = mlp()

    def step() -> None:
        with save_on_cpu():
            grad(lambda x: mean_square(model(x)))(torch.randn(4, 64))

    with er.within(2**30), pytest.raises(RuntimeError, match=r"don't yet support saved tensor hooks"):
        step()


def test_transforms_refuse_hooks_again_once_the_room_is_closed() -> None:
    # given
    before = torch.autograd.graph.disable_saved_tensors_hooks
    with er.within(2**30):
        assert torch.autograd.graph.disable_saved_tensors_hooks is not before
    # then
    assert torch.autograd.graph.disable_saved_tensors_hooks is before
