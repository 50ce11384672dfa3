"""Profiler stream: what torch's own profiler sees of a run, in order: ops, blocks of the allocator, and our markers.

The profiler only observes: with it on, torch takes the same paths. A dispatch mode does more: some backward formulas
then take the way for tensor subclasses, and round differently. Every block that torch's allocator hands out or takes
back appears with its address. That includes tensors of Python and scratch memory inside kernels. Markers put events
that Python sees (autograd saves, a module begins) into the same order.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch.profiler import ProfilerActivity, profile

from elbowroom.capture.recording.cuda_memory import CudaMemory, Request
from elbowroom.torch_compat.core import next_node_number
from elbowroom.torch_compat.operators import operator, reads_bytes
from elbowroom.torch_compat.profiler import (
    address_of,
    drop_profile,
    let_profile_go,
    marker,
    profiler_events,
    profiler_running,
)

PREFIX = "elbowroom:"
GLOO = "gloo:"
"""What the names of gloo's collectives begin with, as its threads record them."""
BACKWARD = "autograd::engine::evaluate_function: "
UNHEARD = (b"USDT:", b"before the profiling started", b"Toggling CPU activity", b"no active profiling session found")
"""Parts of the profiler's own notes that are not passed on."""
COMPILER = "TorchDynamo Cache Lookup"
"""Name of the range in which torch.compile looks up its compiled code of a called function."""


class RecordedBlock(NamedTuple):
    """A storage: its address, its bytes and the element type of a tensor on it ("" if it is not known)."""

    address: int
    size_bytes: int
    dtype: str


@dataclass(slots=True)
class Allocation:
    """A block was handed out, or taken back if `freed`."""

    block: RecordedBlock
    freed: bool


@dataclass(slots=True)
class Mark:
    """Marker number `number`."""

    number: int


@dataclass(slots=True)
class OpSeen:
    """One op.

    Attributes:
        name: name, such as "aten.convolution".
        reads, writes: the storages of its arguments; `writes` are changed in place.
        node: sequence number of the autograd node that it made; in backward, of the node that runs it.
        backward: whether the autograd engine ran it.
        arguments: the shapes of tensors, the values of flags, and None for the rest.
        start_ns, end_ns: times on the profiler's clock.
    """

    name: str
    reads: tuple[RecordedBlock, ...]
    writes: tuple[RecordedBlock, ...]
    node: int
    backward: bool
    arguments: tuple[tuple[int, ...] | bool | None, ...]
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class ExchangeSeen:
    """A collective of gloo, from when one of its threads begins with it until it is done.

    Attributes:
        name: name, such as "gloo:all_reduce".
        size_bytes: bytes of its tensors.
        start_ns, end_ns: times on the profiler's clock.
    """

    name: str
    size_bytes: int
    start_ns: int
    end_ns: int


class Item(NamedTuple):
    """One entry of the stream; `ends` marks the end of an op."""

    at_ns: int
    what: Allocation | Mark | OpSeen | ExchangeSeen
    ends: bool = False


@final
class ProfilerStream:
    """Recording between `start` and `stop`; `mark(i)` is a context that appears as marker i.

    Args:
        device: the device whose blocks are recorded.

    Attributes:
        compiled: whether some recorded code went through torch.compile.
    """

    def __init__(self, device: torch.device) -> None:
        self.compiled = False
        self._first_node = 0
        self._device = device
        self._session: Any = None
        self._memory = CudaMemory(device) if device.type == "cuda" else None

    def start(self) -> bool:
        """Begin; return False if the profiler is in other use."""
        if profiler_running():
            return False
        session = profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True)
        known_before = torch.empty(1024)
        with _quiet(), warnings.catch_warnings():
            # torch 2.11 warns that a second cycle would begin again. There is no second cycle here. With acc_events,
            # which it advises, torch makes a table of all events at the end: three quarters of a recording's cost.
            warnings.filterwarnings("ignore", "(?s).*Profiler clears events")
            session.__enter__()
            del known_before  # torch warns once about a block from before the profile: here the warning is caught
        self._session = session
        self._first_node = next_node_number()
        if self._memory is not None:
            self._memory.start()
        return True

    @property
    def nodes(self) -> int:
        """The nodes that autograd has made in this thread since the beginning."""
        return next_node_number() - self._first_node

    @staticmethod
    def mark(number: int) -> AbstractContextManager[None]:
        """Return the context for one marker."""
        return marker(f"{PREFIX}{number}")

    def stop(self) -> list[Item]:
        """Stop and return the stream in order."""
        requests = [] if self._memory is None else self._memory.stop()
        with _quiet():
            self._session.__exit__(None, None, None)
        threads: dict[int, list[Item]] = {}
        for root in profiler_events(self._session):
            threads.setdefault(root.start_tid, []).extend(self._items(root))
        items = [item for each in threads.values() for item in _of_training(each)]
        let_profile_go(self._session)
        self._session = None
        items.sort(key=_in_order)
        return _with_requests(items, requests) if requests else items

    def drop(self) -> None:
        """Stop without a look at what was recorded."""
        if self._memory is not None:
            self._memory.stop()
        with _quiet():
            drop_profile(self._session)
        self._session = None

    def _items(self, root: Any) -> Iterator[Item]:
        """Yield the items of one tree of events; of an op's children only allocations and markers count."""
        pending: list[tuple[Any, int | None, bool]] = [(root, None, False)]
        while pending:
            event, node, inside = pending.pop()
            tag = event.tag.name
            if tag == "Allocation":
                fields = event.extra_fields
                if fields.alloc_size and _same(fields.device, self._device):
                    block = RecordedBlock(fields.ptr, abs(fields.alloc_size), "")
                    yield Item(event.start_time_ns, Allocation(block, fields.alloc_size < 0))
            elif event.name.startswith(PREFIX):
                yield Item(event.start_time_ns, Mark(int(event.name[len(PREFIX) :])))
            elif event.name.startswith(GLOO):
                yield Item(event.start_time_ns, _exchange(event))
            elif tag == "TorchOp":
                if event.name.startswith(BACKWARD):
                    node = event.extra_fields.sequence_number
                elif not inside:
                    seen = _op(event, node, self._device)
                    if seen is not None:
                        inside = True
                        yield from _of_op(seen)
                    self.compiled |= event.name == COMPILER
            pending.extend((child, node, inside) for child in event.children if not _is_unpacking(event, child))


def _of_op(seen: OpSeen) -> Iterator[Item]:
    """Yield the begin and the end of an op; nothing if the recording ended in it, as it belongs to the next step."""
    if seen.start_ns <= seen.end_ns:
        yield Item(seen.start_ns, seen)
        yield Item(seen.end_ns, seen, ends=True)


def _of_training(items: list[Item]) -> list[Item]:
    """Return the items of a thread that belong to the step.

    Threads of collectives and loaders run other ops at the same time. Only their allocations and collectives count.
    """
    if any(isinstance(what, Mark) or (isinstance(what, OpSeen) and what.backward) for _, what, _ in items):
        return items
    return [item for item in items if isinstance(item.what, (Allocation, ExchangeSeen))]


def _in_order(item: Item) -> tuple[int, bool]:
    return item.at_ns, item.ends


def _with_requests(items: list[Item], requests: list[Request]) -> list[Item]:
    """Replace the bytes of each block by the requested ones, and add blocks that the profiler missed."""
    seen = [(item, item.what) for item in items if isinstance(item.what, Allocation)]
    missed: list[Item] = []
    at = 0
    for request in requests:
        what = Allocation(RecordedBlock(request.address, request.size_bytes, ""), request.freed)
        if at < len(seen) and (seen[at][1].block.address, seen[at][1].freed) == (request.address, request.freed):
            seen[at][1].block = what.block
            at += 1
        else:
            missed.append(Item(request.at_ns, what))
    # If the profiler has a block that the allocator's history lacks, the two cannot be matched.
    return sorted([*items, *missed], key=_in_order) if at == len(seen) else items


def _is_unpacking(node: Any, op: Any) -> bool:
    """Return whether torch unpacks a saved tensor for a convolution's backward: that is an op only in a dispatch mode.

    A mode is on if that backward runs in another memory format (engine/memory_formats.py).
    """
    return op.name == "aten::detach" and node.name == "ConvolutionBackward0"


def _same(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index or 0) == (other.index or 0)


def _op(event: Any, node: int | None, device: torch.device) -> OpSeen | None:
    """Return the op of an event; `node` is the autograd node that runs it, None in forward."""
    inputs = event.extra_fields.inputs
    known = operator(event.name, len(inputs))
    if known is None:
        return None
    blocks = [list(_blocks(argument, device)) for argument in inputs]
    return OpSeen(
        name=event.name.replace("::", "."),
        reads=()
        if known.views or not reads_bytes(event.name)
        else tuple(b for i, bs in enumerate(blocks) if i not in known.writes for b in bs),
        writes=tuple(b for i, bs in enumerate(blocks) if i in known.writes for b in bs),
        node=event.extra_fields.sequence_number if node is None else node,
        backward=node is not None,
        arguments=tuple(_argument(each) for each in inputs),
        start_ns=event.start_time_ns,
        end_ns=event.end_time_ns,
    )


def _exchange(event: Any) -> ExchangeSeen:
    """Return the collective of an event."""
    size_bytes = sum(map(_bytes_of, event.extra_fields.inputs))
    return ExchangeSeen(event.name, size_bytes, event.start_time_ns, event.end_time_ns)


def _bytes_of(argument: Any) -> int:
    """Return the bytes of a tensor, or of a list of tensors; 0 of anything else."""
    if isinstance(argument, list):
        return sum(map(_bytes_of, argument))  # pyright: ignore[reportUnknownArgumentType]
    sizes = getattr(argument, "sizes", None)
    return 0 if sizes is None else math.prod(sizes) * argument.dtype.itemsize


def _argument(argument: Any) -> tuple[int, ...] | bool | None:
    """Return the shape of a tensor, also of one whose bytes are away when its op begins; or a flag."""
    sizes = getattr(argument, "sizes", None)
    if sizes is not None:
        return tuple(sizes)
    return argument if isinstance(argument, bool) else None


def _blocks(argument: Any, device: torch.device) -> Iterator[RecordedBlock]:
    """Yield the storages of an argument on a device: a tensor's, those of a list of tensors, or nothing."""
    if isinstance(argument, list):
        for each in argument:  # pyright: ignore[reportUnknownVariableType]
            yield from _blocks(each, device)
    elif (address := address_of(argument)) and _same(argument.device, device):
        span = sum((size - 1) * abs(stride) for size, stride in zip(argument.sizes, argument.strides, strict=False)) + 1
        dtype = argument.dtype
        size_bytes = span * dtype.itemsize if all(argument.sizes) else 0
        yield RecordedBlock(address, size_bytes, str(dtype).removeprefix("torch."))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the profiler's start and stop notes off stderr, where they would mix with the user's own lines.

    Kineto writes them from C++. Only its environment variable turns them off, and only before its first use. So
    descriptor 2 goes to a file for these few milliseconds. All other lines are passed on afterwards.
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
                if not any(part in line for part in UNHEARD):
                    os.write(2, line)
