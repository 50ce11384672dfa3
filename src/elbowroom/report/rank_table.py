"""Rank table: timelines or runs of the ranks of one job: a row for each, and the rank that all others wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from elbowroom.errors import FormatError, UsageError
from elbowroom.report.screen import Column, FittingTable
from elbowroom.timeline import Timeline
from elbowroom.units import format_bytes, format_ns

MOST_ROWS = 16
"""Most ranks in the table; of more, those that wait least are shown."""
RANK_COLUMNS = ("rank", "peak reserved", "step", "busy", "stall", "wait")
CLEAR = 0.01
"""Least part of a step by which the next rank waits longer, for a rank to be named as the one that is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """The figures of one rank's step.

    Attributes:
        name: its file.
        peak_allocated_bytes: peak of the device's allocated bytes.
        peak_reserved_bytes: peak of what the allocator holds.
        step_ns: time of the step.
        busy_ns: time in which compute runs ops; None for a run, in which that is not measured.
        stall_ns: time in which compute waits for copies.
        wait_ns: time in which compute waits for collectives; None for a run that did not measure it.
    """

    name: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    step_ns: int
    busy_ns: int | None
    stall_ns: int
    wait_ns: int | None


def rank_times(lines: Mapping[str, Timeline]) -> tuple[RankTimes, ...]:
    """Return the figures of timelines by the name of their file.

    Raises:
        UsageError: some are simulated and some measured.
    """
    if len({line.source for line in lines.values()}) > 1:
        raise UsageError(
            f"report: given {len(lines)} timelines, some simulated and some measured; allowed are those of the ranks "
            "of one job, all of one source, or one of each for one rank; leave some out"
        )
    return tuple(
        RankTimes(
            name=name,
            peak_allocated_bytes=line.peak_allocated_bytes,
            peak_reserved_bytes=line.peak_reserved_bytes,
            step_ns=line.step_ns,
            busy_ns=line.busy_ns,
            stall_ns=line.stall_ns,
            wait_ns=line.wait_ns,
        )
        for name, line in lines.items()
    )


def run_times(answers: Mapping[str, Mapping[str, Any]]) -> tuple[RankTimes, ...]:
    """Return the figures of runs, from what `elbowroom run --json` wrote for each rank, by the name of its file.

    The times are medians over the steps. Waits are those of the step that was measured, if all ranks measured one.

    Raises:
        FormatError: a file is of another version, or has no steps.
    """
    found: list[RankTimes] = []
    waits = {name: answer.get("measured_wait_ns") for name, answer in answers.items()}
    waits_known = any(waits.values()) and None not in waits.values()
    for name, answer in answers.items():
        try:
            steps = [(int(step["step_ns"]), int(step["stall_ns"])) for step in answer["steps"]]
            medians = [round(median(each)) for each in zip(*steps, strict=True)]
            peaks = [int(answer[f"measured_peak_{what}bytes"]) for what in ("allocated_", "")]
            figures = dict(zip(("step_ns", "stall_ns"), medians, strict=True))
        except (KeyError, TypeError, ValueError):
            raise FormatError(
                f"{name}: no figures of a run with steps in it; allowed is what `elbowroom run --json` writes; run it "
                "again"
            ) from None
        found.append(
            RankTimes(
                name=name,
                peak_allocated_bytes=peaks[0],
                peak_reserved_bytes=max(peaks),
                busy_ns=None,
                wait_ns=waits[name] if waits_known else None,
                **figures,
            )
        )
    return tuple(found)


def waited_for(ranks: tuple[RankTimes, ...]) -> RankTimes | None:
    """Return the rank that the others wait for: it waits least. None if no rank does by a clear part of a step.

    Where waits are not measured, it is the rank that stalls longest for copies.
    """
    first, second = sorted(ranks, key=_rank_order)[:2]
    longest_ns = max(each.step_ns for each in ranks)
    return first if _rank_order(second) - _rank_order(first) > CLEAR * longest_ns else None


def _rank_order(rank: RankTimes) -> int:
    return -rank.stall_ns if rank.wait_ns is None else rank.wait_ns


def ranks_sentence(ranks: tuple[RankTimes, ...], source: str) -> str:
    """Say which rank the others wait for."""
    late = waited_for(ranks)
    if late is None:
        return f"{len(ranks)} ranks, {source}: no rank makes the others wait by a clear part of a step"
    others = max(each.wait_ns or 0 for each in ranks)
    waits = f"which stalls longest for copies, {format_ns(late.stall_ns)} of a step"
    if late.wait_ns is not None:
        waits = f"which waits {format_ns(late.wait_ns)} of its step and they up to {format_ns(others)}"
    return f"{len(ranks)} ranks, {source}: the others wait for {late.name}, {waits}"


def shown_ranks(ranks: tuple[RankTimes, ...]) -> list[RankTimes]:
    """Return the ranks that are shown, those that make the others wait first."""
    return sorted(ranks, key=_rank_order)[:MOST_ROWS]


def rank_cells(rank: RankTimes) -> tuple[str, ...]:
    """Return the cells of a rank, as `RANK_COLUMNS` names them."""
    times = map(_time, (rank.step_ns, rank.busy_ns, rank.stall_ns, rank.wait_ns))
    return (rank.name, format_bytes(rank.peak_reserved_bytes), *times)


def ranks_left_out(ranks: tuple[RankTimes, ...]) -> str:
    """Say what holds for all ranks, if not all are shown; else ""."""
    left = len(ranks) - MOST_ROWS
    if left <= 0:
        return ""
    peak, step = (max(getattr(each, name) for each in ranks) for name in ("peak_reserved_bytes", "step_ns"))
    return f"{left} more ranks (--json has them). Of all: peak up to {format_bytes(peak)}, step {format_ns(step)}"


def ranks_rendered(ranks: tuple[RankTimes, ...], source: str) -> RenderableType:
    """Render a row for each rank, those that make the others wait first."""
    columns = [Column(name, left=name == "rank", rank=int(name == "busy")) for name in RANK_COLUMNS]
    table = FittingTable("", columns, [rank_cells(each) for each in shown_ranks(ranks)])
    parts: list[RenderableType] = [Text(ranks_sentence(ranks, source), style="bold"), table]
    if left_out := ranks_left_out(ranks):
        parts.append(Text(left_out))
    return Group(*parts)


def _time(duration_ns: int | None) -> str:
    return "" if duration_ns is None else format_ns(duration_ns)
