"""Ops without a kernel for tensors that have no bytes: the host, or their first tensor, says what they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100


@torch.library.custom_op("wild_ops::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])


@torch.library.custom_op("wild_ops::on_cuda", mutates_args=(), device_types="cuda")
def on_cuda(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def unknown(device: VirtualDevice, *shape: int) -> torch.Tensor:
    """A tensor on the device whose values are not known."""
    made = torch.empty(shape, device="cuda")
    device._mode.values.drop(made)
    return made.requires_grad_()


def test_an_op_without_fake_kernel_gives_what_it_gives_on_the_host() -> None:
    with VirtualDevice(H100, steps=None) as device:
        made = doubled(unknown(device, 3, 4))
        assert made.shape == (6, 4)
        assert made.device.type == "cuda"
    said = "wild_ops.doubled.default (run on the host for the form of its results)"
    assert device.ledger.remarks["unknown_op", said] == 1


def test_an_op_that_runs_nowhere_here_gives_what_is_like_its_first_tensor() -> None:
    with VirtualDevice(H100, steps=None) as device:
        made = on_cuda(unknown(device, 3, 4))
        assert made.shape == (3, 4)
    said = "wild_ops.on_cuda.default (no fake kernel: results taken to be like its first tensor)"
    assert device.ledger.remarks["unknown_op", said] == 1


def margin(x: torch.Tensor) -> torch.Tensor:
    return F.multi_margin_loss(x, torch.zeros(x.shape[0], dtype=torch.int64, device=x.device))


def labels_margin(x: torch.Tensor) -> torch.Tensor:
    return F.multilabel_margin_loss(x, torch.zeros(x.shape, dtype=torch.int64, device=x.device))


def fractional_pool(x: torch.Tensor) -> torch.Tensor:
    return F.fractional_max_pool3d(x.view(1, 4, 4, 8, 8), 2, output_ratio=0.5)


def least_squares(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.lstsq(x, torch.ones(x.shape[0], 2, device=x.device)).solution


@pytest.mark.parametrize("op", [margin, labels_margin, fractional_pool, least_squares])
def test_backward_of_torchs_own_ops_without_meta_kernel_is_followed(op: Callable[[torch.Tensor], Any]) -> None:
    with VirtualDevice(H100, steps=None) as device:
        given = unknown(device, 32, 32)
        op(given).sum().backward()
        assert given.grad is not None
        assert given.grad.shape == given.shape


def test_a_loss_on_the_host_gives_gradients_on_the_device() -> None:
    with VirtualDevice(H100, steps=None) as device:
        given = unknown(device, 8, 4)
        F.cross_entropy(given.cpu(), torch.zeros(8, dtype=torch.int64)).backward()
        assert given.grad is not None
        assert given.grad.device.type == "cuda"


def test_sequences_are_packed_by_lengths_of_the_host() -> None:
    with VirtualDevice(H100, steps=None) as device:
        rows = unknown(device, 3, 9, 16)
        packed = torch.nn.utils.rnn.pack_padded_sequence(rows, torch.tensor([9, 5, 2]), batch_first=True)
        assert packed.data.shape == (16, 16)
        assert packed.batch_sizes.tolist() == [3, 3, 2, 2, 2, 1, 1, 1, 1]
        padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
        padded.sum().backward()
        assert lengths.tolist() == [9, 5, 2]
        assert rows.grad is not None


def sizes(device: VirtualDevice, since: int) -> list[int]:
    return [size for _, _, size in device.ledger.events[since:] if size > 0]


def test_a_gradient_that_was_expanded_is_copied_for_a_product() -> None:
    with VirtualDevice(H100, steps=None) as device:
        x, w = unknown(device, 128, 784), unknown(device, 1024, 784)
        F.linear(x, w)
        begin = len(device.ledger.events)
        F.linear(x, w).sum().backward()
        made = sizes(device, begin)
    # the result, and a copy of its gradient for each of both products: 128 * 1024 * 4 bytes
    assert made.count(524_288) == 3


def test_gradients_of_a_backward_that_is_differentiated_are_added_to_new_tensors() -> None:
    def added(again: bool) -> int:
        device = VirtualDevice(H100, steps=None)
        with device:
            x = unknown(device, 100, 100)
            begin = len(device.ledger.events)
            y = x * 2.0
            torch.autograd.grad((y * 3.0 + y * 5.0).sum(), x, create_graph=again)
            made = sizes(device, begin)
        return made.count(40_000)

    assert added(True) == added(False) + 1
