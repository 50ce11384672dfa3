"""Transforms of torch.func on a virtual device: they refuse hooks of saved tensors, and meet none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

from elbowroom.capture.virtual import VirtualDevice
from elbowroom.torch_compat.core import top_hooks
from tests.torch.virtual_gpu import H100

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
"""torch's own forward-mode formulas use it."""

Given = dict[str, torch.Tensor]


class Job:
    """A network with its parameters apart, and a batch."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4)).cuda()
        self.given = {name: each.detach() for name, each in self.net.named_parameters()}
        self.inputs = torch.randn(16, 64, device="cuda")
        self.targets = torch.zeros(16, dtype=torch.long, device="cuda")

    def out(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional_call(self.net, self.given, (inputs,))

    def loss(self, given: Given, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(self.net, given, (inputs,)), targets)

    def loss_of_one(self, given: Given, one: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.loss(given, one[None], target[None])


def ensemble(job: Job) -> torch.Tensor:
    stacked, buffers = stack_module_state([job.net, job.net, job.net])

    def one(given: Given, held: Given, inputs: torch.Tensor) -> torch.Tensor:
        return functional_call(job.net, (given, held), (inputs,))

    return vmap(one, in_dims=(0, 0, None))(stacked, buffers, job.inputs)


TRANSFORMS: dict[str, tuple[Callable[[Job], Any], tuple[int, ...]]] = {
    "grad": (lambda job: grad(job.loss)(job.given, job.inputs, job.targets)["0.weight"], (32, 64)),
    "grad_and_value": (lambda job: grad_and_value(job.loss)(job.given, job.inputs, job.targets)[1], ()),
    "of each sample": (
        lambda job: vmap(grad(job.loss_of_one), in_dims=(None, 0, 0))(job.given, job.inputs, job.targets)["0.weight"],
        (16, 32, 64),
    ),
    "jacrev": (lambda job: jacrev(job.out)(job.inputs[0]), (4, 64)),
    "jacfwd": (lambda job: jacfwd(job.out)(job.inputs[0]), (4, 64)),
    "hessian": (lambda job: hessian(lambda one: job.out(one).pow(2).sum())(job.inputs[0]), (64, 64)),
    "vjp": (lambda job: vjp(job.out, job.inputs)[1](torch.ones(16, 4, device="cuda"))[0], (16, 64)),
    "jvp": (lambda job: jvp(job.out, (job.inputs,), (job.inputs,))[1], (16, 4)),
    "ensemble": (ensemble, (3, 16, 4)),
    "twice": (
        lambda job: grad(lambda x: grad(lambda y: job.out(y).pow(2).sum())(x).pow(2).sum())(job.inputs),
        (16, 64),
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_gives_the_shape_it_gives_elsewhere(name: str) -> None:
    # given
    work, shape = TRANSFORMS[name]
    # when
    with VirtualDevice(H100, steps=None):
        made = work(Job())
        # then
        assert tuple(made.shape) == shape
        assert made.is_cuda


def test_the_devices_hooks_are_back_after_a_transform_and_after_one_that_fails() -> None:
    with VirtualDevice(H100, steps=None):
        # given
        job, before = Job(), top_hooks()
        # when
        grad(job.loss)(job.given, job.inputs, job.targets)
        after = top_hooks()
        with pytest.raises(ZeroDivisionError):
            grad(lambda _: 1 / 0)(job.inputs)
        # then
        assert before is not None
        assert after == before
        assert top_hooks() == before


def test_hooks_of_the_script_are_refused_as_without_the_device() -> None:
    with VirtualDevice(H100, steps=None):
        job = Job()
        # when, then
        with (
            torch.autograd.graph.save_on_cpu(),
            pytest.raises(RuntimeError, match="don't yet support saved tensor hooks"),
        ):
            grad(job.loss)(job.given, job.inputs, job.targets)


def test_a_training_whose_gradients_a_transform_makes_is_captured() -> None:
    # given
    with VirtualDevice(H100, steps=3) as device:
        job = Job()
        optimizer = torch.optim.Adam(job.net.parameters())
        for _ in range(10):
            gradients = grad(job.loss)(job.given, job.inputs, job.targets)
            for name, each in job.net.named_parameters():
                each.grad = gradients[name]
            optimizer.step()
            job.net(job.inputs)
    # then
    assert len(device.trace().steps) == 3
