"""Last step: facts that follow from a trace: nominal times, allocated bytes, ticks, and where saves are idle.

Three coordinates are used. A *position* lies between two ops (see trace.py). A *point* is one entry of the keep-all
level. Each position has a point (the level before its op starts). Each alloc or free event has one (the level after
it). A *slot* is a run of points between two borders. Borders are the only points at which a move of a plan can begin or
end. A plan is weighed slot by slot, which costs the same however many ops lie between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import chain
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from elbowroom.errors import UsageError
from elbowroom.step.idle_windows import Window, parts_of, state_windows
from elbowroom.step.overlap import Overlap, overlap_of
from elbowroom.step.released_gradients import Lives, released_windows, replaced_gradients
from elbowroom.trace import Category, Part, Save, Step, Trace
from elbowroom.units import NONE, format_bytes

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_LEAVE: dict[Category, int] = {"parameter": 0, "optimizer_state": 1, "gradient": 2}
"""In which order a run lets storages leave at one place."""

SWAPPABLE: tuple[Category, ...] = ("activation", "temporary", "workspace")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LastStep:
    """Facts of the last step of a trace, all derived from it.

    An array per position has the entry of position p at index p - first_op, for first_op to end_op.

    Attributes:
        trace: the trace of the step.
        first_op: the step's first op.
        end_op: one past its last op.
        saves: what autograd saved in this step; the n-th entry is the n-th saved storage.
        parts: the parts of optimizers' steps in it; empty if they were not carried out in parts.
        accumulations: the accumulations of gradients in it; empty if gradients may not move.
        uses: the uses of parameters in it; empty if parameters may not move.
        handed: the ops to which gradients that are away are handed in parts (handed_gradients.py).
        at_ns: per position, time from the start of the step when nothing ever stalls.
        level: per point, allocated bytes when every storage is kept.
        point_of: per position, the point before its op starts.
        born: per storage, the point from which it is allocated; 0 if it was allocated before the step.
        gone: per storage, the point from which it is freed; len(level) if it outlives the step.
        borders: points at which slots begin; the first is 0.
        slot_peak: per slot, maximum of `level`.
        ticks: positions at which the runtime gets control, ascending: every first save, every read back, and
            the borders of parts and accumulations.
        storage: per window, the storage. The n-th window is that of the n-th save. After the saves come the windows of
            optimizer states, gradients and parameters (idle_windows.py).
        size: per window, bytes.
        saved_at: per window, position of the save; idle_from for states and gradients.
        idle_from: per window, position; end_op if something else holds a save all the time.
        first_read: per window, position of the next use; end_op if a save is never read back. If it is not after
            idle_from, the window goes on in the next step. For a gradient that is not used again, it is where that
            is freed.
        returns: per window, whether it is used again at all.
        freed: per window, the point at which its storage is freed. For a gradient that outlives the step without being
            used again, that is the point of the next step; 0 if it is freed between the two.
        replaced: by such a gradient, the one of the step before that is freed there.
        repeated: per window, whether its storage has another one, as it was saved more than once in the step.
        written_op: per window, the first op from saved_at on that writes it before it is read back, else end_op.
        used_op: per window, the first op from idle_from on that reads or writes it before it is read back, else end_op.
        storage_bytes: per storage, its bytes.
        first_event: index of the step's first event.
        overlap: when the collectives of the step run; None if it has none.
        scratch: by op, (number of its earlier events, bytes) of a workspace that the trace has no storage for.
    """

    trace: Trace
    first_op: int
    end_op: int
    saves: tuple[Save, ...]
    parts: tuple[Part, ...]
    accumulations: tuple[Part, ...]
    uses: tuple[Part, ...]
    handed: tuple[Part, ...]
    at_ns: Ints
    level: Ints
    point_of: Ints
    born: Ints
    gone: Ints
    borders: Ints
    slot_peak: Ints
    ticks: Ints
    storage: Ints
    size: Ints
    saved_at: Ints
    idle_from: Ints
    first_read: Ints
    returns: Flags
    freed: Ints
    replaced: Mapping[int, int]
    repeated: Flags
    written_op: Ints
    used_op: Ints
    storage_bytes: Ints
    first_event: int
    scratch: Mapping[int, tuple[int, int]]
    overlap: Overlap | None

    def points(self, positions: Ints) -> Ints:
        """Return the point of each position."""
        return self.point_of[positions - self.first_op]

    def slots(self, points: Ints) -> Ints:
        """Return the slot that begins at each point (points must be borders, or the end)."""
        return np.searchsorted(self.borders, points, side="left").astype(np.int64)

    def nominal_ns(self, positions: Ints) -> Ints:
        """Return the time of each position when nothing stalls."""
        return self.at_ns[positions - self.first_op]

    @property
    def window_of(self) -> dict[int, int]:
        """The window of each storage that has one; the first one of a parameter or gradient."""
        return {storage: n for n, storage in reversed(list(enumerate(listed(self.storage))))}

    def windows_of(self, swaps: Iterable[tuple[int, int]]) -> list[int | None]:
        """Return the window of each swap, given as (storage, out_after_op). A parameter or gradient has several."""
        first, only = len(self.saves), self.window_of
        places = zip(listed(self.storage[first:]), listed(self.idle_from[first:]), strict=True)
        n_of = {(storage, position - 1): n for n, (storage, position) in enumerate(places, first)}
        return [n_of.get(swap, only.get(swap[0])) for swap in swaps]

    def wraps(self, n: Ints, back: Ints) -> Flags:
        """Return whether windows `n` that are back before positions `back` are away across the end of the step."""
        return (n >= len(self.saves)) & (back < self.saved_at[n])

    def window(self, n: Ints, back: Ints) -> tuple[Ints, Ints]:
        """Return points [begin, end) at which windows `n` are away when they are back before the positions `back`.

        A window that wraps is away from `begin` to the step's end, and from its start to `end`.
        """
        begin = self.points(self.idle_from[n])
        end = np.where(self.returns[n], np.minimum(self.points(back), self.freed[n]), self.freed[n])
        return begin, np.where(self.wraps(n, back), end, np.maximum(begin, end))

    def storage_of(self, n: Ints) -> Ints:
        """Return the storage id of each window."""
        return self.storage[n]

    def storage_away(self, n: Ints, points: Ints) -> Ints:
        """Return the storage that each window has away at a point: before a gradient is made, that of the step before.

        See released_gradients.py.
        """
        found = self.storage[n]
        if not self.replaced:
            return found
        early = points < self.born[found]
        old = [self.replaced.get(storage, storage) for storage in listed(found)]
        return np.where(early, np.array(old, np.int64), found)

    def events_of(self, op: int) -> list[tuple[int, int]]:
        """Return (storage, bytes) of the events of an op, bytes < 0 for a free; scratch memory has storage NONE."""
        return _events_by_op(self)[op - self.first_op]

    def op_ns(self, op: int) -> int:
        """Return the time of one op."""
        k = op - self.first_op
        return int(self.at_ns[k + 1] - self.at_ns[k])

    def own_ns(self, op: int) -> int:
        """Return the time of one op without waits for collectives."""
        return self.op_ns(op) - (0 if self.overlap is None else self.overlap.waits_ns.get(op, 0))

    def time_of(self, ops: Iterable[int]) -> int:
        """Return the time of some ops that run again, one after the other."""
        return sum(map(self.own_ns, ops))

    def op_at(self, point: int) -> int:
        """Return the op during which (or directly after which) a point lies; the last op for the end of the step."""
        at = int(np.searchsorted(self.point_of, point, side="right")) - 1
        return min(self.first_op + at, self.end_op - 1)


@lru_cache(maxsize=4)
def _events_by_op(step: LastStep) -> list[list[tuple[int, int]]]:
    """Return the events of each op of a step: see `LastStep.events_of`."""
    found: list[list[tuple[int, int]]] = []
    sizes, points = listed(step.storage_bytes), listed(step.point_of)
    for k in range(step.end_op - step.first_op):
        happens = step.trace.events[step.first_event + points[k] - k : step.first_event + points[k + 1] - k - 1]
        own = [(s, sizes[s] if size > 0 else -sizes[s]) for _, s, size in happens if sizes[s]]
        if step.first_op + k in step.scratch:
            at, size_bytes = step.scratch[step.first_op + k]
            own[at:at] = [(NONE, size_bytes), (NONE, -size_bytes)]
        found.append(own)
    return found


def listed(values: Ints) -> list[int]:
    """Return an array as a list of Python ints."""
    return values.tolist()


def last_step(trace: Trace) -> LastStep:
    """Return the last step's facts, derived once and kept with the trace. Cost: linear in its ops and events."""
    kept = trace.derived.get("last_step")
    if not isinstance(kept, LastStep):
        kept = trace.derived["last_step"] = _derived(trace)
        for each in fields(kept):
            if isinstance(values := getattr(kept, each.name), np.ndarray):
                values.flags.writeable = False  # all callers share this one
    return kept


def _derived(trace: Trace) -> LastStep:
    step = _step_with_ops(trace)
    saves = tuple(s for s in trace.saves if step.first_op <= s.saved_at <= step.end_op)
    overlap = overlap_of(trace, step)
    durations = (op.duration_ns for op in trace.ops[step.first_op : step.end_op])
    at_ns = _cumulative(durations if overlap is None else overlap.op_ns)
    level, point_of, born, gone = _levels(trace, step)
    replaced = replaced_gradients(trace, step, lives := Lives(born=listed(born), gone=listed(gone), end=len(level)))
    released = released_windows(trace, step, lives, listed(point_of), replaced)
    states = _states(trace, step, saves, at_ns, (born == 0) & (gone == len(level)), released)
    per_window = _per_window(trace, step, saves, states)
    ticks = _ticks(step, saves, inside := parts_of(trace, step))
    marks = np.concatenate([ticks, per_window["idle_from"], per_window["first_read"][len(saves) :]])
    gone_of, gone_before = gone[per_window["storage"]], _ints(gone[old] for old in replaced.values())
    borders = _borders(level, gone_of, gone_before, point_of[marks - step.first_op])
    sizes = _ints(storage.size_bytes for storage in trace.storages)
    return LastStep(
        trace=trace,
        first_op=step.first_op,
        end_op=step.end_op,
        saves=saves,
        parts=tuple(part for part in inside if part.kind == "optimizer"),
        accumulations=tuple(part for part in inside if part.kind == "accumulation"),
        uses=tuple(part for part in inside if part.kind == "use"),
        handed=tuple(part for part in inside if part.kind == "handed"),
        at_ns=at_ns,
        level=level,
        point_of=point_of,
        born=born,
        gone=gone,
        borders=borders,
        slot_peak=np.maximum.reduceat(level, borders),
        ticks=ticks,
        size=sizes[per_window["storage"]],
        returns=np.array([*(bool(s.read_at) for s in saves), *(w.freed is None for w in states)], dtype=np.bool_),
        freed=_freed(gone_of, states),
        replaced=replaced,
        repeated=_repeated(per_window["storage"]),
        storage_bytes=sizes,
        first_event=bisect_left(trace.events, step.first_op, key=itemgetter(0)),
        scratch={},
        overlap=overlap,
        **per_window,
    )


def _step_with_ops(trace: Trace) -> Step:
    if not trace.steps or trace.steps[-1].end_op <= trace.steps[-1].first_op:
        raise UsageError("the trace holds no step with ops in it; capture at least one whole training step")
    return trace.steps[-1]


def _per_window(trace: Trace, step: Step, saves: tuple[Save, ...], states: list[Window]) -> dict[str, Ints]:
    """Return the attributes that have an entry per window: of saves, then of states, gradients and parameters."""
    found = _per_save(trace, step, saves) | {"storage": _ints(s.storage for s in saves)}
    return {name: np.concatenate([values, _of_states(step, states, name)]) for name, values in found.items()}


def _freed(gone: Ints, states: list[Window]) -> Ints:
    """Return the point at which the storage of each window is freed; `gone` says it for the step, `states` beyond."""
    first = len(gone) - len(states)
    later = [int(gone[first + n]) if window.freed is None else window.freed for n, window in enumerate(states)]
    return np.concatenate([gone[:first], np.array(later, np.int64)])


def _states(
    trace: Trace, step: Step, saves: tuple[Save, ...], at_ns: Ints, stays: Flags, released: Iterable[Window]
) -> list[Window]:
    """Return the windows of what outlives its use, in the order in which they begin.

    Args:
        trace: the trace.
        step: its last step.
        saves: what autograd saves in it.
        at_ns: per position, its time.
        stays: per storage, whether it is allocated all through the step.
        released: the windows of gradients after their last use.
    """
    saved = {save.storage for save in saves}
    lasting = [stay and s not in saved for s, stay in enumerate(stays.tolist())]
    found = (*state_windows(trace, step, at_ns.tolist(), lasting), *released)
    places = [(w.idle_from, _LEAVE.get(trace.storages[w.storage].category, 0), w.storage, w) for w in found]
    return [w for *_, w in sorted(places) if w.storage not in saved]


def _ticks(step: Step, saves: tuple[Save, ...], parts: tuple[Part, ...]) -> Ints:
    """Return the positions at which the runtime gets control."""
    reads = [p for save in saves for p in save.read_at if p <= step.end_op]
    borders = [p for part in parts for p in (part.first_op, part.end_op)]
    return np.unique(_ints([*(save.saved_at for save in saves), *reads, *borders]))


def _per_save(trace: Trace, step: Step, saves: tuple[Save, ...]) -> dict[str, Ints]:
    """Return the fields of LastStep that have an entry per save, except its storage."""
    idle_from = _ints(step.end_op if s.idle_from is None else min(s.idle_from, step.end_op) for s in saves)
    first_read = _ints(s.read_at[0] if s.read_at else step.end_op for s in saves)
    written_op, used_op = _accesses(trace, step, saves, np.minimum(idle_from, first_read), first_read)
    return {
        "saved_at": _ints(s.saved_at for s in saves),
        "idle_from": idle_from,
        "first_read": first_read,
        "written_op": written_op,
        "used_op": used_op,
    }


def _of_states(step: Step, states: list[Window], name: str) -> Ints:
    """Return the entries of a field for optimizer states and gradients: no op uses them in their windows."""
    if name == "storage":
        return _ints(window.storage for window in states)
    if name == "first_read":
        return _ints(window.next_use for window in states)
    if name in ("saved_at", "idle_from"):
        return _ints(window.idle_from for window in states)
    return np.full(len(states), step.end_op, np.int64)


def _repeated(storages: Ints) -> Flags:
    """Return per window whether another window has the same storage."""
    _, which, times = np.unique(storages, return_inverse=True, return_counts=True)
    return times[which] > 1


def why_kept(step: LastStep, n: int) -> str | None:
    """Say why the n-th saved storage may not be swapped at all; None if it may."""
    save, storage = step.saves[n], step.trace.storages[step.saves[n].storage]
    born = step.born[save.storage]
    if storage.category not in SWAPPABLE:
        return f"its category is {storage.category!r}; only {', '.join(SWAPPABLE)} may move"
    if save.idle_from is None:
        return "something other than autograd holds it until it is read, so swapping it frees nothing"
    if step.repeated[n]:
        return "autograd saved it more than once in the step"
    if any(p > step.end_op for p in save.read_at):
        return "it is read back after the step has ended"
    if step.written_op[n] < step.end_op:
        return f"it is written in place by {op_label(step.trace, int(step.written_op[n]))} after it was saved"
    if step.points(step.idle_from[n]) < born:
        return "the trace calls it idle at a time at which it is not allocated"
    return None


def is_lasting(step: LastStep, storage: int) -> bool:
    """Return whether a storage is allocated all through the step."""
    return not step.born[storage] and int(step.gone[storage]) == len(step.level)


def allocated_at(step: LastStep, point: int) -> Ints:
    """Ids of the storages that are allocated at a point when every storage is kept."""
    return np.nonzero((step.born <= point) & (point < step.gone))[0].astype(np.int64)


def peak_point(step: LastStep, needed: Ints) -> int:
    """Return the point at which a per-slot curve peaks; in each slot it is the keep-all level less a constant."""
    slot = int(needed.argmax())
    end = step.borders[slot + 1] if slot + 1 < len(step.borders) else len(step.level)
    return int(step.borders[slot] + step.level[step.borders[slot] : end].argmax())


def maker_of(trace: Trace, storage: int) -> int | None:
    """Return the op during which a storage was allocated; None if that was before the first op."""
    op = next((e.op for e in trace.events if e.storage == storage and e.size_bytes > 0), -1)
    return None if op < 0 else op


def op_label(trace: Trace, op: int) -> str:
    """Name an op in words, such as "op 12 aten.relu.default in 'net.2' (forward)"."""
    made = trace.ops[op]
    where = f" in {made.module!r}" if made.module else ""
    return f"op {op} {made.name}{where} ({made.phase})"


def storage_label(trace: Trace, storage: int) -> str:
    """Name a storage in words, such as "storage 7 (12.0 MiB, activation, made by op 3 aten.relu.default (forward))"."""
    what, maker = trace.storages[storage], maker_of(trace, storage)
    made = "there before the first op" if maker is None else f"made by {op_label(trace, maker)}"
    return f"storage {storage} ({format_bytes(what.size_bytes)}, {what.category}, {made})"


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _cumulative(durations: Iterable[int]) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(_ints(durations))])


def _levels(trace: Trace, step: Step) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the keep-all level per point, the point of each position, and where each storage is born and gone."""
    ops, storages, sizes = _ints(chain.from_iterable(trace.events)).reshape(-1, 3).T
    first, end = np.searchsorted(ops, [step.first_op, step.end_op], side="left")
    ops, inside = ops[first:end] - step.first_op, storages[first:end]
    positions = np.arange(step.end_op - step.first_op + 1, dtype=np.int64)
    # An event's point follows the points of the positions up to its op and of the events before it.
    point_of = positions + np.searchsorted(ops, positions, side="left")
    event_point = ops + 1 + np.arange(len(ops), dtype=np.int64)
    change = np.zeros(len(positions) + len(ops), np.int64)
    change[0] = sizes[:first].sum()
    change[event_point] = sizes[first:end]
    born = np.full(len(trace.storages), len(change), np.int64)
    gone = np.full(len(trace.storages), len(change), np.int64)
    before = sizes[:first] > 0
    born[storages[:first][before]] = 0
    gone[storages[:first][~before]] = 0
    alloc = sizes[first:end] > 0
    born[inside[alloc]] = event_point[alloc]
    gone[inside[~alloc]] = event_point[~alloc]
    return np.cumsum(change), point_of.astype(np.int64), born, gone


def _borders(level: Ints, ends: Ints, *points: Ints) -> Ints:
    """Return the points at which slots begin: the start, `points`, and where a save's storage is freed in the step."""
    return np.unique(np.concatenate([np.zeros(1, np.int64), ends[ends < len(level)], *points]))


def _accesses(trace: Trace, step: Step, saves: tuple[Save, ...], idle: Ints, read: Ints) -> tuple[Ints, Ints]:
    """Return per save the first op that writes it while saved, and the first that uses it while idle; else end_op."""
    written = np.full(len(saves), step.end_op, np.int64)
    used = written.copy()
    save_of = {s.storage: n for n, s in enumerate(saves)}
    saved = [s.saved_at for s in saves]
    idle_from, first_read = idle.tolist(), read.tolist()
    for op in range(step.first_op, step.end_op):
        record = trace.ops[op]
        for storage in record.writes:
            n = save_of.get(storage)
            if n is not None and saved[n] <= op < first_read[n]:
                written[n] = min(written[n], op)
        for storage in (*record.reads, *record.writes):
            n = save_of.get(storage)
            if n is not None and idle_from[n] <= op < first_read[n]:
                used[n] = min(used[n], op)
    return written, used
