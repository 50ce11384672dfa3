"""Graphs: CUDA graphs and pools of memory: captured code runs as usual, in a private pool, and a replay does nothing.

Memory that ops allocate while a graph is captured belongs to its pool, which keeps it. No other op gets it, and
emptying the cache does not free it. Graphs may share a pool. A capture also has its own stream, with cuBLAS's
workspaces. torch's own code around a capture is unchanged, make_graphed_callables included.
Ignored: a pool frees its memory once its graphs are gone and the cache is emptied.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, ClassVar, final

import torch

from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.torch_compat.device_modules import pool_changes

Change = tuple[Any, str, Any]
GRAPHS = "CUDA graphs (a pool of theirs counts to the end, also where its graphs are dropped; replays take no time)"
POOLS = "torch.cuda.MemPool (its memory counts to the end, also where it is dropped)"
STATE_BYTES = 8
"""Bytes of the seed and of the offset of random numbers, on the device while there are graphs (CUDAGeneratorImpl)."""
_numbers = itertools.count(1)


def _new_pool() -> tuple[int, int]:
    """Return a new id of a pool."""
    return 0, next(_numbers)


@final
class _State:
    """The ledger of the device that is on.

    Attributes:
        graphs: numbers of the captured graphs that exist.
        numbers: numbers of the storages of seed and offset.
    """

    ledger: Ledger
    graphs: ClassVar[set[int]] = set()
    numbers: ClassVar[list[int]] = []


def _captured(graph: CUDAGraph) -> None:
    """Note a captured graph; the first one allocates seed and offset."""
    if not _State.graphs:
        _State.numbers[:] = [_State.ledger.scratch(STATE_BYTES, "workspace") for _ in range(2)]
    _State.graphs.add(graph.number)


def _gone(ledger: Ledger, number: int) -> None:
    """Note that a graph is gone; the last one frees seed and offset."""
    if ledger is not _State.ledger or number not in _State.graphs:
        return
    _State.graphs.remove(number)
    while not _State.graphs and _State.numbers:
        ledger.release(_State.numbers.pop())


class CUDAGraph:
    """Replacement of `torch.cuda.CUDAGraph`; its methods are those of torch."""

    def __init__(self, keep_graph: bool = False) -> None:
        _State.ledger.remark("unsupported", GRAPHS)
        self._pool, self.number = _new_pool(), next(_numbers)
        weakref.finalize(self, _gone, _State.ledger, self.number).atexit = False

    def capture_begin(self, pool: Any = None, *_args: Any, **_how: Any) -> None:
        self._pool = self._pool if pool is None else pool
        _captured(self)
        _State.ledger.streams.captured = self._pool

    def capture_end(self) -> None:
        _State.ledger.streams.captured = None

    def pool(self) -> tuple[int, int]:
        return self._pool

    def raw_cuda_graph(self) -> int:
        return id(self)

    def replay(self) -> None:
        _State.ledger.streams.replays += 1
        if _State.ledger.replayed is not None:
            _State.ledger.replayed()

    def _nothing(self, *_args: Any) -> None:
        """Do nothing: these methods do not change allocations."""

    instantiate = reset = enable_debug_mode = debug_dump = _nothing
    raw_cuda_graph_exec = raw_cuda_graph


class MemPool:
    """Replacement of `torch.cuda.MemPool`; its methods are those of torch."""

    def __init__(self, *_args: Any, **_how: Any) -> None:
        _State.ledger.remark("unsupported", POOLS)
        self.id = _new_pool()
        self.allocator = None

    def use_count(self) -> int:
        return 1

    def snapshot(self, *_args: Any, **_how: Any) -> list[Any]:
        return []


def changes(ledger: Ledger) -> list[Change]:
    """Return the changes of torch while the device is on."""
    _State.ledger = ledger
    _State.graphs.clear()
    _State.numbers.clear()

    def begin(_device: int, pool: tuple[int, int]) -> None:
        ledger.streams.wanted = pool

    def end(*_args: Any) -> None:
        ledger.streams.wanted = None

    found: list[Change] = []
    for place in (torch.cuda, torch.cuda.graphs):
        found += [(place, "CUDAGraph", CUDAGraph), (place, "graph_pool_handle", _new_pool)]
    found += pool_changes(begin, end, lambda *_args: None)
    return [*found, *((place, "MemPool", MemPool) for place in (torch.cuda, torch.cuda.memory))]
