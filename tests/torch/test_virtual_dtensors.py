"""DTensor on the virtual device: attention, parallel losses, autocast, random numbers, collectives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch is built without torch.distributed")


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualDevice]:
    """The first of two processes."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with VirtualDevice(H100, None) as device:
        dist.init_process_group("nccl")
        try:
            yield device
        finally:
            dist.destroy_process_group()


@pytest.fixture
def mesh(on: VirtualDevice) -> DeviceMesh:
    return init_device_mesh("cuda", (2,))


def names(on: VirtualDevice, begin: int = 0) -> list[str]:
    return [op.name for op in on.ledger.ops[begin:]]


@pytest.mark.parametrize(("dtype", "kernel"), [(torch.float32, "efficient"), (torch.bfloat16, "cudnn")])
def test_attention_on_heads_that_are_spread_takes_the_kernel_of_cuda(
    on: VirtualDevice, mesh: DeviceMesh, dtype: torch.dtype, kernel: str
) -> None:
    # given 8 heads of which 4 are here
    q, k, v = (
        distribute_tensor(torch.randn(2, 8, 64, 32, device="cuda", dtype=dtype), mesh, [Shard(1)]).requires_grad_()
        for _ in range(3)
    )

    # when they attend, and go back
    made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    made.sum().backward()

    # then it is one kernel either way, and seed and offset of the memory-efficient one are on the host
    assert isinstance(made, DTensor)
    assert made.to_local().shape == (2, 4, 64, 32)
    found = [name for name in names(on) if "attention" in name]
    assert found == [f"aten._scaled_dot_product_{kernel}_attention{end}" for end in ("", "_backward")]
    assert q.grad is not None
    assert kernel != "efficient" or 8 not in [line.size_bytes for line in on.ledger.storages]


def test_a_loss_over_words_that_are_spread_is_a_loss(on: VirtualDevice, mesh: DeviceMesh) -> None:
    # given 16 rows over 1,000 words of which 500 are here
    x = torch.randn(16, 64, device="cuda")
    weight = nn.Parameter(distribute_tensor(torch.randn(1000, 64), mesh, [Shard(0)]))
    rows = distribute_tensor(x, mesh, [Replicate()])

    # when the loss is parallel too
    with loss_parallel():
        loss = F.cross_entropy(F.linear(rows, weight), torch.zeros(16, dtype=torch.int64, device="cuda"))
        loss.backward()

    # then it is a number, and half of the weight has a gradient
    assert torch.isfinite(loss.detach())
    assert isinstance(weight.grad, DTensor)
    assert weight.grad.to_local().shape == (500, 64)


def test_what_a_collective_gives_is_waited_for_and_takes_no_more_memory(on: VirtualDevice, mesh: DeviceMesh) -> None:
    # given 4,096 bytes
    x = torch.ones(1024, device="cuda")
    before = on.ledger.allocated_bytes

    # when they are added up, and used
    found = collectives.all_reduce(x, "sum", group=(mesh, 0))
    y = found + 1

    # then there is one result of each, whose values are known
    assert on.ledger.allocated_bytes == before + 2 * 4096
    assert y[0].item() == 2.0


def test_a_sum_that_is_still_to_be_made_is_gathered(on: VirtualDevice, mesh: DeviceMesh) -> None:
    part = DTensor.from_local(torch.ones(8, 4, device="cuda"), mesh, [Partial()])
    assert part.redistribute(mesh, [Replicate()]).to_local().shape == (8, 4)
    assert part.redistribute(mesh, [Shard(0)]).to_local().shape == (4, 4)


def test_autocast_casts_what_is_spread(mesh: DeviceMesh) -> None:
    weight = nn.Parameter(distribute_tensor(torch.randn(64, 64), mesh, [Shard(0)]))
    rows = distribute_tensor(torch.randn(16, 64, device="cuda"), mesh, [Replicate()])
    with torch.autocast("cuda", torch.bfloat16):
        made = F.linear(rows, weight)
        assert made.dtype is torch.bfloat16
        assert F.softmax(made, -1).dtype is torch.float32
        half = torch.ones(4, dtype=torch.float16)
        assert (half.sum().dtype, (torch.ones(2, 2) @ torch.ones(2, 2)).dtype) == (torch.float16, torch.float32)


def test_random_numbers_are_drawn_for_what_is_here(on: VirtualDevice, mesh: DeviceMesh) -> None:
    # given 1,000 numbers of which 500 are here
    x = distribute_tensor(torch.zeros(1000, device="cuda"), mesh, [Shard(0)])
    begin = len(on.ledger.ops)

    # when they are drawn, and some dropped
    made = F.dropout(x.normal_(), 0.5)

    # then dropout is one kernel
    assert isinstance(made, DTensor)
    assert [name for name in names(on, begin) if name in ("aten.normal_", "aten.native_dropout")] == [
        "aten.normal_",
        "aten.native_dropout",
    ]
    assert made.to_local().shape == (500,)


def test_gradients_of_what_is_spread_are_added_to_a_new_tensor(on: VirtualDevice, mesh: DeviceMesh) -> None:
    # given a tensor that is used twice, whose gradients nobody else holds
    x = distribute_tensor(torch.randn(64, 64, device="cuda"), mesh, [Shard(0)]).requires_grad_()
    y = x * 1.0
    begin = len(on.ledger.ops)

    # when it gets its gradient
    (y.exp() + y.sin()).sum().backward()

    # then the engine does not add in place, as for every tensor of a subclass
    assert "aten.add" in names(on, begin)
    assert "aten.add_" not in names(on, begin)
