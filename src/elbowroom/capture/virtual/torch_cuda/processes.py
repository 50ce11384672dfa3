"""Processes: groups of processes on the virtual device: this process is the only one, for any size of the group.

`torch.multiprocessing.spawn` calls the first of its processes here, where the virtual device is. A process that the
script makes by itself starts as usual. If nothing else trains, its work is done here (`Started`).
`init_process_group` makes a group whose other processes have the same tensors. A reduction leaves these unchanged, and
a gathering copies those of this process. So DistributedDataParallel runs unchanged, with its buckets. NCCL's own
buffers are not counted.
"""

from __future__ import annotations

import functools
import multiprocessing.process
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.torch_compat.device_modules import done_work

Change = tuple[Any, str, Any]
NAME = "elbowroom"
OTHERS = "{} processes (estimated is one of them, without the buffers of NCCL)"
Tensors = Sequence[torch.Tensor]
_LEAVE_S = 0.1
"""Seconds for a process that is about to end."""


def changes(ledger: Ledger) -> list[Change]:
    """Return the changes of torch.multiprocessing, and of torch.distributed if it is built."""
    started = _started(ledger)
    package: Any = torch.multiprocessing
    places = (package, sys.modules[package.start_processes.__module__])
    spawned = [(place, "start_processes", started) for place in places]
    if not torch.distributed.is_available():
        return spawned
    from torch.distributed import distributed_c10d

    dist = torch.distributed
    _register()
    found = {
        "init_process_group": _init(dist.init_process_group, ledger),
        "get_backend": lambda *_args, **_how: _Asked.backend,
        "is_nccl_available": lambda: True,
    }
    # init_process_group sets a hook of its own and never removes it; this change restores the old one
    hook = (sys, "excepthook", sys.excepthook)
    patched = ((place, name, value) for name, value in found.items() for place in (dist, distributed_c10d))
    return [*spawned, hook, *patched]


@final
class _Done:
    """Processes that have ended, as `start_processes(join=False)` gives them."""

    processes: tuple[Any, ...] = ()

    def join(self, *_args: Any, **_how: Any) -> bool:
        return True

    def pids(self) -> list[int]:
        return []


def _started(ledger: Ledger) -> Callable[..., Any]:
    """Make the replacement of `start_processes` and `spawn`: the first process runs here, on the virtual GPU."""

    def start(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *_rest: Any, **_how: Any) -> _Done | None:
        if nprocs > 1:
            ledger.remark("unsupported", OTHERS.format(nprocs))
        fn(0, *args)
        return None if join else _Done()

    return start


@final
class Started:
    """Processes that a script makes and starts by itself, with a function of its own.

    Note: [Whose work is done here]
    They run in other processes, without a virtual device, and cannot write anything. That is enough for workers
    that read data. The processes are taken to train if nothing was trained here. The script must have ended, or wait
    for one that has not succeeded. Then they are ended, and the first one's work is done here. Two kinds are never done
    here: daemons, as most workers are, and functions of libraries, as their workers have.

    Args:
        ledger: gets the remark that there are others.
        idle: returns whether nothing was trained yet.
    """

    def __init__(self, ledger: Ledger, idle: Callable[[], bool]) -> None:
        self._ledger = ledger
        self._idle = idle
        self._process = os.getpid()
        self._own: list[tuple[multiprocessing.process.BaseProcess, Callable[[], Any]]] = []

    def changes(self) -> list[Change]:
        """Return the patches of Python."""
        kind: Any = multiprocessing.process.BaseProcess
        start, join = kind.start, kind.join

        @functools.wraps(start)
        def started(process: Any) -> None:
            work = _work(process)
            start(process)
            if work is not None:
                self._own.append((process, work))

        @functools.wraps(join)
        def joined(process: Any, timeout: float | None = None) -> None:
            if timeout is None and any(each is process for each, _ in self._own):
                join(process, _LEAVE_S)
                if process.exitcode != 0:
                    self.carry_out()
            join(process, timeout)

        return [(kind, "start", started), (kind, "join", joined)]

    def carry_out(self) -> None:
        """Do the work of the first process here, if nothing was trained."""
        if not self._own or not self._idle() or os.getpid() != self._process:
            return
        own, self._own = self._own, []
        for process, _ in own:
            process.kill()
        if len(own) > 1:
            self._ledger.remark("unsupported", OTHERS.format(len(own)))
        own[0][1]()


def _work(process: Any) -> Callable[[], Any] | None:
    """Return the work of a process that is not started yet, if it is the script's own; else None."""
    target = process._target
    function = target.func if isinstance(target, functools.partial) else target or type(process).run
    file = getattr(sys.modules.get(getattr(function, "__module__", "")), "__file__", None)
    if process.daemon or file is None or _is_installed(os.path.realpath(file)):
        return None
    return process.run if target is None else functools.partial(target, *process._args, **process._kwargs)


def _is_installed(file: str) -> bool:
    places = (os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
    return file.startswith(tuple(f"{place}{os.sep}" for place in places))


class _Asked:
    """The backend that the script named."""

    backend = "nccl"


def _init(function: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    def init(backend: str | None = None, init_method: str | None = None, *args: Any, **how: Any) -> None:
        given = dict(zip(("timeout", "world_size", "rank"), args, strict=False)) | how
        size, rank = (_number(given, name) for name in ("world_size", "rank"))
        _Asked.backend = str(backend or "nccl").rpartition(":")[2]
        if size > 1:
            ledger.remark("unsupported", OTHERS.format(size))
        dist: Any = torch.distributed
        function(NAME, store=dist.HashStore(), world_size=max(size, 1), rank=max(rank, 0))

    return init


def _number(given: dict[str, Any], name: str) -> int:
    value = given.get(name, -1)
    return int(os.environ.get(name.upper()) or -1) if value < 0 else int(value)


def _register() -> None:
    """Register the backend with torch."""
    if NAME not in torch.distributed.Backend.backend_list:
        make: Any = _made
        torch.distributed.Backend.register_backend(NAME, make, devices=["cpu", "cuda"])


def _made(_store: Any, rank: int, size: int, _timeout: Any) -> Any:
    """Make a group; its class is made here, as not every build of torch has its base."""

    class Group(torch.distributed.ProcessGroup):
        """A group of processes, of which only this one exists."""

        def size(self) -> int:
            return size

        def rank(self) -> int:
            return rank

        def getBackendName(self) -> str:  # noqa: N802  torch's name
            return NAME

        def _set_group_name(self, name: str) -> None:
            self.known_as = name

        @property
        def group_name(self) -> str:
            """Name by which device meshes and functional collectives find it."""
            return self.known_as

    for function, names in COLLECTIVES.items():
        for name in names:
            setattr(Group, name, function)
    made: Any = Group
    return made(rank, size)


def _stay(_: Any, tensors: Any = None, *_rest: Any, **_how: Any) -> Any:
    """Leave tensors as they are: every process has the same ones, and their reduction counts as these."""
    return done_work(tensors if tensors is not None else [torch.zeros(1, device="cpu")])


def _barrier(_: Any, *_rest: Any, **_how: Any) -> Any:
    return _stay(None)


def _gather_lists(_: Any, outputs: Sequence[Tensors], inputs: Tensors, *_rest: Any, **_how: Any) -> Any:
    for targets, source in zip(outputs, inputs, strict=False):
        for target in targets:
            target.copy_(source)
    return done_work(outputs)


def _gather(_: Any, output: torch.Tensor, source: torch.Tensor, *_rest: Any, **_how: Any) -> Any:
    if source.numel():
        output.view(-1, source.numel()).copy_(source.reshape(1, -1))
    return done_work([output])


def _scatter_lists(group: Any, outputs: Tensors, inputs: Sequence[Tensors], *_rest: Any, **_how: Any) -> Any:
    for target, sources in zip(outputs, inputs, strict=False):
        target.copy_(sources[group.rank()])
    return done_work(outputs)


def _scatter(group: Any, output: torch.Tensor, source: torch.Tensor, *_rest: Any, **_how: Any) -> Any:
    if output.numel():
        output.view(-1).copy_(source.reshape(-1, output.numel())[group.rank()])
    return done_work([output])


def _exchange(_: Any, output: Any, source: Any, *_rest: Any, **_how: Any) -> Any:
    one = isinstance(output, torch.Tensor)
    for target, given in [(output, source)] if one else zip(output, source, strict=True):
        if target.shape == given.shape:
            target.copy_(given)
    return done_work([output] if one else output)


COLLECTIVES: dict[Callable[..., Any], tuple[str, ...]] = {
    _stay: ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "send", "recv", "recv_anysource"),
    _barrier: ("barrier", "monitored_barrier"),
    _gather_lists: ("allgather", "gather"),
    _gather: ("_allgather_base", "all_gather_into_tensor", "all_gather_single"),
    _scatter_lists: ("reduce_scatter", "scatter"),
    _scatter: ("_reduce_scatter_base", "reduce_scatter_tensor", "reduce_scatter_single"),
    _exchange: ("alltoall", "alltoall_base", "all_to_all_single"),
}
"""Operations of a group, by the names of all versions of torch."""
