"""Study page: the answer of a what-if study on a terminal, as one HTML file, text or CSV, or its picture as SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from html import escape
from importlib import resources
from string import Template

from rich.console import Group, RenderableType
from rich.text import Text

from elbowroom.answers.link_study import LinkStudy, StudiedLink
from elbowroom.answers.study_points import Study, StudyPoint
from elbowroom.errors import UsageError
from elbowroom.report import drawings
from elbowroom.report.csv_tables import table_text
from elbowroom.report.drawings import Bar, Curve2d, Marking, Tone
from elbowroom.report.screen import Column, FittingTable, PlainConsole
from elbowroom.report.study_words import (
    HOW,
    link_sentences,
    link_table,
    rate_of,
    sentences,
    study_table,
)
from elbowroom.units import format_bytes, format_ns

STUDY_ENDINGS = (".html", ".svg", ".txt", ".csv")
TEXT_WIDTH = 140
TONE_OF: dict[str, Tone] = {"kept": "kept", "planned": "simulated"}
RANKS = {
    "energy": 3,
    "swapped out": 3,
    "on the host": 3,
    "needs, all kept": 2,
    "least with a plan": 2,
    "samples a second": 1,
    "trains": 1,
}
LINK_RANKS = {"link back": 4, "moved back": 4, "compute busy": 4, "budget": 3, "link out": 3, "link busy back": 1}
"""Ranks of the columns that a narrow terminal leaves out."""
_BARS = 24  # characters of the longest bar on a terminal
_NAMED_LEFT = ("GPU", "trains", "")


def study_rendered(study: Study | LinkStudy) -> RenderableType:
    """Render a study for a terminal: the answer, then a table with a bar for each step time."""
    said, (names, rows), times = _words(study), _table(study), _times_ns(study)
    ranks = LINK_RANKS if isinstance(study, LinkStudy) else RANKS
    most = max([each for each in times if each is not None], default=0) or 1
    bars = ["" if each is None else "#" * max(1, round(_BARS * each / most)) for each in times]
    columns = [Column(name, rank=ranks.get(name, 0), left=name in _NAMED_LEFT) for name in names]
    table = FittingTable(
        "", [*columns, Column("", rank=2, left=True)], [(*row, bar) for row, bar in zip(rows, bars, strict=True)]
    )
    head, *rest = said
    return Group(Text(head, style="bold"), *(Text(each) for each in rest), table)


def study_file(study: Study | LinkStudy, out: str) -> str:
    """Make the content of a file, in the form that its ending names.

    Raises:
        UsageError: an ending that is not known.
    """
    if out.endswith(".html"):
        return _page(study)
    if out.endswith(".svg"):
        return drawings.alone([chart for chart in _charts(study) if chart], _keys(study))
    if out.endswith(".txt"):
        return _as_text(study)
    check_ending(out)
    cases = study.links if isinstance(study, LinkStudy) else study.points
    names = [field.name for field in fields(StudiedLink if isinstance(study, LinkStudy) else StudyPoint)]
    return table_text(names, [[getattr(case, name) for name in names] for case in cases])


def check_ending(out: str) -> None:
    """Raise UsageError for a file whose ending names no form of a study."""
    if not out.endswith(STUDY_ENDINGS):
        raise UsageError(f"--out: given {out!r}; allowed are names ending in {', '.join(STUDY_ENDINGS)}; rename it")


def _as_text(study: Study | LinkStudy) -> str:
    console = PlainConsole(file=io.StringIO(), width=TEXT_WIDTH, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(study_rendered(study))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _page(study: Study | LinkStudy) -> str:
    names, rows = _table(study)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    of_report = resources.files("elbowroom.report").joinpath("web")
    return Template(of_report.joinpath("study.html").read_text("utf-8")).substitute(
        title=escape(_title(study)),
        style=of_report.joinpath("page.css").read_text("utf-8"),
        answer="".join(f"<p>{_with_commands(each)}</p>" for each in _words(study)),
        keys=drawings.key(_keys(study)),
        charts="".join(_charts(study)),
        table=f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>',
    )


def _with_commands(said: str) -> str:
    """Return a sentence for the page; what stands between backticks is a command."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(said))


def _title(study: Study | LinkStudy) -> str:
    kind = "links" if isinstance(study, LinkStudy) else study.kind
    where = "" if isinstance(study, LinkStudy) or not study.machine else f" on {study.machine}"
    return f"study {kind}: {study.script}{where}"


def _words(study: Study | LinkStudy) -> tuple[str, ...]:
    return link_sentences(study) if isinstance(study, LinkStudy) else sentences(study)


def _table(study: Study | LinkStudy) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return link_table(study) if isinstance(study, LinkStudy) else study_table(study)


def _times_ns(study: Study | LinkStudy) -> list[int | None]:
    of = study.links if isinstance(study, LinkStudy) else study.points
    return [each.step_ns for each in of]


def _keys(study: Study | LinkStudy) -> Sequence[tuple[str, Tone]]:
    """Return what each colour means."""
    mark = "budget of the plan" if isinstance(study, LinkStudy) else "the card's memory"
    return (("everything kept", "kept"), ("with a plan", "simulated"), (mark, "budget"))


def _charts(study: Study | LinkStudy) -> Sequence[str]:
    if isinstance(study, LinkStudy):
        return _of_links(study)
    if study.kind == "gpu":
        return _of_gpus(study)
    return [_of_budgets(study)] if study.kind == "budget" else _of_values(study)


def _of_gpus(study: Study) -> Sequence[str]:
    needs = [
        Bar(
            label=point.machine,
            value=point.needed_bytes or 0,
            text=f"{format_bytes(point.needed_bytes)} of {format_bytes(point.memory_bytes)}"
            if point.needed_bytes
            else "fails",
            tone="kept",
            mark=point.memory_bytes,
        )
        for point in study.points
    ]
    return (
        drawings.bar_chart("Memory to keep everything, and the memory of each card", needs),
        drawings.bar_chart("Time of a step", [_time_bar(point, point.machine) for point in study.points]),
    )


def _time_bar(point: StudyPoint, label: str) -> Bar:
    if point.step_ns is None:
        return Bar(label=label, value=0, text=HOW[point.outcome], tone="other")
    slower = f", {point.slowdown:.2f} times" if point.outcome == "planned" else ""
    return Bar(
        label=label, value=point.step_ns, text=f"{format_ns(point.step_ns)}{slower}", tone=TONE_OF[point.outcome]
    )


def _of_budgets(study: Study) -> str:
    kept = [point.kept_step_ns for point in study.points if point.kept_step_ns]
    named = ((study.own_bytes, study.machine), (study.more_bytes, "with more"))
    markings = [Marking(at=at, label=label, upright=True) for at, label in named if at is not None]
    markings += [Marking(at=each, label="everything kept", tone="kept") for each in kept[:1]]
    return drawings.line_chart(
        "Time of a step within a budget",
        _by_outcome(study, lambda point: point.step_ns or 0),
        lambda x: format_bytes(int(x)),
        lambda y: format_ns(int(y)),
        markings,
        x_title="budget of the device",
    )


def _by_outcome(study: Study, of: Callable[[StudyPoint], float]) -> list[Curve2d]:
    """Return a line through all points that train, and dots of their own over those with everything kept."""
    trained = [point for point in study.points if point.step_ns is not None]
    planned = tuple((point.value, of(point)) for point in trained)
    kept = tuple((point.value, of(point)) for point in trained if point.outcome == "kept")
    return [
        Curve2d(label="with a plan", tone="simulated", points=planned),
        Curve2d(label="everything kept", tone="kept", points=kept),
    ]


def _of_values(study: Study) -> Sequence[str]:
    needs = tuple((point.value, point.needed_bytes) for point in study.points if point.needed_bytes)
    memory = drawings.line_chart(
        "Memory to keep everything",
        [Curve2d(label="needs", tone="kept", points=needs)],
        lambda x: str(int(x)),
        lambda y: format_bytes(int(y)),
        [Marking(at=study.points[0].memory_bytes, label=study.machine)],
        x_title=study.varied,
        binary=True,
    )
    is_batch = study.kind == "batch"
    time = drawings.line_chart(
        "Samples a second" if is_batch else "Time of a step",
        _by_outcome(study, rate_of if is_batch else lambda point: point.step_ns or 0),
        lambda x: str(int(x)),
        (lambda y: f"{y:,g}") if is_batch else lambda y: format_ns(int(y)),
        x_title=study.varied,
    )
    return memory, time


def _of_links(study: LinkStudy) -> Sequence[str]:
    times: list[Bar] = []
    for link in study.links:
        times.append(Bar(label=link.machine, value=link.kept_step_ns, text=format_ns(link.kept_step_ns), tone="kept"))
        said = "no plan found" if link.step_ns is None else f"{format_ns(link.step_ns)}, {link.slowdown:.2f} times"
        times.append(Bar(label="", value=link.step_ns or 0, text=said, tone="simulated"))
    busy: list[Bar] = []
    for link in study.links:
        out, back = (f"{share:.0%} of the step" for share in (link.out_busy, link.back_busy))
        busy.append(Bar(label=f"{link.machine} out", value=link.out_busy, text=out, tone="measured"))
        busy.append(Bar(label="back", value=link.back_busy, text=back, tone="lower"))
    least = [
        Bar(
            label=link.machine, value=link.least_bytes or 0, text=_least(link), tone="simulated", mark=link.budget_bytes
        )
        for link in study.links
    ]
    return (
        drawings.bar_chart("Time of a step: everything kept, and under the plan", times),
        drawings.bar_chart("How much of the step the link is busy", busy),
        drawings.bar_chart(f"Least budget for at most {study.slowdown:g} times the step", least),
    )


def _least(link: StudiedLink) -> str:
    if link.least_bytes is None:
        return "not found"
    return f"{format_bytes(link.least_bytes)}, {link.least_bytes / link.kept_bytes:.0%} of all"
