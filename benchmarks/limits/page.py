"""The table of least limits on docs/benchmarks.md, made from a result file. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.limits import sweeps
from benchmarks.limits.rig import PEERS, WAYS, peers_of
from benchmarks.limits.workloads import WORKLOADS
from benchmarks.results import ROOT, write_between

PAGE = ROOT / "docs" / "benchmarks.md"
AIM = 0.75
"""Of the best peer's least limit."""
START = "<!-- limits rig: made by python -m benchmarks.limits --table, do not edit -->"
END = "<!-- limits rig end -->"
MIB = 2**20
Result = dict[str, Any]


def write(result: Result) -> None:
    """Write the table anew."""
    write_between(PAGE, START, END, text_of(result))


def text_of(result: Result) -> str:
    """The section of the page."""
    ways = [way for way in WAYS if any(_of(found, way) for found in result["workloads"].values())]
    failures = list(_failures(result, ways))
    return "\n".join([_head(result), "", *_rows(result, ways), *(["", *failures] if failures else [])])


def _head(result: Result) -> str:
    points = [each for found in result["workloads"].values() for each in found["points"]]
    commits = ", ".join(sorted({each["commit"] for each in points}))
    above = sum(len(sweeps.failures_above(_of(found, way))) for found in result["workloads"].values() for way in WAYS)
    memory = len(sweeps.out_of_memory(points))
    late = sum(1 for _ in sweeps.steps_lost(points))
    return (
        f"{len(points)} trainings within hard limits in {len(result['workloads'])} workloads: {above} failed above the "
        f"least limit of their way, {memory} ended in another error than a refusal, and {late} were refused after "
        f"their first step. An explicit budget was exceeded by {_mib(_most_over(points))} MiB at most, which 1 % of it "
        f"allows. {_of_aim(result)} MiB; torch 2.11 on the rig as compute capability 9.0, no GPU; commit "
        f"{commits}, {result['date']}."
    )


def _most_over(points: list[Result]) -> int:
    """The most bytes beyond an explicit budget that a training held and ended well, within 1 % of it: see sweeps.py."""
    explicit = (each for each in points if each["way"].startswith("explicit") and each["outcome"] == sweeps.TRAINED)
    return max((each["reserved"] - each["budget_bytes"] for each in explicit if "budget_bytes" in each), default=0)


def _of_aim(result: Result) -> str:
    """How many workloads reach the aim, and in how many others one op alone takes more."""
    known = [found for found in result["workloads"].values() if _least(found) and peers_of(found)]
    missed = [found for found in known if _least(found) > AIM * min(peers_of(found).values())]
    alone = sum(found.get("one_op_bytes", 0) > AIM * min(peers_of(found).values()) for found in missed)
    return (
        f"{len(known) - len(missed)} of {len(known)} reach {AIM} of the best peer's least limit; in {alone} of the "
        "others one op alone takes more than that."
    )


def _least(found: Result) -> int:
    """The smallest limit that was met in any way; 0 if there is none."""
    return sweeps.least_of(found["points"]) or 0


def _of(found: Result, way: str) -> list[Result]:
    return [each for each in found["points"] if each["way"] == way]


def _rows(result: Result, ways: list[str]) -> Iterator[str]:
    heads = [f"{way}: least, failures above" for way in ways]
    yield f"| workload | one op | {' | '.join([*PEERS, *heads])} | least / best peer |"
    yield "|---" * (3 + len(PEERS) + len(heads)) + "|"
    for name, found in result["workloads"].items():
        least = peers_of(found)
        cells = [_mib(found.get("one_op_bytes")), *(_mib(least.get(peer)) for peer in PEERS)]
        ours = [sweeps.least_of(_of(found, way)) for way in ways]
        for way, size_bytes in zip(ways, ours, strict=True):
            points = _of(found, way)
            above = f", {len(sweeps.failures_above(points))} of {len(points)}"
            cells.append((_mib(size_bytes) or "none") + above if points else "not run")
        share = f"{_least(found) / min(least.values()):.2f}" if _least(found) and least else ""
        yield f"| {WORKLOADS[name]} | {' | '.join(cells)} | {share} |"


def _failures(result: Result, ways: list[str]) -> Iterator[str]:
    """A line for each way of a workload in which a limit above the least one was not held."""
    for name, found in result["workloads"].items():
        for way in ways:
            failures = sorted(sweeps.failures_above(_of(found, way)), key=lambda each: each["limit_bytes"])
            if failures:
                yield f"- {WORKLOADS[name]}, {way}: failed at {', '.join(map(_said, failures))}."


def _said(point: Result) -> str:
    ended = point["outcome"] if point["outcome"] == sweeps.OVER else f"{point['outcome']}, step {point['steps'] + 1}"
    return f"{_mib(point['limit_bytes'])} ({ended})"


def _mib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / MIB:.0f}"
