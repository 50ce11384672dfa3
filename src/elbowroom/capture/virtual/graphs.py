"""CUDA graphs and pools of memory: what would be captured runs as ever, and a replay does nothing.

A graph has a pool of its own, whose blocks no other op gets and which stays until the graph goes. That is not counted,
which a remark says: what the ops inside hold at most is, as that of ops outside.
"""

from __future__ import annotations

import itertools
from typing import Any, final

import torch

from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.runtime._torch_compat_device import pool_changes

Change = tuple[Any, str, Any]
GRAPHS = "CUDA graphs (as eager; what their pools keep to themselves until a graph goes is not counted)"
POOLS = "torch.cuda.MemPool (counted with the one pool of all others)"
_numbers = itertools.count(1)


def _new_pool() -> tuple[int, int]:
    """What names a pool."""
    return 0, next(_numbers)


@final
class _State:
    """The ledger of the device that is on."""

    ledger: Ledger


class CUDAGraph:
    """What stands for `torch.cuda.CUDAGraph`; its methods are those of torch."""

    def __init__(self, keep_graph: bool = False) -> None:
        _State.ledger.remark("unsupported", GRAPHS)
        self._pool = _new_pool()

    def capture_begin(self, pool: Any = None, *_args: Any, **_how: Any) -> None:
        self._pool = self._pool if pool is None else pool

    def pool(self) -> tuple[int, int]:
        return self._pool

    def raw_cuda_graph(self) -> int:
        return id(self)

    def _nothing(self, *_args: Any) -> None:
        """What changes nothing in what is allocated."""

    capture_end = instantiate = replay = reset = enable_debug_mode = debug_dump = _nothing
    raw_cuda_graph_exec = raw_cuda_graph


class MemPool:
    """What stands for `torch.cuda.MemPool`; its methods are those of torch."""

    def __init__(self, *_args: Any, **_how: Any) -> None:
        _State.ledger.remark("unsupported", POOLS)
        self.id = _new_pool()
        self.allocator = None

    def use_count(self) -> int:
        return 1

    def snapshot(self, *_args: Any, **_how: Any) -> list[Any]:
        return []


def changes(ledger: Ledger) -> list[Change]:
    """What is changed of torch while the device is on."""
    _State.ledger = ledger

    def uncaptured(callables: Any, *_args: Any, **_how: Any) -> Any:
        """`make_graphed_callables`: what is given runs as it is."""
        ledger.remark("unsupported", GRAPHS)
        return callables

    found: list[Change] = []
    for place in (torch.cuda, torch.cuda.graphs):
        found += [(place, "CUDAGraph", CUDAGraph), (place, "graph_pool_handle", _new_pool)]
        found.append((place, "make_graphed_callables", uncaptured))
    found += pool_changes(lambda *_args: None)
    return [*found, *((place, "MemPool", MemPool) for place in (torch.cuda, torch.cuda.memory))]
