"""Convolutions on the virtual device: cuDNN's workspaces, and the trials of cudnn.benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from elbowroom.answers.estimate import estimate, trials
from elbowroom.capture.virtual import ConvolutionCall, CudnnModel, PassWorkspace, VirtualDevice
from elbowroom.machine import Machine, Tier
from tests.torch.virtual_gpu import H100

MIB = 2**20
MOST, TRIED, TAKEN = 16 * MIB, 8 * MIB, 3 * MIB
Told = list[tuple[str, int]]


def taken(_call: ConvolutionCall) -> PassWorkspace:
    return PassWorkspace(likely_bytes=TAKEN, least_bytes=MIB, most_bytes=TRIED, tried_bytes=MOST)


@pytest.fixture(autouse=True)
def benchmark() -> Iterator[None]:
    torch.backends.cudnn.benchmark = True
    yield
    torch.backends.cudnn.benchmark = False


def device(**settings: Any) -> VirtualDevice:
    return VirtualDevice(H100, None, cudnn=CudnnModel(workspace=taken), **settings)


def told(on: VirtualDevice, work: Callable[[], Any]) -> Told:
    """Workspaces that some work makes and gives back, and where the cache is emptied."""
    begin = len(on.ledger.events)
    kept = work()
    found: Told = []
    for place, (_, storage, size_bytes) in enumerate(on.ledger.events[begin:], start=begin):
        found += [("empty", 0)] if place in on.ledger.empties else []
        if on.ledger.storages[storage].category == "workspace":
            found.append(("alloc" if size_bytes > 0 else "free", abs(size_bytes)))
    del kept
    return found


def trained() -> VirtualDevice:
    """One step of a convolution."""
    with device() as on:
        layer, x = nn.Conv2d(3, 8, 3).cuda(), torch.zeros(2, 3, 16, 16, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        layer(x).sum().backward()
        optimizer.step()
    return on


H100_BLAS_BYTES = 32 * MIB
RUN = [("alloc", TAKEN), ("free", TAKEN)]
FIRST = [("alloc", TRIED), ("free", TRIED), ("empty", 0), *RUN]


def test_algorithms_are_tried_once_for_each_pass_and_then_the_cache_is_emptied() -> None:
    with device() as on:
        layer, x = nn.Conv2d(3, 8, 3).cuda(), torch.zeros(2, 3, 16, 16, device="cuda", requires_grad=True)

        def train() -> None:
            layer(x).sum().backward()

        first, second = told(on, train), told(on, train)

    assert first == FIRST * 3  # forward, gradient of the input, gradient of the weight
    assert second == RUN * 3


@pytest.mark.parametrize(
    ("other", "is_new"),
    [
        (lambda: torch.zeros(2, 3, 16, 16, device="cuda"), False),
        (lambda: torch.zeros(4, 3, 16, 16, device="cuda"), True),
        (lambda: torch.zeros(2, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last), True),
        (lambda: torch.zeros(2 * 3 * 256 + 1, device="cuda")[1:].view(2, 3, 16, 16), True),
        (lambda: torch.zeros(2 * 3 * 256 + 64, device="cuda")[64:].view(2, 3, 16, 16), False),
    ],
    ids=["the same", "another batch", "another layout", "another alignment", "an offset of whole lines"],
)
def test_a_call_is_known_by_shapes_layout_and_alignment(other: Callable[[], torch.Tensor], is_new: bool) -> None:
    with device() as on, torch.no_grad():
        layer, x = nn.Conv2d(3, 8, 3).cuda(), torch.zeros(2, 3, 16, 16, device="cuda")
        layer(x)
        second = other()
        found = told(on, lambda: layer(second))

    assert found == (FIRST if is_new else RUN)


def test_the_thread_of_backward_tries_for_itself() -> None:
    # given a forward convolution that runs again in backward, as gradient checkpointing has it
    with device() as on:
        layer, x = nn.Conv2d(3, 8, 3).cuda(), torch.zeros(2, 3, 16, 16, device="cuda")

        class Again(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
                return given * 2

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
                with torch.no_grad():
                    layer(x)
                return grad

        with torch.no_grad():
            layer(x)
        weight = torch.zeros(4, device="cuda", requires_grad=True)
        found = told(on, lambda: Again.apply(weight).sum().backward())

    assert found == FIRST


def test_without_benchmark_nothing_is_tried() -> None:
    torch.backends.cudnn.benchmark = False
    with device() as on, torch.no_grad():
        layer, x = nn.Conv2d(3, 8, 3).cuda(), torch.zeros(2, 3, 16, 16, device="cuda")
        found = told(on, lambda: layer(x))

    assert found == RUN
    assert on.ledger.empties == []


def test_a_trial_takes_what_room_there_is_and_never_makes_a_training_fail() -> None:
    # given a GPU with less room than the trial wants
    trace = trained().trace()

    def on_gpu(capacity_bytes: int) -> Any:
        tier = Tier(name="device", capacity_bytes=capacity_bytes)
        return estimate(trace, Machine(name="gpu", tiers=(tier,), links=(), allocator=""))

    # then what the tensors take is enough; what the chosen algorithm takes can be spared too
    assert len(trials(trace)) == 2  # of the forward pass, and of the weight's gradient
    assert on_gpu(2 * MIB + 20 * MIB).fits
    assert on_gpu(2 * MIB).fits
    assert not on_gpu(MIB).fits


def test_the_bounds_of_a_workspace_are_in_the_trace() -> None:
    bounds = [(each.least_bytes, each.most_bytes) for each in trained().trace().workspaces]
    assert bounds == [(0, MOST), (MIB, TRIED)] * 2


def test_a_depthwise_convolution_in_float_needs_no_workspace() -> None:
    with device() as on, torch.no_grad():
        layer, x = nn.Conv2d(8, 8, 3, groups=8).cuda(), torch.zeros(2, 8, 16, 16, device="cuda")
        found = told(on, lambda: layer(x))

    assert found == []


def test_without_cudnn_the_windows_of_one_image_are_columns() -> None:
    # given 3 x 8 x 8 images in pairs: 6 x 6 windows of 3 x 3
    torch.backends.cudnn.enabled = False
    try:
        with device() as on:
            layer, x = nn.Conv2d(3, 8, 3, bias=False).cuda(), torch.zeros(2, 3, 8, 8, device="cuda", requires_grad=True)
            torch.mm(torch.zeros(4, 4, device="cuda"), torch.zeros(4, 4, device="cuda"))  # cuBLAS has its workspace
            begin = len(on.ledger.events)
            y = layer(x)
            forward = [size for *_, size in on.ledger.events[begin:]]
            grad = torch.zeros_like(y)
            begin = len(on.ledger.events)
            y.backward(grad)
            backward = [size for *_, size in on.ledger.events[begin:] if abs(size) > 0]
    finally:
        torch.backends.cudnn.enabled = True

    columns = 3 * 9 * 36 * 4
    assert forward == [2 * 8 * 36 * 4, columns, -columns]
    assert [size for size in backward if size > 0 and size != H100_BLAS_BYTES] == [2 * 3 * 64 * 4, columns, 8 * 27 * 4]
    assert on.ledger.empties == []
