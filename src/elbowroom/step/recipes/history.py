"""History: what the last step of a trace does to each storage, op by op; rules and searches look it up."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from elbowroom.step.last_step import LastStep
from elbowroom.step.recipes.tables import FROM_HOST, STATISTICS, refused
from elbowroom.trace import Op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """Lookup tables of the last step, all derived from it.

    Attributes:
        writers: by storage, the ops that write it, ascending.
        maker: by storage made in the step, the op that allocates it.
        makes: by op, the storages it allocates and does not free itself.
        scratch_peak: by op, the most bytes of its own storages at once, results included.
        save_of: by storage, its save.
        reads, writes: by op less first_op, what it reads and writes, except running statistics that it updates.
        refused: by op less first_op, why it may not run again; None if it may.
        born, gone: by storage, points as in LastStep.
        points: by position less first_op, the point before the op.
    """

    writers: dict[int, list[int]]
    maker: dict[int, int]
    makes: dict[int, list[int]]
    scratch_peak: dict[int, int]
    save_of: dict[int, int]
    reads: list[tuple[int, ...]]
    writes: list[tuple[int, ...]]
    refused: list[str | None]
    born: list[int]
    gone: list[int]
    points: list[int]
    first_op: int

    def alive(self, storage: int, position: int) -> bool:
        """Return whether a storage is allocated before op `position` starts, if every storage is kept."""
        point = self.points[position - self.first_op]
        return self.born[storage] <= point < self.gone[storage]

    def written(self, storage: int, first: int, end: int) -> int | None:
        """Return the first op from `first` to `end` - 1 that writes a storage."""
        writers = self.writers.get(storage)
        if writers is None:
            return None
        at = bisect_left(writers, first)
        return writers[at] if at < len(writers) and writers[at] < end else None

    def writers_before(self, storage: int, op: int) -> list[int]:
        """Return the ops before `op` that write a storage."""
        writers = self.writers.get(storage, [])
        return writers[: bisect_left(writers, op)]


@lru_cache(maxsize=4)
def history(step: LastStep) -> History:
    """Return the history of a last step. Cost: linear in its ops and events; the last four are cached."""
    trace = step.trace
    writers: dict[int, list[int]] = {}
    ops = trace.ops[step.first_op : step.end_op]
    for i, op in enumerate(ops, start=step.first_op):
        for storage in dict.fromkeys(op.writes):
            writers.setdefault(storage, []).append(i)
    statistics = [_statistics(step, op) for op in ops]
    maker, makes, scratch_peak = _made(step)
    return History(
        writers=writers,
        maker=maker,
        makes=makes,
        scratch_peak=scratch_peak,
        save_of={save.storage: n for n, save in enumerate(step.saves)},
        reads=[_without(op.reads, left) for op, left in zip(ops, statistics, strict=True)],
        writes=[_without(op.writes, left) for op, left in zip(ops, statistics, strict=True)],
        refused=[_refused(op) for op in ops],
        born=step.born.tolist(),
        gone=step.gone.tolist(),
        points=step.point_of.tolist(),
        first_op=step.first_op,
    )


def _made(step: LastStep) -> tuple[dict[int, int], dict[int, list[int]], dict[int, int]]:
    """Return by storage its maker; by op the storages it makes, and the most bytes of its own storages at once."""
    maker: dict[int, int] = {}
    makes: dict[int, dict[int, int]] = {}
    peak: dict[int, int] = {}
    level: dict[int, int] = {}
    for op, storage, size_bytes in step.trace.events:
        if not step.first_op <= op < step.end_op:
            continue
        own = makes.setdefault(op, {})
        if size_bytes > 0:
            maker[storage] = op
            own[storage] = size_bytes
        elif own.pop(storage, None) is None:
            continue
        level[op] = level.get(op, 0) + size_bytes
        peak[op] = max(peak.get(op, 0), level[op])
    return maker, {op: list(own) for op, own in makes.items()}, peak


def _statistics(step: LastStep, op: Op) -> set[int]:
    """Return the running statistics that an op updates; when it runs again, it leaves them alone."""
    if op.name not in STATISTICS:
        return set()
    return {storage for storage in op.writes if step.trace.storages[storage].category == "buffer"}


def _without(storages: tuple[int, ...], left: set[int]) -> tuple[int, ...]:
    return tuple(storage for storage in storages if storage not in left) if left else storages


def _refused(op: Op) -> str | None:
    """Say why an op may not run again, as a clause; None if it may."""
    if op.phase != "forward":
        return f"is of phase {op.phase}; allowed in a recipe are ops of forward"
    if op.name in FROM_HOST and not set(op.reads) - set(op.writes):
        return "copies from the host, where its source may have changed"
    return refused(op.name)
