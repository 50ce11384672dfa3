"""Modules and functions of torch that stand for something else on the virtual device: what they hold."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100


def trained(setup: Callable[[], tuple[nn.Module, torch.Tensor]], times: int = 3) -> tuple[VirtualDevice, list[int]]:
    """A device on which a model was trained, and the bytes held at most in each step."""
    peaks: list[int] = []
    with VirtualDevice(H100, steps=None) as device:
        model, batch = setup()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(times):
            device.ledger.peak_bytes = 0
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            peaks.append(device.ledger.peak_bytes)
    return device, peaks


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()


def batch(rows: int = 4096) -> torch.Tensor:
    return torch.randn(rows, 256, device="cuda")


def test_data_parallel_on_one_device_is_the_module() -> None:
    plain, peaks = trained(lambda: (net(), batch()))
    wrapped, same = trained(lambda: (nn.DataParallel(net()), batch()))

    assert same == peaks
    assert wrapped.steps_seen == plain.steps_seen == 3
    assert not [name for kind, name in wrapped.ledger.remarks if kind == "unsupported"]


def test_data_parallel_takes_a_batch_of_the_host() -> None:
    device, _ = trained(lambda: (nn.DataParallel(net()), torch.randn(64, 256)))

    assert device.steps_seen == 3


def test_data_parallel_on_several_devices_holds_a_share_and_all_outputs_and_says_so() -> None:
    _, whole = trained(lambda: (net(), batch()))
    device, shared = trained(lambda: (nn.DataParallel(net(), device_ids=[0, 1, 2, 3]), batch()))

    # of 4096 x 256 x 4 bytes: the batch and the outputs of all, and a quarter of the rest
    assert shared[-1] < whole[-1]
    assert shared[-1] > 2 * 4096 * 256 * 4
    said = "DataParallel on 4 devices (this is what the first of them holds)"
    assert device.ledger.remarks["unsupported", said] == 3


def as_model(model: nn.Module) -> nn.Module:
    compiled: Any = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    return compiled


def by_itself(model: nn.Module) -> nn.Module:
    model.compile(mode="max-autotune")
    return copy.deepcopy(model)


@pytest.mark.parametrize("compiled", [as_model, by_itself])
def test_what_is_compiled_runs_as_eager_which_is_said(compiled: Callable[[nn.Module], nn.Module]) -> None:
    def made() -> tuple[nn.Module, torch.Tensor]:
        model = compiled(net())
        gc.collect()  # the module that was copied refers to itself
        return model, batch(64)

    _, peaks = trained(lambda: (net(), batch(64)))
    device, same = trained(made)

    assert same[-1] == peaks[-1]
    assert [name for kind, name in device.ledger.remarks if kind == "unsupported" and name.startswith("torch.compile")]


def test_the_original_of_a_compiled_module_is_found() -> None:
    with VirtualDevice(H100, steps=None):
        model: Any = torch.compile(net())
        original = model._orig_mod
        assert list(original.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_flex_attention_keeps_no_scores() -> None:
    with VirtualDevice(H100, steps=None) as device:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 1024, 1024, device="cuda")
        query, key, value = (torch.randn(2, 4, 1024, 64, device="cuda", requires_grad=True) for _ in range(3))
        device.ledger.peak_bytes = 0
        made = torch.compile(flex_attention)(query, key, value, block_mask=mask)
        made.sum().backward()

    assert made.shape == query.shape
    assert query.grad is not None
    assert device.ledger.peak_bytes < 8 * query.nbytes + 2**20  # scores would be 2 * 4 * 1024 * 1024 * 4, 16 of them


def test_an_encoder_is_evaluated_on_padded_rows() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    with VirtualDevice(H100, steps=None):
        model = nn.TransformerEncoder(layer, 2).cuda().eval()
        padded = torch.arange(16).ge(torch.tensor([16, 9])[:, None]).cuda()
        with torch.no_grad():
            made = model(torch.randn(2, 16, 32, device="cuda"), src_key_padding_mask=padded)
        assert made.shape == (2, 16, 32)
