"""Distributed tensors and fully sharded models inside a room: the same bits, storages leave, and plans are kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from elbowroom.capture.recording.profiler_stream import Allocation, Item, Mark, OpSeen, RecordedBlock, _of_training
from elbowroom.run.room import run_of
from tests.rank_ends import end_rank
from tests.torch.helpers import Training, assert_swapped, needs, same_within, telling

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this build has no gloo"),
]


@pytest.fixture(scope="module", autouse=True)
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceMesh]:
    meeting, hook = tmp_path_factory.mktemp("gloo") / "store", sys.excepthook
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()
    sys.excepthook = hook  # torch leaves its own there


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(torch.relu(self.a(x)))


def pairs() -> nn.Sequential:
    return nn.Sequential(*[Pair() for _ in range(4)])


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def training(model: nn.Module, batch: Tensor) -> Training:
    return telling(model, batch, torch.optim.AdamW(model.parameters(), lr=1e-2), whole)


def of_distributed_tensors(mesh: DeviceMesh) -> Training:
    model = pairs()
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Replicate()])))
    return training(model, distribute_tensor(torch.randn(96, 64), mesh, [Shard(0)]))


def in_tensor_parallel(mesh: DeviceMesh, rows: int = 96) -> Training:
    model = pairs()
    for pair in model:
        parallelize_module(pair, mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
    return training(model, torch.randn(rows, 64))


def in_sequence_parallel(mesh: DeviceMesh, rows: int = 96) -> Training:
    """Each rank has a part of the rows between pairs, so that the results of collectives are saved."""
    model = pairs()
    for pair in model:
        plan = {"a": ColwiseParallel(input_layouts=Shard(0)), "b": RowwiseParallel(output_layouts=Shard(0))}
        parallelize_module(pair, mesh, plan)
    return training(model, torch.randn(rows // mesh.size(), 64))


def fully_sharded(mesh: DeviceMesh, rows: int = 96) -> Training:
    model = pairs()
    for pair in model:
        fully_shard(pair, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return training(model, torch.randn(rows, 64))


WAYS: list[Callable[[DeviceMesh], Training]] = [
    of_distributed_tensors,
    in_tensor_parallel,
    in_sequence_parallel,
    fully_sharded,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_distributed_training_gives_the_same_numbers(way: Callable[[DeviceMesh], Training], mesh: DeviceMesh) -> None:
    # given
    setup = lambda: way(mesh)  # noqa: E731
    # when: what all that is kept needs, so that the plan may move nothing, and the observed step moves everything
    room = same_within(setup, budget=lambda setup: needs(setup)[1] + 2**16)
    # then: outputs of `a`, 96 x 128 floats, are saved by relu in each of the four pairs
    assert room.steps[0].swapped_out_bytes >= 3 * 96 * 128 * 4
    assert sum(step.mismatches for step in room.steps) == 0
    assert not run_of(room).passed


def test_a_tensor_parallel_training_keeps_to_its_plan(mesh: DeviceMesh) -> None:
    # given outputs of `a`, 1920 x 128 floats each, are saved in each of four pairs
    setup = lambda: in_tensor_parallel(mesh, rows=1920)  # noqa: E731
    # when
    least, most = needs(setup)
    room = same_within(setup, 6, budget=least)
    # then
    assert_swapped(room, 6)
    assert most - least >= 4 * 1920 * 128 * 4
    assert room.steps[-1].swapped_out_bytes >= 4 * 1920 * 128 * 4
    assert run_of(room).held_bytes <= least + 2**16


def shard_of_two(rank: int, meeting: str) -> None:
    """A rank that trains its part of each layer, and of the rows between them."""
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    both = init_device_mesh("cpu", (2,))
    room = same_within(lambda: in_sequence_parallel(both, rows=1920), 5)
    assert_swapped(room, 5)
    assert room.steps[-1].swapped_out_bytes >= 2 * 1920 * 64 * 4
    assert not run_of(room).passed
    end_rank()


def test_two_ranks_in_tensor_and_sequence_parallel_make_a_plan_and_keep_it(tmp_path: Path) -> None:
    mp.spawn(shard_of_two, (f"file://{tmp_path / 'meeting'}",), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]


def one_of_two(rank: int, meeting: str) -> None:
    """A rank that trains its shard of a model; what is not as it should be ends the process with an error."""
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    both = init_device_mesh("cpu", (2,))
    setup = lambda: fully_sharded(both, rows=1920)  # noqa: E731
    # when: no number differs. What collectives hold at a time does, and is little beside the activations
    room = same_within(setup, 6)
    # then: the first step makes what the later ones have, so that it is the third one that is planned for. Its weights,
    # which are gathered, are no saved storages: those are the model's input and two activations of each of four blocks
    assert_swapped(room, 6)
    assert [step.mode for step in room.steps] == ["observe", "plan", "observe", "plan", "plan", "plan"]
    assert room.trace is not None
    assert len(room.trace.saves) == 1 + 4 * 2
    end_rank()


def test_two_ranks_of_a_fully_sharded_model_make_a_plan_and_keep_it(tmp_path: Path) -> None:
    mp.spawn(one_of_two, (f"file://{tmp_path / 'meeting'}",), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]


def test_ops_of_threads_that_do_not_train_are_no_part_of_a_step() -> None:
    # given: a collective's thread, whose op lies across the ends of those of the step
    block = RecordedBlock(64, 4096, "float32")
    op = OpSeen("aten.add_", (block,), (block,), 0, False, (), 10, 30)
    theirs = [Item(10, op), Item(20, Allocation(block, False)), Item(30, op, ends=True)]
    # when / then: what it allocates counts
    assert _of_training(theirs) == [theirs[1]]
    # then: threads that the runtime marks, or in which autograd runs, train
    assert _of_training([Item(0, Mark(0)), *theirs]) == [Item(0, Mark(0)), *theirs]
    backward = [Item(10, replace(op, backward=True)), *theirs]
    assert _of_training(backward) == backward
