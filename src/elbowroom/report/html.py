r"""The report as one HTML file that needs no network: styles, uPlot and data are inside it.

Every text of a record is escaped: in HTML by html.escape, in the data block by JSON with <, > and & as \u escapes.
The script puts texts on the page as text only.
"""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from string import Template

from elbowroom.report import charts, figures
from elbowroom.report.subject import KEPT, Subject
from elbowroom.trace import Category
from elbowroom.units import format_bytes, format_ns

STORAGES_SHOWN = 80
STYLES = (("vendor", "uPlot.min.css"), ("web", "page.css"))
SCRIPTS = (("web", "format.js"), ("web", "memory.js"), ("web", "lanes.js"), ("web", "pareto.js"), ("web", "tables.js"))
START = ("web", "page.js")


def page(subject: Subject) -> str:
    """Make the whole page."""
    data = {"memory": charts.memory(subject), "lanes": charts.lanes(subject)} if subject.timelines else {}
    if subject.pareto:
        data["pareto"] = charts.pareto(subject.pareto)
    return Template(_file("web", "page.html")).substitute(
        title=escape(figures.title(subject)),
        memory_text=escape(figures.memory_text(subject)),
        lanes_text=escape(figures.lanes_text(subject)),
        pareto_text=escape(figures.pareto_text(subject)),
        facts=_facts(subject),
        tiles=_tiles(subject),
        headlines=_headlines(subject),
        charts_hidden="" if subject.timelines else "hidden",
        pareto_hidden="" if subject.pareto else "hidden",
        pareto_table=_pareto(subject),
        breakdown=_breakdown(subject),
        storages=_storages(subject),
        data=in_script(data),
        style="".join(_file(*name) for name in STYLES),
        library=_file("vendor", "uPlot.iife.min.js"),
        script="".join(_file(*name) for name in (*SCRIPTS, START)),
    )


def in_script(data: object) -> str:
    """Return JSON that cannot end the script element around it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _file(folder: str, name: str) -> str:
    return resources.files("elbowroom.report").joinpath(folder, name).read_text(encoding="utf-8")


def _facts(subject: Subject) -> str:
    known = (
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
    return f"{trace.id}, {count:,} ops a step, torch {trace.torch_version} on {trace.device}"


def _tiles(subject: Subject) -> str:
    """Show the figures that people look for first: the last timeline's are large, the others are next to them."""
    if not subject.timelines:
        return ""
    rows = {row.name: row for row in figures.headlines(subject)}
    names = ("peak allocated", "step time", "stall", "swapped out")
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
    return f'<span class="{_tone(title)}">{html}</span>'


def _tone(title: str) -> str:
    return "tone-kept" if title == KEPT else f"tone-{title}"


def _headlines(subject: Subject) -> str:
    if not subject.timelines:
        return ""
    head = "".join(f'<th class="{_tone(title)}">{escape(title)}</th>' for title, _ in subject.timelines)
    body = "".join(
        f"<tr><th>{escape(row.name)}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells) + "</tr>"
        for row in figures.headlines(subject)
    )
    return f'<table class="figures"><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>'


def _breakdown(subject: Subject) -> str:
    """Draw one bar per timeline, all on the scale of the largest peak, with the budget as a line across."""
    found = figures.peaks(subject)
    if not found:
        return ""
    scale = max(sum(size for _, size in peak.parts) for peak in found) or 1
    order: list[Category] = list(dict.fromkeys([category for peak in found for category, _ in peak.parts]))
    bars = "".join(_bar(peak, order, scale) for peak in found)
    budget_bytes = subject.plan.budget_bytes if subject.plan else 0
    line = f'<i class="budget" style="left:{budget_bytes / scale:.3%}"></i>' if 0 < budget_bytes <= scale else ""
    keys = "".join(f'<span><i class="key cat-{name}"></i>{name}</span>' for name in order)
    over = f'<div class="over"><div></div><div class="track">{line}</div></div>'
    return f'<div class="bars">{bars}{over}</div><p class="keys">{keys}</p>'


def _bar(peak: figures.Peak, order: list[Category], scale: int) -> str:
    parts = "".join(
        f'<i class="cat-{category}" style="width:{size / scale:.3%}" '
        f'title="{category} {escape(format_bytes(size))}"></i>'
        for category, size in sorted(peak.parts, key=lambda part: order.index(part[0]))
    )
    size = escape(format_bytes(peak.peak_allocated_bytes))
    name = f'<div class="{_tone(peak.title)}">{escape(peak.title)}<b>{size}</b></div>'
    return f'<div class="bar">{name}<div class="track">{parts}</div></div>'


def _pareto(subject: Subject) -> str:
    """Make a table of the points of the curve."""
    if subject.pareto is None:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in figures.PARETO_COLUMNS)
    body = "".join(
        f"<tr><th>{escape(first)}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for first, *cells in figures.pareto_rows(subject.pareto)
    )
    return f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _storages(subject: Subject) -> str:
    rows = "".join(_storage(row) for row in figures.largest_storages(subject, STORAGES_SHOWN))
    if not rows:
        return ""
    head = "".join(
        f"<th>{name}</th>"
        for name in ("storage", "size", "category", "made by", "module", "idle for", "plan", "detail")
    )
    return f'<table class="storages"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


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
