"""Work in a forked child: below a hard limit on the process, recordings are read and plans are made there.

Note: [Child]
Both take a hundred MiB and more for a moment. In the training's process these would leave holes in the heap: mapped,
not resident, and taken again without a request that could be refused (Note: [Guard] in engine/ram_guard.py). A child's
memory goes back whole as it ends, and the training has the same memory before and after. It waits meanwhile.

The child has all objects of the training at their addresses. Its answer comes back through a pipe, pickled. Objects
that are named as shared are themselves in it, and no tensor is ever copied. If the limit has no room, the child's
requests fail, or the kernel ends the child, which offers itself first. Then there is no answer, and the training goes
on without.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, final

import torch

from elbowroom.engine.ram_guard import RamGuard
from elbowroom.errors import ElbowroomError, again
from elbowroom.notices import LOGGER

IDLE_S = 60.0
"""A child that uses no processor for this long waits for something that a thread of its parent had: it is ended."""
_FIRST_TO_GO = b"1000"
"""Value of oom_score_adj: the kernel ends this process before others of its group."""
_MIB = 1 << 20
_HEAD = 8
"""Bytes before an answer, which say how long it is."""

CAN_FORK: Final = sys.platform == "linux"


class NoRoom(Exception):
    """A child has ended without an answer."""


def forked(work: Callable[[], Any], guard: RamGuard, shared: Sequence[object] = ()) -> Any:
    """Return what `work` returns in a child, or raise its ElbowroomError.

    Args:
        work: what to do. It changes nothing that is to last, and runs nothing in torch's threads.
        guard: keeps the child below the limit.
        shared: objects that the answer may hold: these stay the same objects.

    Raises:
        NoRoom: the child has ended without an answer.
    """
    try:
        answer = _Reads(io.BytesIO(_sent(work, guard, shared)), shared).load()
    except (MemoryError, OSError) as problem:
        raise NoRoom from problem
    if isinstance(answer, ElbowroomError):
        raise again(answer)
    if isinstance(answer, NoRoom):
        LOGGER.info("elbowroom: work in a child failed: %s", answer)
        raise answer
    return answer


def _sent(work: Callable[[], Any], guard: RamGuard, shared: Sequence[object]) -> bytes:
    """Return what a child sends before it ends."""
    reader, writer = os.pipe()
    pid = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: no lock of theirs is needed there
            pid = os.fork()
        if not pid:
            _child(work, guard, shared, writer)
        os.close(writer)
        writer = -1
        return _received(reader, pid)
    finally:
        for descriptor in (reader, writer):
            with suppress(OSError):
                os.close(descriptor)
        if pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _child(work: Callable[[], Any], guard: RamGuard, shared: Sequence[object], writer: int) -> None:
    """Work, send the answer and end, without anything that Python or torch do at an exit."""
    try:
        gc.disable()  # it would write into each object, and copy all their pages
        with suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as score:
            score.write(_FIRST_TO_GO)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a library says as it runs out of memory
        guard.stand_in_child()
        try:
            answer = work()
        except ElbowroomError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - whatever a library raises as it runs out of memory
            answer = NoRoom(repr(error))
        made = io.BytesIO()
        _Writes(made, shared).dump(answer)
        view = made.getbuffer()
        os.write(writer, len(view).to_bytes(_HEAD, "little"))
        while view:
            view = view[os.write(writer, view[:_MIB]) :]
    finally:
        os._exit(0)


def _received(reader: int, pid: int) -> bytes:
    """Return all that a child sends.

    Raises:
        NoRoom: it breaks off, or waits.
    """
    found, ran, since_s = bytearray(), -1, time.monotonic()
    while True:
        if select.select([reader], [], [], 1.0)[0]:
            more = os.read(reader, _MIB)
            if not more:
                break
            found += more
            continue
        now = _processor_time(pid)
        if now != ran:
            ran, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > IDLE_S:
            raise NoRoom
    size_bytes = int.from_bytes(found[:_HEAD], "little")
    if len(found) < _HEAD or len(found) != _HEAD + size_bytes:
        raise NoRoom
    return bytes(memoryview(found)[_HEAD:])


def _processor_time(pid: int) -> int:
    """Return the ticks of the clock for which a process ran."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    return -1


@final
class _Writes(pickle.Pickler):
    """Pickler for which shared objects are their number, and which refuses tensors: they are the training's own."""

    def __init__(self, file: io.BytesIO, shared: Sequence[object]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._numbers = {id(each): number for number, each in enumerate(shared)}

    def persistent_id(self, obj: Any) -> int | None:
        if isinstance(obj, (torch.Tensor, torch.UntypedStorage)):
            raise TypeError("a tensor stays in its process")
        return self._numbers.get(id(obj))


@final
class _Reads(pickle.Unpickler):
    """Unpickler of what `_Writes` wrote."""

    def __init__(self, file: io.BytesIO, shared: Sequence[object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: Any) -> object:
        return self._shared[pid]
