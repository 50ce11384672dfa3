"""Segments: runs of forward ops that are offered as blocks: of one module, of groups of modules, of equal bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from elbowroom.step.last_step import LastStep


class ForwardSegment(NamedTuple):
    """Forward ops first to end - 1."""

    name: str
    first: int
    end: int


def segments(step: LastStep, makers: list[int], saved_bytes: list[int]) -> list[ForwardSegment]:
    """Return all runs that hold at least two of the saved storages, each run once.

    Args:
        step: the last step.
        makers: ops that make the saved storages, ascending.
        saved_bytes: bytes of each of these storages.
    """

    def many(segment: ForwardSegment) -> bool:
        return bisect_left(makers, segment.end) - bisect_left(makers, segment.first) > 1

    found: dict[tuple[int, int], ForwardSegment] = {}
    for stretch in stretches(step):
        for runs in _by_depth(step, stretch):
            units = list(filter(many, runs))
            for segment in (*units, *_groups(units)):
                found.setdefault((segment.first, segment.end), segment)
        for segment in filter(many, _equal_parts(stretch, makers, saved_bytes)):
            found.setdefault((segment.first, segment.end), segment)
    return list(found.values())


def stretches(step: LastStep) -> Iterator[ForwardSegment]:
    """Yield runs of forward ops: one for each micro-batch."""
    ops = step.trace.ops
    for phase, run in groupby(range(step.first_op, step.end_op), lambda i: ops[i].phase):
        if phase == "forward":
            numbers = list(run)
            yield ForwardSegment("forward", numbers[0], numbers[-1] + 1)


def _by_depth(step: LastStep, stretch: ForwardSegment) -> Iterator[list[ForwardSegment]]:
    """Yield, for each depth of modules, the runs of ops that lie in one module."""
    numbers = range(stretch.first, stretch.end)
    paths = [step.trace.ops[i].module.split(".") if step.trace.ops[i].module else [] for i in numbers]
    for depth in range(1, max(map(len, paths), default=0) + 1):
        runs: list[ForwardSegment] = []
        prefixes = [path[:depth] for path in paths]
        for prefix, run in groupby(zip(numbers, prefixes, strict=True), lambda pair: pair[1]):
            inside = [i for i, _ in run]
            if len(prefix) == depth:
                runs.append(ForwardSegment(".".join(prefix), inside[0], inside[-1] + 1))
        yield runs


def _groups(units: list[ForwardSegment]) -> Iterator[ForwardSegment]:
    """Yield groups of 2, 4, 8 .. neighbours, with the ops between them."""
    size = 2
    while size < len(units):
        for at in range(0, len(units), size):
            group = units[at : at + size]
            yield ForwardSegment(f"{group[0].name} to {group[-1].name}", group[0].first, group[-1].end)
        size *= 2


def _equal_parts(stretch: ForwardSegment, makers: list[int], saved_bytes: list[int]) -> Iterator[ForwardSegment]:
    """Yield the stretch in 2, 4, 8 .. parts with about equal saved bytes."""
    first, end = bisect_left(makers, stretch.first), bisect_left(makers, stretch.end)
    sums = list(accumulate(saved_bytes[first:end]))
    parts = 2
    while parts < end - first:
        for begin, stop in pairwise(_cuts(stretch, makers[first:end], sums, parts)):
            yield ForwardSegment(f"ops {begin} to {stop - 1}", begin, stop)
        parts *= 2


def _cuts(stretch: ForwardSegment, makers: list[int], sums: list[int], parts: int) -> Iterable[int]:
    """Return the borders between the parts: each lies after the op whose storage reaches the next share."""
    inner = (makers[bisect_left(sums, sums[-1] * k // parts)] + 1 for k in range(1, parts))
    return sorted({stretch.first, stretch.end, *inner})
