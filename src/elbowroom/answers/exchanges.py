"""Exchanges: what a process of many sends and receives in a step, by kind.

Computes: the collectives of the last recorded step. A collective counts with what is gathered, scattered or reduced.
Without that, as in a recorded run, it counts with the largest storage that it reads or writes.
Ignores: how an algorithm sends it; the bytes on the wire are up to twice as many.
Cost: linear in the ops of the step.
"""

from __future__ import annotations

from typing import NamedTuple

from elbowroom.step.exchange_times import kind_of
from elbowroom.step.last_step import last_step
from elbowroom.trace import Trace


class Collectives(NamedTuple):
    """The collectives of one kind in a step.

    Attributes:
        kind: what they do, such as "all-gather".
        calls: how many there are.
        size_bytes: the sum over them of what is gathered, scattered, reduced or sent.
        duration_ns: the sum over them of their times, hidden behind other work or not.
    """

    kind: str
    calls: int
    size_bytes: int
    duration_ns: int


class StepTimes(NamedTuple):
    """The time of a step that exchanges tensors.

    Attributes:
        step_ns: its simulated time.
        wait_ns: the part of it in which compute waits for collectives.
    """

    step_ns: int
    wait_ns: int


def step_times(trace: Trace) -> StepTimes | None:
    """Return the times of the last step; None if it exchanges nothing."""
    if not trace.exchanges:
        return None
    step = last_step(trace)
    return None if step.overlap is None else StepTimes(int(step.at_ns[-1]), step.overlap.exposed_ns)


def collectives_of(trace: Trace) -> tuple[Collectives, ...]:
    """Return the collectives of the last step, the most bytes first."""
    found: dict[str, tuple[int, int, int]] = {}
    first, end = trace.steps[-1] if trace.steps else (0, 0)
    known = {each.op: each.size_bytes for each in trace.exchanges}
    for number in range(first, end):
        op = trace.ops[number]
        kind = kind_of(op.name)
        if kind:
            calls, size_bytes, duration_ns = found.get(kind, (0, 0, 0))
            own_bytes = known.get(number, _size_bytes(trace, number))
            found[kind] = calls + 1, size_bytes + own_bytes, duration_ns + op.duration_ns
    made = (Collectives(kind, *figures) for kind, figures in found.items())
    return tuple(sorted(made, key=lambda each: (-each.size_bytes, each.kind)))


def _size_bytes(trace: Trace, number: int) -> int:
    op = trace.ops[number]
    return max((trace.storages[each].size_bytes for each in (*op.reads, *op.writes)), default=0)
