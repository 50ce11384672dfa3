"""Groups of processes on the virtual device: one process of them is there."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.filterwarnings("ignore:.*torch.distributed:FutureWarning")
def test_a_process_of_a_group_trains_with_its_buckets(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    # given what torchrun sets, and a network of 512 * 512 + 512 floats
    for name, value in {"RANK": "0", "WORLD_SIZE": str(size)}.items():
        monkeypatch.setenv(name, value)
    with VirtualDevice(H100, None) as on:
        dist.init_process_group("nccl", init_method="env://")
        try:
            assert (dist.get_backend(), dist.get_world_size(), dist.get_rank()) == ("nccl", size, 0)
            network = DistributedDataParallel(nn.Linear(512, 512).cuda(), device_ids=[0])
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            for _ in range(3):
                network(torch.randn(64, 512).cuda()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

            # then there are its weights and gradients, and a bucket as large as these
            assert on.steps_seen == 3
            buckets = [each.size_bytes for each in on.ledger.storages if each.size_bytes == (512 * 512 + 512) * 4]
            assert buckets

            # and what is gathered is what is here, for every process
            here = torch.ones(3, device="cuda")
            lists = [torch.zeros(3, device="cuda") for _ in range(size)]
            dist.all_gather(lists, here)
            assert all(each.tolist() == [1.0, 1.0, 1.0] for each in lists)
            objects: list[object] = [None] * size
            dist.all_gather_object(objects, {"loss": 2})
            assert objects == [{"loss": 2}] * size
            dist.barrier()
        finally:
            dist.destroy_process_group()
        said = [name for kind, name in on.ledger.remarks if "processes" in name]
        assert len(said) == (size > 1)


def _worker(rank: int, size: int, steps: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://localhost:12345", world_size=size, rank=rank)
    network = DistributedDataParallel(nn.Linear(512, 512).cuda(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(steps):
        network(torch.randn(64, 512).cuda(rank)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.filterwarnings("ignore:.*torch.distributed:FutureWarning")
def test_the_first_of_the_processes_that_a_script_spawns_trains_here(size: int) -> None:
    with VirtualDevice(H100, None) as on:
        processes: Any = torch.multiprocessing
        processes.spawn(_worker, args=(size, 3), nprocs=size)
        assert on.steps_seen == 3
        assert processes.start_processes(_worker, (size, 1), size, join=False).join()
    assert sum("processes" in name for _, name in on.ledger.remarks) == (size > 1)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.filterwarnings("ignore:.*torch.distributed:FutureWarning")
def test_the_first_of_the_processes_that_a_script_makes_itself_trains_here_once_it_waits_for_them(size: int) -> None:
    made = multiprocessing.get_context("spawn").Process
    with VirtualDevice(H100, None) as on:
        # given processes that train, and a worker before them
        worker = made(target=_worker, args=(0, 1, 1), daemon=True)
        trainers = [made(target=_worker, args=(rank, size, 3)) for rank in range(size)]
        for each in (worker, *trainers):
            each.start()
        assert on.steps_seen == 0

        # when all are waited for, then the first that trains did so here, once
        for each in trainers:
            each.join()
        assert on.steps_seen == 3
        on.started.carry_out()
        assert on.steps_seen == 3
        worker.kill()
        worker.join()
    assert sum("processes" in name for _, name in on.ledger.remarks) == (size > 1)


def _reads(queue: Any, read: Any, weights: torch.Tensor) -> None:
    batch = torch.zeros(1024, 512)
    batch[0] = 3.0
    queue.put((batch, int(batch.sum()), weights[:16]))
    read.wait()  # as torch has it: who shares a tensor lives until it is read


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_worker_sends_batches_with_their_values_and_tensors_without_bytes() -> None:
    # given a worker of a queue, and weights of the host that have no bytes, as they are large
    fork = multiprocessing.get_context("fork")
    with VirtualDevice(H100, None):
        weights, queue, read = torch.zeros(1024, 512), fork.Queue(), fork.Event()
        worker = fork.Process(target=_reads, args=(queue, read, weights), daemon=True)
        worker.start()

        # when it makes a batch as large
        batch, total, part = queue.get(timeout=60)
        read.set()
        worker.join()

        # then the batch has its bytes, and both get on the GPU
        assert total == int(batch.sum()) == 3 * 512
        assert (part.shape, part.stride()) == (torch.Size([16, 512]), (512, 1))
        assert [each.cuda().is_cuda for each in (batch, part)] == [True, True]


DONE: list[int] = []


def test_a_process_that_has_succeeded_before_it_is_waited_for_is_not_done_again() -> None:
    with VirtualDevice(H100, None):
        process = multiprocessing.get_context("spawn").Process(target=DONE.append, args=(1,))
        prepares = multiprocessing.get_context("spawn").Process(target=_prepare)
        for each in (process, prepares):  # a method of a list is nobody's module
            each.start()
            multiprocessing.connection.wait([each.sentinel])
            each.join()
            assert each.exitcode == 0
    assert DONE == []


def _prepare() -> None:
    DONE.append(1)


@pytest.mark.filterwarnings("ignore:.*torch.distributed:FutureWarning")
def test_weights_that_a_group_hands_round_before_there_is_a_gradient_end_no_step() -> None:
    hook = sys.excepthook
    with VirtualDevice(H100, None) as on:
        dist.init_process_group("nccl", world_size=1, rank=0)
        try:
            DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).cuda(), device_ids=[0])
        finally:
            dist.destroy_process_group()
    assert on.steps_seen == 0
    assert sys.excepthook is hook  # init_process_group sets one of its own
