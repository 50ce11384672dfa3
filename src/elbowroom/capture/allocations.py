"""The allocator's own account of a stretch of a run: torch's profiler with memory events, and markers of ours in it.

Every block that torch's CPU allocator hands out or takes back appears with its address, tensors of Python and scratch
memory inside kernels alike. Markers put what Python sees (an op begins, autograd saves) into the same order.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, final

import torch
from torch.profiler import ProfilerActivity, profile

from elbowroom.runtime._torch_compat import marker, profiler_events, profiler_running

PREFIX = "elbowroom:"


class Item(NamedTuple):
    """One thing in the stream: a block of `size_bytes` at `address`, or the begin or end of marker number `marker`."""

    at_ns: int
    kind: Literal["alloc", "free", "begin", "end"]
    marker: int
    address: int
    size_bytes: int


@final
class AllocatorStream:
    """Records allocations from `start` to `stop`; `mark(i)` is a context that appears as begin and end of marker i."""

    def __init__(self) -> None:
        self._session: Any = None

    def start(self) -> bool:
        """Begin; False where the profiler is in somebody else's use."""
        if profiler_running():
            return False
        session = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        known_before = torch.empty(1024)
        with _quiet():
            session.__enter__()
            del known_before  # torch warns once about a block from before the profile: let it do so unheard
        self._session = session
        return True

    @staticmethod
    def mark(number: int) -> Any:
        """Context for one marker."""
        return marker(f"{PREFIX}{number}")

    def stop(self) -> list[Item]:
        """End, and the stream in order."""
        with _quiet():
            self._session.__exit__(None, None, None)
        items = sorted(_items(self._session), key=_order)
        self._session = None
        return items


def _order(item: Item) -> tuple[int, int]:
    return (item.at_ns, 1 if item.kind == "end" else 0)


def _items(session: Any) -> Iterator[Item]:
    for node in profiler_events(session):
        tag = node.tag.name
        if tag == "Allocation":
            fields = node.extra_fields
            if fields.device.type == "cpu" and fields.alloc_size:
                kind: Literal["alloc", "free"] = "alloc" if fields.alloc_size > 0 else "free"
                yield Item(node.start_time_ns, kind, -1, fields.ptr, abs(fields.alloc_size))
        elif node.name.startswith(PREFIX):
            number = int(node.name[len(PREFIX) :])
            yield Item(node.start_time_ns, "begin", number, 0, 0)
            yield Item(node.end_time_ns, "end", number, 0, 0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler's start and stop notes off stderr, where they would stand between the user's own lines.

    Kineto writes them from C++ at a level that only its environment variable turns off, and only before its first use;
    so descriptor 2 goes to a file for these few milliseconds, and every other line of it is written on afterwards.
    """
    level = os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as heard:
        os.dup2(heard.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            if level is None:
                del os.environ["KINETO_LOG_LEVEL"]
            heard.seek(0)
            for line in heard.read().splitlines(keepends=True):
                if b"USDT:" not in line and b"before the profiling started" not in line:
                    os.write(2, line)
