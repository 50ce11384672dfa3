"""Steps of trainings that have no optimizer of torch: they end where parameters changed after a backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn as nn

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100

Training = Callable[[int], None]


def steps_of(train: Training, times: int = 4) -> VirtualDevice:
    """A device on which a training ran, all its steps."""
    with VirtualDevice(H100, steps=None) as device:
        train(times)
    return device


def batch() -> torch.Tensor:
    return torch.randn(8, 64).cuda()


def in_place(times: int) -> None:
    net = nn.Linear(64, 64).cuda()
    for _ in range(times):
        net(batch()).pow(2).mean().backward()
        with torch.no_grad():
            for each in net.parameters():
                assert each.grad is not None
                each -= 0.1 * each.grad  # noqa: PLW2901
                each.grad = None


def through_data(times: int) -> None:
    net = nn.Linear(64, 64).cuda()
    for _ in range(times):
        net.zero_grad()
        net(batch()).pow(2).mean().backward()
        for each in net.parameters():
            assert each.grad is not None
            each.data.add_(each.grad, alpha=-0.1)


def with_new_data(times: int) -> None:
    net = nn.Linear(64, 64).cuda()
    for _ in range(times):
        net.zero_grad()
        net(batch()).pow(2).mean().backward()
        for each in net.parameters():
            assert each.grad is not None
            each.data = each.data - 0.1 * each.grad


def with_lists(times: int) -> None:
    net = nn.Linear(64, 64).cuda()
    momenta = [torch.zeros_like(each) for each in net.parameters()]
    for _ in range(times):
        net(batch()).pow(2).mean().backward()
        with torch.no_grad():
            gradients = [each.grad for each in net.parameters() if each.grad is not None]
            torch._foreach_mul_(momenta, 0.9)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_add_(momenta, gradients)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_add_(list(net.parameters()), momenta, alpha=-0.1)  # pyright: ignore[reportPrivateImportUsage]
        net.zero_grad()


def with_new_leaves(times: int) -> None:
    weight = torch.randn(64, 64, device="cuda", requires_grad=True)
    for _ in range(times):
        (batch() @ weight).pow(2).mean().backward()
        assert weight.grad is not None
        weight = (weight - 0.1 * weight.grad).detach().requires_grad_()


def with_gradients_asked_for(times: int) -> None:
    weights = [torch.randn(64, 64, device="cuda", requires_grad=True) for _ in range(2)]
    for _ in range(times):
        loss = (batch() @ weights[0] @ weights[1]).pow(2).mean()
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.data.sub_(gradient, alpha=0.1)


def with_transforms(times: int) -> None:
    net = nn.Linear(64, 64).cuda()
    parameters = {name: each.detach() for name, each in net.named_parameters()}

    def loss(given: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, given, (inputs,)).pow(2).mean()

    for _ in range(times):
        gradients = torch.func.grad(loss)(parameters, batch())
        parameters = {name: each - 0.1 * gradients[name] for name, each in parameters.items()}


def within_backward(times: int) -> None:
    net = nn.Linear(64, 64).cuda()

    def update(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    for each in net.parameters():
        each.register_post_accumulate_grad_hook(update)
    for _ in range(times):
        net(batch()).pow(2).mean().backward()


WAYS = [
    in_place,
    through_data,
    with_new_data,
    with_lists,
    with_new_leaves,
    with_gradients_asked_for,
    with_transforms,
    within_backward,
]


@pytest.mark.parametrize("train", WAYS)
def test_a_step_ends_where_parameters_changed_after_a_backward(train: Training) -> None:
    # when
    device = steps_of(train)
    # then new leaves are only known once a backward reaches them, and new data while their leaf is there
    unseen = train in (with_new_leaves, with_transforms, with_new_data)
    assert device.steps_seen == 4 - unseen
    ends = device.step_ends()
    assert ends == sorted(set(ends))
    lengths = {after - before for before, after in pairwise(ends)}
    assert len(lengths) == 1  # all steps after the first are alike


def test_micro_batches_make_one_step() -> None:
    # given
    def train(times: int) -> None:
        net = nn.Linear(64, 64).cuda()
        for _ in range(times):
            for _ in range(3):
                net(batch()).pow(2).mean().backward()
            for each in net.parameters():
                assert each.grad is not None
                each.data.add_(each.grad, alpha=-0.1)
            net.zero_grad()

    # when
    device = steps_of(train)
    # then
    assert device.steps_seen == 4


def test_the_trace_names_parameters_gradients_and_states_of_an_update_by_hand() -> None:
    # when
    trace = steps_of(with_lists).trace()
    # then, of 64 x 64 weights: the weight, its gradients of four steps and its momentum
    found = [storage.category for storage in trace.storages if storage.size_bytes == 64 * 64 * 4]
    assert found.count("parameter") == 1
    assert found.count("gradient") == 4
    assert found.count("optimizer_state") == 1
    assert {op.phase for op in trace.ops if op.name.startswith("aten._foreach_")} == {"optimizer"}


def test_it_stops_once_the_steps_are_done_by_hand() -> None:
    # given
    done = 0

    def train() -> None:
        nonlocal done
        weight = torch.randn(64, 64, device="cuda", requires_grad=True)
        while done < 100:
            (batch() @ weight).pow(2).mean().backward()
            with torch.no_grad():
                weight.sub_(0.1)
            done += 1

    # when
    with VirtualDevice(H100, steps=3) as device:
        train()
    # then
    assert done == 3
    assert len(device.trace().steps) == 3


def clipped_after(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    for each in net.parameters():
        each.data.clamp_(-0.01, 0.01)


def decayed_before(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for each in net.parameters():
        each.data.mul_(0.99)
    optimizer.step()


@pytest.mark.parametrize("update", [clipped_after, decayed_before])
def test_changes_beside_an_optimizers_step_end_no_other(
    update: Callable[[nn.Module, torch.optim.Optimizer], None],
) -> None:
    # given
    def train(times: int) -> None:
        net = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.RMSprop(net.parameters())
        for _ in range(times):
            net(batch()).pow(2).mean().backward()
            update(net, optimizer)
            optimizer.zero_grad()

    # when
    device = steps_of(train)
    # then
    assert device.steps_seen == 4
    assert len(device.step_ends()) == 4


def test_attacks_before_the_first_step_of_an_optimizer_are_not_taken_for_steps() -> None:
    # given ten changes of the inputs for each step, as in adversarial training
    stepped = 0

    def train() -> None:
        nonlocal stepped
        net = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(10):
            noise = torch.zeros(8, 64, device="cuda", requires_grad=True)
            for _ in range(10):
                (slope,) = torch.autograd.grad(net(batch() + noise).pow(2).mean(), noise)
                noise.data.add_(slope.sign(), alpha=0.01)
            net(batch() + noise.detach()).pow(2).mean().backward()
            optimizer.step()
            stepped += 1

    # when
    with VirtualDevice(H100, steps=3) as device:
        train()
    # then
    assert stepped == 3
    assert len(device.step_ends()) == 3


def test_steps_that_a_scaler_makes_are_those_of_its_optimizer() -> None:
    # given
    def train(times: int) -> None:
        net = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.Adam(net.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(times):
            with torch.autocast("cuda", torch.float16):
                loss = net(batch()).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    # when, then
    assert len(steps_of(train).step_ends()) == 4


def test_a_closure_that_is_called_often_makes_one_step() -> None:
    # given
    def train(times: int) -> None:
        net = nn.Linear(64, 4).cuda()
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5)
        inputs = batch()

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(inputs).pow(2).mean()
            loss.backward()
            return loss

        for _ in range(times):
            optimizer.step(closure)  # pyright: ignore[reportArgumentType]

    # when, then
    assert len(steps_of(train).step_ends()) == 4


def test_torch_is_as_before_once_the_device_is_off() -> None:
    # given
    autograd: Any = torch.autograd
    before = autograd._engine_run_backward, torch.optim.Optimizer.__init__
    # when
    with suppress(RuntimeError), VirtualDevice(H100, steps=2):
        in_place(1)
        raise RuntimeError
    # then
    assert (autograd._engine_run_backward, torch.optim.Optimizer.__init__) == before


def test_changes_by_hand_before_an_optimizer_steps_are_no_step_of_it() -> None:
    # given weights that are changed after each backward, as FSDP gathers them, and an optimizer that steps after three
    with VirtualDevice(H100, steps=2) as device:
        net = nn.Linear(64, 64, bias=False).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
        for _ in range(40):
            for _ in range(3):
                net(batch()).pow(2).mean().backward()
                net.weight.data.mul_(0.5)
            optimizer.step()
            optimizer.zero_grad()
    # then there are two steps, and what changed by hand is none of the optimizer's ops
    trace = device.trace()
    assert len(trace.steps) == 2
    assert {op.phase for op in trace.ops if op.name == "aten.mul_"} == {"forward"}
