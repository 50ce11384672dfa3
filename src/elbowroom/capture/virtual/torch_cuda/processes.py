"""Processes: those that a script starts by itself: the first of them is done here, where the virtual device is.

`torch.multiprocessing.spawn` calls the first of its processes here. A process that the script makes by itself starts as
usual. If nothing else trains, its work is done here (`Started`). groups.py has the groups of processes.
"""

from __future__ import annotations

import functools
import multiprocessing.process
import os
import sys
import sysconfig
from collections.abc import Callable
from typing import Any, final

import torch

from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.torch_cuda.groups import OTHERS

Change = tuple[Any, str, Any]
_LEAVE_S = 0.1
"""Seconds for a process that is about to end."""


def changes(ledger: Ledger) -> list[Change]:
    """Return the changes of torch.multiprocessing."""
    started = _started(ledger)
    package: Any = torch.multiprocessing
    places = (package, sys.modules[package.start_processes.__module__])
    return [(place, "start_processes", started) for place in places]


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
    They run in other processes and cannot write anything. One that is spawned has no virtual device. In one that is
    forked, what is made on the host has its bytes. That is enough for workers that read data. The processes are taken
    to train if nothing was trained here. The script must have ended, or wait for one that has not succeeded. Then they
    are ended, and the first one's work is done here. Two kinds are never done here: daemons, as most workers are, and
    functions of libraries, as their workers have.

    Args:
        ledger: gets the remark that there are others.
        idle: returns whether nothing was trained yet.
        forked: called in a process that was forked from this one, before its work.
    """

    def __init__(self, ledger: Ledger, idle: Callable[[], bool], forked: Callable[[], None]) -> None:
        self._ledger = ledger
        self._idle = idle
        self._forked = forked
        self._process = os.getpid()
        self._own: list[tuple[multiprocessing.process.BaseProcess, Callable[[], Any]]] = []

    def changes(self) -> list[Change]:
        """Return the patches of Python."""
        kind: Any = multiprocessing.process.BaseProcess
        start, join, begin = kind.start, kind.join, kind._bootstrap

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

        @functools.wraps(begin)
        def begun(process: Any, *args: Any, **how: Any) -> Any:
            self._forked()
            return begin(process, *args, **how)

        return [(kind, "start", started), (kind, "join", joined), (kind, "_bootstrap", begun)]

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
