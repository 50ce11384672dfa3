"""What torch.compile saves for backward is told beside an estimate as eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100


class Block(nn.Module):
    """A layer norm, two products and what lies between: eager keeps each step of it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(self.norm(x))
        y = 0.5 * y * (1.0 + torch.tanh(0.79788 * (y + 0.044715 * torch.pow(y, 3.0))))
        return x + nn.functional.dropout(self.down(y), 0.1, self.training)


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    torch._dynamo.graph_break()
    return y.exp()


def trained(made_by: Callable[[], Any], *rows: int, times: int = 1) -> VirtualDevice:
    """A step with each number of rows, after which the device is off."""
    with VirtualDevice(H100, steps=None) as device:
        function = made_by()
        weight = nn.Parameter(torch.ones(64, device="cuda"))
        optimizer = torch.optim.SGD([weight])
        for count in rows:
            made = torch.randn(count, 64, device="cuda") * weight
            for _ in range(times):
                made = function(made)
            made.sum().backward()
            optimizer.step()
    return device


def told(device: VirtualDevice, limit_s: float = 300) -> list[str]:
    device.compiled.tell(limit_s)
    return [name for kind, name in device.ledger.remarks if kind == "compiled"]


def saved_in_truth(rows: int) -> int:
    """Bytes that the compiled block saves on the CPU, whose partitioner is the same."""
    model = Block()
    x = torch.randn(rows, 64, requires_grad=True)
    outside = {each.untyped_storage().data_ptr() for each in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    compiled: Any = torch.compile(model, backend="aot_eager_decomp_partition", dynamic=False)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made = compiled(x)
    outside.add(made.untyped_storage().data_ptr())
    return sum(size_bytes for place, size_bytes in saved.items() if place not in outside)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_the_compiled_forward_saves_is_what_it_saves_where_it_runs() -> None:
    # given a model of a block that is compiled, and called twice in each step
    models: list[Any] = []
    device = trained(lambda: models.append(torch.compile(Block().cuda())) or models[0], 512, 512, times=2)
    weight = models[0].up.weight

    # when it is asked what compiling saves
    lines = told(device)

    # then it is what a run saves: a mask, the norm's numbers, what goes in and out of it, two tensors of 256 columns
    kept_bytes = saved_in_truth(512)
    assert kept_bytes == 512 * (64 + 2 * 4 + 2 * 64 * 4 + 2 * 256 * 4)
    assert lines == [
        "forward of Block saves 1.3 MiB for backward where eager saves 2.8 MiB: about 3.0 MiB less in 2 calls"
    ]
    assert models[0].up.weight is weight


def test_blocks_of_one_kind_are_told_together() -> None:
    def model() -> nn.Module:
        blocks = nn.Sequential(*(Block() for _ in range(3)))
        for each in blocks:
            each.compile()
        return blocks.cuda()

    lines = told(trained(model, 512))
    assert len(lines) == 1
    assert lines[0].endswith("less in 3 calls")


def test_a_graph_that_breaks_is_not_known() -> None:
    lines = told(trained(lambda: torch.compile(breaks), 8))
    assert lines == ["forward of breaks: not known, as its graph breaks (Call to `torch._dynamo.graph_break()`)"]


@pytest.mark.parametrize(
    ("options", "rows", "why"),
    [
        ({}, (8, 16), "it is called with several shapes"),
        ({"dynamic": True}, (8,), "its shapes are dynamic"),
        ({"backend": "aot_eager"}, (8,), "its backend is 'aot_eager'"),
        ({"disable": True}, (8,), "compiling is disabled"),
    ],
)
def test_what_is_not_known_is_said_with_its_reason(options: dict[str, Any], rows: tuple[int, ...], why: str) -> None:
    lines = told(trained(lambda: torch.compile(Block().cuda(), **options), *rows))
    assert f"forward of Block: not known, as {why}" in lines


def test_no_time_is_no_answer() -> None:
    lines = told(trained(lambda: torch.compile(Block().cuda()), 8), limit_s=0)
    assert lines == ["forward of Block: not known, as tracing it takes too long"]


def test_a_compiled_function_that_is_not_followed_holds_nothing_of_its_calls() -> None:
    # given a function whose backend is not inductor
    with VirtualDevice(H100, steps=None) as device:
        compiled: Any = torch.compile(lambda x: x * 2.0, backend="eager")

        # when it is called
        x = torch.ones(2**18, device="cuda")
        y = compiled(x)
        del x, y

        # then nothing of it stays
        assert device.ledger.allocated_bytes == 0
