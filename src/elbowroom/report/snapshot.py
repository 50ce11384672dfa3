"""Snapshot: the storages of a trace as a memory snapshot in PyTorch's form, for https://pytorch.org/memory_viz.

The form is that of torch.cuda.memory._dump_snapshot: a pickle of plain dicts. A storage is a block with its own
address. So the page shows when each storage is live, but no fragmentation. With a plan, storages that it swaps or
recomputes are freed in the last step and allocated again there. Memory that a recipe needs while it runs is left out.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import NamedTuple, final

from elbowroom.errors import UsageError
from elbowroom.plan import Plan
from elbowroom.report.subject import Subject
from elbowroom.trace import Trace

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
    made = _Snapshot(subject.trace)
    for change in sorted(_changes(subject.trace, subject.plan), key=lambda each: each[:2]):
        made.apply(change)
    return pickle.dumps({"segments": made.segments(), "device_traces": [made.entries]}, protocol=4)


def _changes(trace: Trace, plan: Plan | None) -> Iterator[_Change]:
    """Yield the changes of each storage; changes at one place keep the order of the trace."""
    for event in trace.events:
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


@final
class _Snapshot:
    """The snapshot while it grows: live blocks, and the actions so far."""

    def __init__(self, trace: Trace) -> None:
        self.entries: list[dict[str, object]] = []
        self._trace = trace
        self._live: dict[int, dict[str, object]] = {}
        self._ended = {e.storage: e.op for e in trace.events if e.size_bytes < 0}
        self._next = _BASE
        self._starts = _starts_us(trace)

    def apply(self, change: _Change) -> None:
        """Carry out one change, unless a plan has done so already."""
        op, storage = change.op, change.storage
        if op >= len(self._trace.ops):
            return
        if not change.allocates:
            block = self._live.pop(storage, None)
            for action in ("free_requested", "free_completed"):
                self._note(action, block, op)
            return
        if storage in self._live or (change.when == _BEFORE and self._ended.get(storage, op) < op):
            return
        self._live[storage] = self._block(op, storage)
        self._note("alloc", self._live[storage], op)

    def segments(self) -> list[dict[str, object]]:
        """Return the blocks that are live at the end, each in a segment of its own."""
        return [self._segment(block) for block in self._live.values()]

    def _note(self, action: str, block: Mapping[str, object] | None, op: int) -> None:
        if block is not None:
            self.entries.append({**block, "action": action, "time_us": self._starts[max(op, 0)]})

    def _block(self, op: int, storage: int) -> dict[str, object]:
        what = self._trace.storages[storage]
        address = self._next
        self._next += -(-max(what.size_bytes, 1) // _ALIGNED) * _ALIGNED
        made = self._trace.ops[op] if op >= 0 else None
        frames = [{"filename": f"storage {storage}, {what.category} {what.dtype}".strip(), "line": op, "name": ""}]
        if made is not None:
            frames[0]["name"] = made.name
            frames.append({"filename": made.module or "(no module)", "line": op, "name": made.phase})
        return {"addr": address, "size": what.size_bytes, "stream": 0, "frames": frames, "category": what.category}

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
