"""The report on a terminal: rich tables, plain text where colours mean nothing."""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from elbowroom.pareto import Pareto
from elbowroom.report import figures
from elbowroom.report.subject import Subject
from elbowroom.trace import Category
from elbowroom.units import format_bytes, format_ns

STORAGES_SHOWN = 12
WIDTH = 120
COLOUR_OF = {"everything kept": "bright_black", "simulated": "yellow", "measured": "blue"}


def as_text(subject: Subject) -> str:
    """The report without colours, at a fixed width."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(rendered(subject))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def rendered(subject: Subject) -> RenderableType:
    """The report as rich shows it, in colours where the terminal has them."""
    sentences = (figures.decisions(subject), _bound(subject), figures.machine(subject))
    parts: list[RenderableType] = [Text(sentence) for sentence in sentences if sentence]
    if subject.timelines:
        parts.append(_headlines(subject))
    if accuracy := figures.accuracy(subject):
        parts.append(Text(accuracy + "\n"))
    if found := figures.peaks(subject):
        parts.append(_breakdown(found))
    if subject.pareto is not None:
        parts.append(_pareto(subject.pareto))
    if subject.trace is not None:
        parts.append(_storages(subject))
    return Group(*parts)


def plan_rendered(script: str, subject: Subject) -> RenderableType:
    """The answer of `elbowroom plan`: what is done, what it costs, and how much better it could be."""
    plan, kept, line = subject.plan, subject.kept, subject.simulated
    assert plan is not None
    assert line is not None
    before = kept or line
    slower = line.step_ns / before.step_ns if before.step_ns else 1.0
    name = subject.machine.name if subject.machine else ""
    head = (
        f"{script} on {name}: a step of {format_ns(line.step_ns)} within {format_bytes(plan.budget_bytes)}, "
        f"{slower:.3f} times as long as with everything kept, which takes {format_bytes(before.peak_device_bytes)}"
    )
    sentences = (_too_much(subject), figures.decisions(subject), _bound(subject), figures.machine(subject))
    parts: list[RenderableType] = [Text(head, style="bold green")]
    parts += [Text(sentence) for sentence in sentences if sentence]
    return Group(*parts, _headlines(subject))


def _too_much(subject: Subject) -> str:
    """What a budget leaves out: memory outside the allocator, where the device has no room for it."""
    if subject.machine is None or subject.simulated is None:
        return ""
    capacity_bytes = subject.machine.tiers[0].capacity_bytes
    needed_bytes = subject.simulated.peak_device_bytes
    if needed_bytes <= capacity_bytes:
        return ""
    return (
        f"The device has {format_bytes(capacity_bytes)}: with {format_bytes(subject.simulated.outside_bytes)} outside "
        f"the allocator {format_bytes(needed_bytes)} are needed; give a smaller budget, or auto"
    )


def _bound(subject: Subject) -> str:
    said = figures.bound(subject)
    return f"bound: {said}" if said else ""


def plain_table(*, title: str) -> Table:
    """A table in the one look that elbowroom's tables have."""
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _headlines(subject: Subject) -> Table:
    table = plain_table(title="\nThe step")
    table.add_column("")
    for title, _ in subject.timelines:
        table.add_column(title, justify="right", style=COLOUR_OF[title])
    for row in figures.headlines(subject):
        table.add_row(row.name, *row.cells)
    return table


def _breakdown(found: tuple[figures.Peak, ...]) -> Table:
    table = plain_table(title="On the device at the allocated peak")
    table.add_column("category")
    for peak in found:
        table.add_column(peak.title, justify="right", style=COLOUR_OF[peak.title])
    rank: dict[Category, int] = {}
    for peak in found:
        for category, size_bytes in peak.parts:
            rank[category] = max(rank.get(category, 0), size_bytes)
    for category in sorted(rank, key=lambda name: -rank[name]):
        held = [dict(peak.parts).get(category, 0) for peak in found]
        table.add_row(category, *(format_bytes(size_bytes) for size_bytes in held))
    return table


def _pareto(curve: Pareto) -> Table:
    table = plain_table(title=f"\nBudget against step time on {curve.machine}")
    for name in figures.PARETO_COLUMNS:
        table.add_column(name, justify="left" if name == "planner" else "right", no_wrap=True)
    for row in figures.pareto_rows(curve):
        table.add_row(*row)
    return table


def _storages(subject: Subject) -> Table:
    table = plain_table(title="\nThe largest storages")
    for name, justify in (("size", "right"), ("category", "left"), ("made by", "left"), ("idle", "right")):
        table.add_column(name, justify=justify, no_wrap=name != "made by")  # pyright: ignore[reportArgumentType]
    table.add_column("plan")
    for row in figures.largest_storages(subject, STORAGES_SHOWN):
        maker = f"{row.made_by} {row.module}".strip()
        idle = "" if row.idle_ns is None else format_ns(row.idle_ns)
        decision = Text(f"{row.action} {row.detail}".strip(), style="" if row.action == "keep" else "yellow")
        table.add_row(format_bytes(row.size_bytes), row.category, Text(maker), idle, decision)
    return table
