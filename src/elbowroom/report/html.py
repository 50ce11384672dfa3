r"""The report as one HTML file that needs no network: styles, uPlot and data are inside it.

Every text of a record is escaped: in HTML by html.escape, in the data block by JSON with <, > and & as \u escapes.
The script puts texts on the page as text only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from html import escape
from string import Template

from elbowroom.answers.estimate import estimate
from elbowroom.report import charts, figures
from elbowroom.report.guidance import budget_sentences, fit_of, next_steps
from elbowroom.report.markup import asset, folded, section, table
from elbowroom.report.peak_section import peak_section, tone_of
from elbowroom.report.subject import Subject
from elbowroom.timeline import Timeline
from elbowroom.units import format_bytes, format_ns

STORAGES_SHOWN = 80
MOVING = ("peak allocated", "step time", "stall", "swapped out")
STAYING = ("peak allocated", "peak reserved", "peak on the device", "step time")
"""Figures that are shown large, where a plan moves something and where nothing moves."""
STYLES = (("vendor", "uPlot.min.css"), ("web", "page.css"))
SCRIPTS = (
    *(("web", "format.js"), ("web", "memory.js"), ("web", "lanes.js")),
    *(("web", "pareto.js"), ("web", "tables.js"), ("web", "icicle.js")),
)
START = ("web", "page.js")


def page(subject: Subject) -> str:
    """Make the whole page: the answer, what holds the memory, what the plan does, other budgets, what to try next."""
    subject = _estimated(subject)
    data = {"memory": charts.memory(subject), "lanes": charts.lanes(subject)} if subject.timelines else {}
    if subject.pareto:
        data["pareto"] = charts.pareto(subject.pareto)
    parts = (
        section("Does it fit", _answer(subject), "fits"),
        section("What holds the memory at the peak", peak_section(subject), "holds"),
        section(_over_time(subject), _charts(subject), "does"),
        section(figures.storages_title(subject), _storages(subject), "storages"),
        section("What another budget would cost", _pareto(subject), "budgets"),
        section("What to try next", _next(subject), "next"),
        section("Figures", _headlines(subject), "figures"),
    )
    return whole(figures.title(subject), "".join(parts), data)


def _over_time(subject: Subject) -> str:
    return "What the step does over time" if subject.plan is None else "What the plan does over time"


def whole(title: str, main: str, data: object) -> str:
    """Make a page of its parts: everything that it needs is in it.

    Args:
        title: its title.
        main: HTML of its parts.
        data: the data of its charts.
    """
    return Template(asset("web", "page.html")).substitute(
        title=escape(title),
        main=main,
        data=in_script(data),
        style="".join(asset(*name) for name in STYLES),
        library=asset("vendor", "uPlot.iife.min.js"),
        script="".join(asset(*name) for name in (*SCRIPTS, START)),
    )


def _estimated(subject: Subject) -> Subject:
    """Add the estimate where nothing else says whether a training fits a GPU."""
    trace, machine = subject.trace, subject.machine
    if trace is None or machine is None or not trace.device.startswith("cuda"):
        return subject
    if subject.estimate is not None or subject.plan is not None or subject.measured is not None:
        return subject
    return replace(subject, estimate=estimate(trace, machine, plans=False))


def in_script(data: object) -> str:
    """Return JSON that cannot end the script element around it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _answer(subject: Subject) -> str:
    """Say whether it fits, with the figures that people look for first, and what the records are."""
    found = fit_of(subject)
    style = "" if found.fits is None else " fits" if found.fits else " misses"
    said = "".join(f"<p>{escape(each)}</p>" for each in found.sentences)
    tiles = _tiles(subject)
    return (
        f'<div class="answer{style}">{said}</div>'
        + (f'<div class="tiles">{tiles}</div>' if tiles else "")
        + f'<dl class="facts">{_facts(subject)}</dl>'
    )


def _charts(subject: Subject) -> str:
    """Make the places of the charts over time, with the tables behind them."""
    if not subject.timelines:
        return ""
    return f'''<h3>Memory over the step</h3>
<p class="hint">Drag to zoom in time, double-click to see the whole step again; both charts move together.
By keyboard: Tab to a chart, then + and -, arrows, and Escape.</p>
<p class="keys" id="memory-keys" aria-hidden="true"></p>
<div id="memory" data-label="{escape(figures.memory_text(subject))}"></div>
<h3>What runs when</h3>
<p class="keys" id="lane-keys" aria-hidden="true"></p>
<div id="lanes" data-label="{escape(figures.lanes_text(subject))}"></div>
{folded("The lanes as a table", lanes_table(subject.timelines))}'''


def lanes_table(lines: Iterable[tuple[str, Timeline]]) -> str:
    """Make the table behind the lanes: how often and how long each is busy, and what it moves."""
    rows = [(title, *cells) for title, line in lines for cells in figures.lane_rows(line)]
    return table("What runs on each lane", ("step", "lane", "what", "times", "busy", "of the step", "bytes"), rows)


def _next(subject: Subject) -> str:
    rows = "".join(
        f"<dt><code>{escape(each.command)}</code></dt><dd>{escape(each.why)}</dd>" for each in next_steps(subject)
    )
    return f'<dl class="next">{rows}</dl>' if rows else ""


def _facts(subject: Subject) -> str:
    known = (
        ("script", subject.names.training),
        ("trace", _trace(subject)),
        ("machine", figures.machine(subject)),
        ("plan", figures.decisions(subject)),
        ("bound", figures.bound(subject)),
        ("accuracy of memory", figures.accuracy(subject)),
        ("accuracy of time", figures.accuracy_of_time(subject)),
    )
    return "".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in known if text)


def _trace(subject: Subject) -> str:
    trace = subject.trace
    if trace is None:
        return ""
    count = trace.steps[-1].end_op - trace.steps[-1].first_op
    return f"{trace.id}, {count:,} ops a step, {trace.made_with} on {trace.device}"


def _tiles(subject: Subject) -> str:
    """Show the figures that people look for first: the last timeline's are large, the others are next to them."""
    if not subject.timelines:
        return ""
    rows = {row.name: row for row in figures.headlines(subject)}
    moves = any(line.swapped_out_bytes or line.recompute_ns for _, line in subject.timelines)
    names = MOVING if moves else STAYING
    return "".join(_tile(subject, name, rows[name].cells) for name in names)


def _tile(subject: Subject, name: str, cells: tuple[str, ...]) -> str:
    titles = [title for title, _ in subject.timelines]
    beside = "".join(
        _toned(title, f"{escape(title)} <b>{escape(cell)}</b>")
        for title, cell in zip(titles[:-1], cells[:-1], strict=True)
    )
    if name == "peak allocated" and subject.plan is not None:
        beside += _toned("budget", f"budget <b>{escape(format_bytes(subject.plan.budget_bytes))}</b>")
    return (
        f'<section class="tile"><h3>{name}, {_toned(titles[-1], escape(titles[-1]))}</h3>'
        f'<p class="figure">{escape(cells[-1])}</p><p class="beside">{beside}</p></section>'
    )


def _toned(title: str, html: str) -> str:
    return f'<span class="{tone_of(title)}">{html}</span>'


def _headlines(subject: Subject) -> str:
    if not subject.timelines:
        return ""
    titles = [title for title, _ in subject.timelines]
    rows = [(row.name, *row.cells) for row in figures.headlines(subject)]
    return table("Figures of each step", ("", *titles), rows, [tone_of(title) for title in titles])


def _pareto(subject: Subject) -> str:
    """Say and draw what other budgets cost, with a table of the points."""
    if subject.pareto is None:
        return ""
    said = "".join(f"<p>{escape(each)}</p>" for each in budget_sentences(subject))
    rows = table("Budget against step time", figures.PARETO_COLUMNS, list(figures.pareto_rows(subject.pareto)))
    return f'''{said}
<p class="hint">Each point is a plan, simulated; it serves any larger budget too. Dotted: no plan can be faster.</p>
<p class="keys" id="pareto-keys" aria-hidden="true"></p>
<div id="pareto" data-label="{escape(figures.pareto_text(subject))}"></div>
{rows}'''


def _storages(subject: Subject) -> str:
    rows = "".join(_storage(row) for row in figures.largest_storages(subject, STORAGES_SHOWN))
    if not rows:
        return ""
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("storage", "size", "category", "made by", "module", "idle for", "plan", "detail")
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="storages"><table class="storages">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _storage(row: figures.StorageRow) -> str:
    cells = (
        ("id", str(row.storage)),
        (f'number" data-value="{row.size_bytes}', escape(format_bytes(row.size_bytes))),
        ("", f'<i class="key cat-{row.category}"></i>{row.category}'),
        ("", f"<code>{escape(row.made_by)}</code>"),
        ("", f"<code>{escape(row.module)}</code>"),
        (f'number" data-value="{row.idle_ns or 0}', "" if row.idle_ns is None else escape(format_ns(row.idle_ns))),
        ("", f'<b class="action">{row.action}</b>'),
        ("detail", escape(row.detail)),
    )
    return f'<tr class="{row.action}">' + "".join(f'<td class="{kind}">{html}</td>' for kind, html in cells) + "</tr>"
