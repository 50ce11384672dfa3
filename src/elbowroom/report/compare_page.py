"""Compare page: two steps side by side, as one offline HTML page, or as text on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import islice

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from elbowroom.report import charts, drawings
from elbowroom.report.comparison import (
    Difference,
    Sides,
    action_differences,
    category_bytes,
    category_differences,
    comparison_sentences,
    headline_differences,
    module_differences,
    moved_differences,
)
from elbowroom.report.drawings import Bar
from elbowroom.report.html import lanes_table, whole
from elbowroom.report.markup import folded, section, table
from elbowroom.report.peak_section import held_of, modules_html
from elbowroom.report.screen import plain_table
from elbowroom.units import format_bytes, format_ns

ACTIONS_SHOWN = 60
TONES = ("tone-first", "tone-second", "")


def compare_page(sides: Sides) -> str:
    """Make the whole page."""
    names = [side.name for side in sides]
    data = {
        "memory": charts.two_memories(names, [side.line for side in sides]),
        "lanes": [charts.lane_group(side.name, side.line, side.subject.trace) for side in sides],
    }
    parts = (
        section("How they differ", _answer(sides), "differ"),
        section("What holds the memory at the peak", _held(sides), "holds"),
        section("What each step does over time", _charts(sides), "does"),
        section("What each step moves", _table(sides, "what", moved_differences(sides)), "moves"),
        section("Storages that the plans treat differently", _actions(sides), "actions"),
        section("The modules of each", _pictures(sides), "pictures"),
    )
    return whole(f"elbowroom: {names[0]} and {names[1]} compared", "".join(parts), data)


def compare_rendered(sides: Sides) -> RenderableType:
    """Render the comparison for a terminal."""
    head, *rest = comparison_sentences(sides)
    parts: list[RenderableType] = [Text(head, style="bold"), *(Text(each) for each in rest)]
    found = (
        ("The step", headline_differences(sides)),
        ("On the device at the allocated peak", category_differences(sides)),
        ("What a step moves", moved_differences(sides)),
        ("By module, simulated", islice(module_differences(sides), 10)),
    )
    for title, differences in found:
        rows = list(differences)
        if rows:
            parts.append(_rendered(sides, title, rows))
    return Group(*parts)


def _rendered(sides: Sides, title: str, rows: Iterable[Difference]) -> Table:
    made = plain_table(title=f"\n{title}")
    made.add_column("", overflow="fold")
    for name in (*(side.name for side in sides), "difference"):
        made.add_column(Text(name), justify="right", overflow="fold")
    for row in rows:
        made.add_row(Text(row.name), row.first, row.second, row.difference)
    return made


def _answer(sides: Sides) -> str:
    said = "".join(f"<p>{escape(each)}</p>" for each in comparison_sentences(sides))
    return f'<div class="answer">{said}</div>{_table(sides, "", headline_differences(sides))}'


def _table(sides: Sides, first: str, differences: Iterable[Difference]) -> str:
    rows = [(row.name, row.first, row.second, row.difference) for row in differences]
    if not rows:
        return ""
    names = (first, sides[0].name, sides[1].name, "difference")
    return table(f"{sides[0].name} and {sides[1].name}", names, rows, TONES)


def _held(sides: Sides) -> str:
    """Draw the categories as pairs of bars on one scale, with tables of categories and modules below them."""
    bars: list[Bar] = []
    for name, sizes in category_bytes(sides).items():
        texts = [format_bytes(size) for size in sizes]
        bars.append(Bar(label=name.replace("_", " "), value=sizes[0], text=texts[0], tone="first"))
        bars.append(Bar(label="", value=sizes[1], text=texts[1], tone="second"))
    picture = drawings.bar_chart("Bytes by category at the allocated peak", bars) if bars else ""
    modules = _table(sides, "module", module_differences(sides))
    title = "<h3>By module, simulated: the largest differences</h3>" if modules else ""
    return (
        _keys(sides)
        + picture
        + folded("The categories as a table", _table(sides, "category", category_differences(sides)))
        + title
        + modules
    )


def _keys(sides: Sides) -> str:
    return drawings.key([(sides[0].name, "first"), (sides[1].name, "second")])


def _charts(sides: Sides) -> str:
    lines = [(side.name, side.line) for side in sides]
    peaks = ", ".join(f"{name} {format_bytes(line.peak_allocated_bytes)}" for name, line in lines)
    times = "; ".join(
        f"{name} {format_ns(line.step_ns)}, of which compute waits {format_ns(line.stall_ns)}" for name, line in lines
    )
    return f'''<h3>Memory over the step</h3>
<p class="hint">Both steps begin at 0 and have one axis. Drag to zoom in time, double-click to see all again.
By keyboard: Tab to a chart, then + and -, arrows, and Escape.</p>
<p class="keys" id="memory-keys" aria-hidden="true"></p>
<div id="memory" data-label="{escape(f"Line chart of memory over two steps. Peak allocated: {peaks}.")}"></div>
<h3>What runs when</h3>
<p class="keys" id="lane-keys" aria-hidden="true"></p>
<div id="lanes" data-label="{escape(f"Bars of what runs when, on each lane. The steps take: {times}.")}"></div>
{folded("The lanes as a table", lanes_table(lines))}'''


def _actions(sides: Sides) -> str:
    found = list(action_differences(sides))
    rows = [
        (
            str(one.storage),
            format_bytes(one.size_bytes),
            one.category.replace("_", " "),
            one.module,
            one.decision,
            other.decision,
        )
        for one, other in found[:ACTIONS_SHOWN]
    ]
    if not rows:
        return ""
    more = f"<p>{len(found) - ACTIONS_SHOWN} more differ.</p>" if len(found) > ACTIONS_SHOWN else ""
    names = ("storage", "size", "category", "module", sides[0].name, sides[1].name)
    return table("Storages that the plans treat differently", names, rows, kind="figures words") + more


def _pictures(sides: Sides) -> str:
    """Draw the modules of both steps; nothing without traces."""
    found = ((side.name, held_of(side.subject)) for side in sides)
    return "".join(f"<h3>{escape(name)}</h3>{modules_html(held[-1])}" for name, held in found if held)
