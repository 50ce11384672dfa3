"""Threads on the virtual device."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100


def train(steps: int) -> None:
    layer = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(steps):
        layer(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()


def test_a_pools_threads_have_the_gpu_as_well() -> None:
    # given weights that are loaded in threads, as transformers does
    with VirtualDevice(H100, None) as on, ThreadPoolExecutor(2) as pool:
        loaded = list(pool.map(lambda _: torch.ones(64, 64).to("cuda", torch.float16), range(4)))

        # then they are on the GPU, 64 * 64 * 2 bytes each
        assert all(each.is_cuda for each in loaded)
        assert on.ledger.allocated_bytes == 4 * 8192


def test_threads_that_train_at_once_leave_a_record_in_order() -> None:
    # given three threads that train
    with VirtualDevice(H100, None) as on:
        threads = [threading.Thread(target=train, args=(20,)) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert on.steps_seen == 20

    # then events follow the ops, and every storage is allocated once and freed at most once after that
    live: set[int] = set()
    last = -1
    for op, storage, size_bytes in on.ledger.events:
        assert op >= last
        last = op
        if size_bytes > 0:
            assert storage not in live
            live.add(storage)
        else:
            live.remove(storage)


def test_a_training_in_a_thread_ends_after_the_wanted_steps() -> None:
    # given a script whose training runs in a thread that it waits for
    over = False
    with VirtualDevice(H100, 3) as on:
        thread = threading.Thread(target=train, args=(10,))
        thread.start()
        thread.join()
        over = True

    # then the script is left after three of ten steps
    assert on.steps_seen == 3
    assert not over


def test_a_thread_that_outlives_the_device_computes_on_the_host_as_ever() -> None:
    # given a pool that was made on the device
    pool = ThreadPoolExecutor(1)
    with VirtualDevice(H100, None):
        assert pool.submit(lambda: torch.zeros(2, device="cuda").is_cuda).result()

    # then its thread goes on without
    assert pool.submit(lambda: float((torch.ones(2**20) * 2).sum())).result() == 2.0 * 2**20
    pool.shutdown()
