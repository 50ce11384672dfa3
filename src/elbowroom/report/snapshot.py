"""Snapshot: the storages of a trace as a memory snapshot in PyTorch's form, for https://pytorch.org/memory_viz.

The form is that of torch.cuda.memory._dump_snapshot: a pickle of plain dicts. A trace of a GPU is played through the
model of the caching allocator. So blocks have the addresses that they get there, and segments come and go. On other
devices a storage is a block with its own address: the page shows when each is live, but no fragmentation.

With a plan the snapshot is of the last step: first what lies on the device where it begins, then the step. Storages
that the plan swaps or recomputes are freed in it and allocated again. Memory that a recipe needs while it runs is left
out.
"""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, final

from elbowroom.allocator.blocks import Block
from elbowroom.allocator.device_allocator import DeviceAllocator
from elbowroom.allocator.settings import as_set_by_script, parse_settings
from elbowroom.errors import UsageError
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.report.subject import Subject
from elbowroom.simulate.reserved_curve import streams_of
from elbowroom.trace import Trace

_EMPTY = -1
"""In the place of a storage: the allocator's cache is emptied."""
_BASE = 0x7F0000000000  # addresses look like those of a GPU
_ALIGNED = 512
_BEFORE, _DURING, _AFTER = range(3)


class _Change(NamedTuple):
    """One allocation or free: before, during or after an op."""

    op: int
    when: int
    storage: int
    allocates: bool


def snapshot_pickle(subject: Subject) -> bytes:
    """Make the snapshot of the trace of a report, under its plan if it has one.

    Raises:
        UsageError: there is no trace.
    """
    if subject.trace is None:
        raise UsageError("report: given no trace; a memory snapshot shows the storages of one; give a trace")
    made = _Snapshot(subject.trace, _allocator(subject.trace, subject.machine))
    changes = sorted(_changes(subject.trace, subject.plan), key=lambda each: each[:2])
    for change in changes if subject.plan is None else _of_last_step(changes, subject.trace.steps[-1].first_op):
        made.apply(change)
    return pickle.dumps({"segments": made.segments(), "device_traces": [made.entries]}, protocol=4)


def _changes(trace: Trace, plan: Plan | None) -> Iterator[_Change]:
    """Yield the changes of each storage; changes at one place keep the order of the trace."""
    empties = set(trace.empties)
    for number, event in enumerate(trace.events):
        if number in empties:
            yield _Change(event.op, _DURING, _EMPTY, allocates=False)
        yield _Change(event.op, _DURING, event.storage, event.size_bytes > 0)
    if plan is None:
        return
    first = trace.steps[-1].first_op
    for swap in plan.swaps:
        if swap.back_before_op <= swap.out_after_op:  # away over the end of the step, so at its beginning too
            yield _Change(first - 1, _AFTER, swap.storage, allocates=False)
        yield _Change(swap.out_after_op, _AFTER, swap.storage, allocates=False)
        yield _Change(swap.back_before_op, _BEFORE, swap.storage, allocates=True)
    idle_from = {save.storage: save.idle_from for save in trace.saves if save.saved_at >= first}
    for recompute in plan.recomputes:
        for storage in recompute.storages:
            left = idle_from.get(storage)
            if left is not None:
                yield _Change(left - 1, _AFTER, storage, allocates=False)
                yield _Change(recompute.before_op, _BEFORE, storage, allocates=True)


def _of_last_step(changes: Sequence[_Change], first: int) -> Iterator[_Change]:
    """Yield the allocations of what lives where the step from op `first` on begins, and the changes in it."""
    live: dict[int, _Change] = {}
    for change in changes:
        if change.op >= first:
            break
        if change.allocates:
            live[change.storage] = change
        else:
            live.pop(change.storage, None)
    yield from live.values()
    yield from (change for change in changes if change.op >= first)


def _allocator(trace: Trace, machine: Machine | None) -> DeviceAllocator | None:
    """Return the allocator of a trace's device, with the settings of the machine; None if it has none that caches."""
    if not trace.device.startswith("cuda"):
        return None
    settings = "" if machine is None else as_set_by_script(machine, trace).allocator
    return DeviceAllocator(parse_settings("" if settings == "exact" else settings), None, wait_for_synchronize=False)


class _Segment(NamedTuple):
    """Mapped memory of the allocator without a gap: its blocks in order."""

    blocks: tuple[Block, ...]

    @property
    def size_bytes(self) -> int:
        return sum(block.size for block in self.blocks)


def _segments_of(device: DeviceAllocator) -> dict[int, _Segment]:
    """Return the segments that an allocator holds, by address."""
    free = (block for pool in device.shelves for shelf in pool.values() for block in shelf.blocks.values())
    held = [*(block for block in device.live.values() if block is not None), *free]
    found: dict[int, _Segment] = {}
    for block in held:
        if block.prev is not None and block.prev.mapped:
            continue
        blocks, after = [block], block.next
        while after is not None and after.mapped:
            blocks.append(after)
            after = after.next
        found[block.address] = _Segment(tuple(blocks))
    return dict(sorted(found.items()))


@final
class _Snapshot:
    """The snapshot while it grows: live blocks, and the actions so far.

    Args:
        trace: the trace.
        device: its allocator; None if each storage gets an address of its own.
    """

    def __init__(self, trace: Trace, device: DeviceAllocator | None) -> None:
        self.entries: list[dict[str, object]] = []
        self._trace = trace
        self._device = device
        self._streams = {} if device is None else streams_of(trace)
        self._reserved: dict[int, int] = {}
        self._changes = 0
        self._live: dict[Hashable, dict[str, object]] = {}
        self._ended = {e.storage: e.op for e in trace.events if e.size_bytes < 0}
        self._next = _BASE
        self._starts = _starts_us(trace)

    def apply(self, change: _Change) -> None:
        """Carry out one change, unless a plan has done so already."""
        op, storage = change.op, change.storage
        if op >= len(self._trace.ops):
            return
        if storage == _EMPTY:
            if self._device is not None:
                self._device.empty_cache()
                self._note_segments(op)
            return
        if not change.allocates:
            block = self._live.pop(storage, None)
            for action in ("free_requested", "free_completed"):
                self._note(action, block, op)
            if block is not None and self._device is not None:
                self._device.free(storage)
                self._note_segments(op)
            return
        if storage in self._live or (change.when == _BEFORE and self._ended.get(storage, op) < op):
            return
        self._live[storage] = self._block(op, storage)
        if self._device is not None:
            self._note_segments(op)
        self._note("alloc", self._live[storage], op)

    def segments(self) -> list[dict[str, object]]:
        """Return what is held at the end: the allocator's segments, else each live block in one of its own."""
        if self._device is None:
            return [self._segment(block) for block in self._live.values()]
        keys = {block.address: storage for storage, block in self._device.live.items() if block is not None}
        return [self._held(address, segment, keys) for address, segment in _segments_of(self._device).items()]

    def _held(self, address: int, segment: _Segment, keys: Mapping[int, Hashable]) -> dict[str, object]:
        """Return a segment of the allocator in the form of a snapshot.

        Args:
            address: its address, counted from the first one.
            segment: its blocks.
            keys: storage of each live block, by address.
        """
        shelf, live = segment.blocks[0].shelf, [block for block in segment.blocks if block.address in keys]
        blocks: list[dict[str, object]] = []
        for block in segment.blocks:
            storage = keys.get(block.address)
            made = {} if storage is None else self._live[storage]
            blocks.append(
                {
                    "address": _BASE + block.address,
                    "size": block.size,
                    "requested_size": block.requested if made else 0,
                    "state": "active_allocated" if made else "inactive",
                    "frames": made.get("frames", []),
                    "category": made.get("category", "unknown"),
                }
            )
        allocated = sum(block.size for block in live)
        return {
            "device": 0,
            "address": _BASE + address,
            "total_size": segment.size_bytes,
            "allocated_size": allocated,
            "active_size": allocated,
            "requested_size": sum(block.requested for block in live),
            "stream": shelf.stream,
            "segment_type": "large" if shelf.large else "small",
            "segment_pool_id": (0, 0),
            "is_expandable": self._device is not None and self._device.settings.expandable_segments,
            "frames": [],
            "blocks": blocks,
        }

    def _note_segments(self, op: int) -> None:
        """Note segments that the allocator took from the driver or gave back since the last time."""
        assert self._device is not None
        if len(self._device.log.reserved) == self._changes:
            return
        self._changes = len(self._device.log.reserved)
        now = {address: each.size_bytes for address, each in _segments_of(self._device).items()}
        expands = self._device.settings.expandable_segments
        took, gave = ("segment_map", "segment_unmap") if expands else ("segment_alloc", "segment_free")
        for address in sorted(self._reserved.keys() | now.keys()):
            before, after = self._reserved.get(address, 0), now.get(address, 0)
            if before != after:
                place = {"addr": _BASE + address + min(before, after), "size": abs(after - before), "stream": 0}
                self._note(took if after > before else gave, {**place, "frames": []}, op)
        self._reserved = now

    def _note(self, action: str, block: Mapping[str, object] | None, op: int) -> None:
        if block is not None:
            self.entries.append({**block, "action": action, "time_us": self._starts[max(op, 0)]})

    def _block(self, op: int, storage: int) -> dict[str, object]:
        what = self._trace.storages[storage]
        address = self._address(storage, what.size_bytes)
        made = self._trace.ops[op] if op >= 0 else None
        frames = [{"filename": f"storage {storage}, {what.category} {what.dtype}".strip(), "line": op, "name": ""}]
        if made is not None:
            frames[0]["name"] = made.name
            frames.append({"filename": made.module or "(no module)", "line": op, "name": made.phase})
        return {
            "addr": address,
            "size": what.size_bytes,
            "stream": next(iter(self._streams.get(storage, ())), 0),
            "frames": frames,
            "category": what.category,
        }

    def _address(self, storage: int, size_bytes: int) -> int:
        """Allocate a storage; return its address."""
        if self._device is None:
            address = self._next
            self._next += -(-max(size_bytes, 1) // _ALIGNED) * _ALIGNED
            return address
        self._device.allocate(storage, size_bytes, *self._streams.get(storage, ()))
        block = self._device.live[storage]
        return self._next if block is None else _BASE + block.address  # none for a storage of no bytes

    @staticmethod
    def _segment(block: dict[str, object]) -> dict[str, object]:
        size, address = block["size"], block["addr"]
        held = {"address": address, "size": size, "requested_size": size, "state": "active_allocated"}
        return {
            "device": 0,
            "address": address,
            "total_size": size,
            "allocated_size": size,
            "active_size": size,
            "requested_size": size,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": block["frames"],
            "blocks": [held | {"frames": block["frames"], "category": block["category"]}],
        }


def _starts_us(trace: Trace) -> list[int]:
    """Return when each op starts, counted from the first one."""
    starts, now_ns = [0], 0
    for op in trace.ops:
        now_ns += op.duration_ns
        starts.append(now_ns // 1000)
    return starts
