"""Runs inside the rig: a training in which something goes wrong within a budget, and what is left after it.

stdin: one JSON object {"cases": [names]}. Prints one JSON object after "@@": per fault what was raised and warned of,
what is left, and whether training went on.
"""

from __future__ import annotations

import copy
import gc
import io
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elbowroom as er
from elbowroom.engine.tiers import arenas
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.engine.tiers.streams import CudaStreams
from elbowroom.hardware import ram
from elbowroom.run.room import run_of
from tests.fakecuda import MOVES

BUDGET = "device=250MiB,host=100MiB"
"""Of more than 400 MiB: the host cannot hold all that must go."""
STEPS = 5


class Broken(Exception):
    """Of the user."""


class Breaks(torch.autograd.Function):
    """Raises where it is told to."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, where: dict[str, bool]) -> torch.Tensor:
        if where.get("forward"):
            raise Broken("in forward")
        ctx.where = where
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.where.get("backward"):
            raise Broken("in backward")
        return gradients[0], None


class Training:
    """Twenty linear layers on 8192 rows of 512: outputs of 16 MiB each."""

    def __init__(self) -> None:
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(20)).cuda()
        self.model = self.layers
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.1)
        self.batch = torch.zeros(8192, 512, device="cuda")
        self.where: dict[str, bool] = {}

    def step(self) -> None:
        self.optimizer.zero_grad()
        x = self.batch
        for n, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if n == len(self.layers) // 2:
                x = Breaks.apply(x, self.where)
        x.mean().backward()  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        self.optimizer.step()


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def fails_after(calls: int, method: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """A method that raises from its `calls`-th call on."""
    left = [calls]

    def called(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return method(*arguments, **options)

    return called


def trained(training: Training, budget: str = BUDGET, then: Callable[[], object] = lambda: None) -> dict[str, Any]:
    with er.within(budget, allow=MOVES) as room:
        for _ in range(STEPS):
            training.step()
        then()
        return {"pinned": run_of(room).pinned_bytes, "mode": run_of(room)._mode}


def user(where: str) -> Callable[[Training], dict[str, Any]]:
    def run(training: Training) -> dict[str, Any]:
        def breaks() -> None:
            training.where[where] = True
            training.step()

        return trained(training, then=breaks)

    return run


def no_pinning(training: Training) -> dict[str, Any]:
    with patched(arenas, "_register", lambda *_: 1):
        return trained(training)


def little_ram(training: Training) -> dict[str, Any]:
    with patched(ram, "free_bytes", lambda: 300 << 20):
        return trained(training, "device=250MiB,host=90MiB")


def copies_fail(training: Training) -> dict[str, Any]:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with patched(CudaStreams, "copy", fails_after(40, CudaStreams.copy, error)):
        return trained(training)


def disk(what: str, calls: int) -> Callable[[Training], dict[str, Any]]:
    def run(training: Training) -> dict[str, Any]:
        error = OSError(5, "Input/output error")
        with patched(SpillFile, what, fails_after(calls, getattr(SpillFile, what), error)):
            return trained(training)

    return run


def full_disk(training: Training) -> dict[str, Any]:
    return trained(training, BUDGET + ",disk=16MiB")


def graph(training: Training) -> dict[str, Any]:
    def capturing() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            training.step()

    return trained(training, then=capturing)


def graphed(training: Training) -> dict[str, Any]:
    sample = training.batch.clone()
    block = nn.Sequential(*copy.deepcopy(training.layers))
    return trained(training, then=lambda: torch.cuda.make_graphed_callables(block, (sample,)))


def graphed_by_the_compiler(training: Training) -> dict[str, Any]:
    """Blocks in a mode that captures graphs, in a run of their own; the others then run as they are."""
    import torch._dynamo

    halves = [torch.compile(nn.Sequential(*training.layers[n : n + 10]), backend="cudagraphs") for n in (0, 10)]
    step = training.step

    def captured_step() -> None:
        training.optimizer.zero_grad()
        halves[1](torch.tanh(halves[0](training.batch))).mean().backward()
        training.optimizer.step()

    training.step = captured_step
    try:
        return trained(training)
    finally:
        training.step = step
        halves.clear()
        torch._dynamo.reset()


def workers(how: str) -> Callable[[Training], dict[str, Any]]:
    def run(training: Training) -> dict[str, Any]:
        data = TensorDataset(torch.arange(64.0))

        def load() -> None:
            loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context=how, pin_memory=True)
            total = sum(float(batch.sum()) for (batch,) in loader)
            assert total == 2016.0, total  # 0 + 1 + ... + 63
            training.step()

        return trained(training, then=load)

    return run


def pickled(training: Training) -> dict[str, Any]:
    def saves() -> None:
        kept = io.BytesIO()
        torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}, kept)
        torch.save(training.model, kept)
        copy.deepcopy(training.model)
        training.step()

    return trained(training, then=saves)


FAULTS: dict[str, Callable[[Training], dict[str, Any]]] = {
    "none": trained,
    "an error of the user in forward": user("forward"),
    "an error of the user in backward": user("backward"),
    "pinned memory refused": no_pinning,
    "little RAM": little_ram,
    "a copy that fails": copies_fail,
    "a write that fails": disk("write", 30),
    "a read that fails": disk("read", 30),
    "a full disk": full_disk,
    "a graph that is captured": graph,
    "callables made into graphs": graphed,
    "graphs that the compiler captures": graphed_by_the_compiler,
    "forked workers": workers("fork"),
    "spawned workers": workers("spawn"),
    "a model that is pickled": pickled,
}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped_bytes() -> int:
    """Of host memory that arenas hold."""
    return sum(arena.size_bytes for arena in gc.get_objects() if type(arena) is arenas.Arena)


def held() -> dict[str, int]:
    """What the process has of all that could be left behind."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # torch has one for each stream, that of captures too
    device_bytes = torch.cuda.memory_allocated()
    names = [each.name for each in threading.enumerate()]
    threads = len(names) - names.count("tqdm_monitor")  # which the bars of torch's compiler start
    return {"device": device_bytes, "files": open_files(), "threads": threads}


def left_after(before: dict[str, int]) -> dict[str, int]:
    """What the process has more than before, once threads that were told to end have done so."""
    until = time.monotonic() + 5
    while (now := held())["threads"] > before["threads"] and time.monotonic() < until:
        time.sleep(0.01)
    return {what: now[what] - before[what] for what in before}


def tried(fault: str) -> dict[str, Any]:
    """One fault, and what is left of it."""
    training = Training()
    training.step()
    gc.collect()
    before = held()
    error: Exception | None = None
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = FAULTS[fault](training)
        except Exception as problem:  # noqa: BLE001 - it is what is looked at
            error = problem.with_traceback(None)
    said = f"{type(error).__name__}: {error}" if error else ""
    del error
    training.where.clear()
    training.step()  # autograd holds the graph of a backward that failed until the next one
    left = left_after(before)
    again = trained(training)
    return {
        **found,
        "error": said,
        "warned": [str(each.message) for each in told if str(each.message).startswith("elbowroom")],
        "left": left,
        "left_on_host": mapped_bytes(),
        "then": again["mode"],
    }  # fmt: skip


def main() -> None:
    names = json.load(sys.stdin)["cases"]
    print("@@" + json.dumps({name: tried(name) for name in names}))


if __name__ == "__main__":
    main()
