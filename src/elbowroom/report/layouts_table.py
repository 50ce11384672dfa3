"""Layouts table: the answer of `elbowroom largest` over layouts, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from elbowroom.answers.job_layouts import Layout, Layouts, words_of
from elbowroom.report.screen import Column, FittingTable
from elbowroom.units import format_bytes, format_ns

_MOST_WORDS = 200
_WORTH = 0.01
"""Least part of the GPU time that another layout saves to be named."""


def layouts_rendered(script: str, found: Layouts, how: Sequence[str], left_out: int) -> RenderableType:
    """Render the cheapest layout that fits, and a table of all that were looked at.

    Args:
        script: the script.
        found: the layouts.
        how: what the names are in the script, where the user did not say it.
        left_out: number of layouts whose degrees do not divide their ranks.
    """
    style = "bold green" if found.cheapest else "bold red"
    parts: list[RenderableType] = [Text(line) for line in how]
    parts.append(Text(f"{script} on {found.machine}: {layouts_outcome(found)}", style=style))
    if found.early:
        parts.append(Text(found.early))
    parts.append(_table(found))
    if left_out:
        parts.append(Text(f"Left out: {left_out} layouts whose degrees do not divide the ranks"))
    parts += [Text(f"{_words(each)}: {_first_line(each.problem)}") for each in found.layouts if each.problem]
    return Group(*parts)


def layouts_outcome(found: Layouts) -> str:
    """Say what was found, in a sentence or two."""
    capacity, best = format_bytes(found.capacity_bytes), found.cheapest
    if best is None:
        known = [each for each in found.layouts if each.answer]
        least = min(known, key=lambda each: each.needed_bytes)
        return f"no layout fits: {_words(least)} needs the least, {format_bytes(least.needed_bytes)} of {capacity}"
    need = f"it needs {format_bytes(best.needed_bytes)} of {capacity}, a step takes {format_ns(best.step_ns)}"
    said = f"the cheapest layout that fits is {_words(best)}: {need}"
    other = found.least_gpu_time
    if other is None or other is best or not found.work_flops:
        return said
    saved = 1 - other.ranks * found.equal_work_ns(other) / max(1, best.ranks * found.equal_work_ns(best))
    if saved < _WORTH:
        return said
    return f"{said}; {_words(other)} takes {saved:.0%} less GPU time for equal work"


def _table(found: Layouts) -> FittingTable:
    names = list(dict.fromkeys(name for each in found.layouts for name, _ in each.values))
    shown = [*names, *(["ranks"] if "ranks" not in names else [])]
    columns = [
        *(Column(name) for name in shown),
        Column("needs at least"),
        Column("reserved", rank=2),
        Column("step"),
        Column("equal work", rank=1),
        Column("GPU time", rank=1),
        Column("verdict", left=True),
        Column("front", left=True),
    ]
    front = found.front
    rows = [_row(each, found, shown, is_on_front=each in front) for each in found.layouts]
    return FittingTable(f"\n{len(rows)} layouts were looked at", columns, rows)


def _row(layout: Layout, found: Layouts, shown: Sequence[str], *, is_on_front: bool) -> tuple[str | Text, ...]:
    values = {"ranks": layout.ranks, **dict(layout.values)}
    cells = [str(values.get(name, "")) for name in shown]
    answer = layout.answer
    if answer is None:
        return *cells, "", "", "", "", "", Text("fails", style="red"), ""
    equal_ns = found.equal_work_ns(layout)
    sure = "" if answer.sure else "probably "
    verdict = f"{sure}fits" if answer.fits else "does not fit" if answer.sure else "probably not"
    return (
        *cells,
        format_bytes(answer.needed_bytes),
        format_bytes(answer.peak_reserved_bytes),
        format_ns(layout.step_ns),
        format_ns(equal_ns),
        format_ns(equal_ns * layout.ranks),
        Text(verdict, style="green" if answer.fits else "red"),
        "on it" if is_on_front else "",
    )


def _words(layout: Layout) -> str:
    said = words_of(layout.values)
    return (
        said
        if any(name == "ranks" for name, _ in layout.values)
        else f"{said} on {layout.ranks} rank{'s' * (layout.ranks != 1)}"
    )


def _first_line(problem: str) -> str:
    line = problem.partition("\n")[0]
    return line if len(line) <= _MOST_WORDS else f"{line[:_MOST_WORDS]}..."
