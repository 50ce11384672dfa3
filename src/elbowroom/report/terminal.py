"""The report on a terminal: rich tables, or plain text without colours."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from elbowroom.answers.moved_bytes import moved_bytes
from elbowroom.answers.pareto import Pareto
from elbowroom.plan import Plan
from elbowroom.report import figures
from elbowroom.report.screen import Column, FittingTable, PlainConsole, plain_table
from elbowroom.report.subject import KEPT, Subject
from elbowroom.trace import Category
from elbowroom.units import format_bytes, format_ns

STORAGES_SHOWN = 12
WIDTH = 120
COLOUR_OF = {KEPT: "bright_black", "simulated": "yellow", "measured": "blue"}

PARETO_RANKS = {"stall": 2, "swapped out": 3, "reserved": 1}
"""Ranks of the columns of the curve that a narrow terminal leaves out."""


def as_text(subject: Subject) -> str:
    """Render the report without colours, at a fixed width."""
    return plain_text(rendered(subject))


def plain_text(what: RenderableType) -> str:
    """Render something without colours, at a fixed width."""
    console = PlainConsole(
        file=io.StringIO(), width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False
    )
    with console.capture() as captured:
        console.print(what)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def rendered(subject: Subject) -> RenderableType:
    """Render the report for rich, in colours if the terminal has them."""
    sentences = (figures.decisions(subject), _bound(subject), figures.machine(subject))
    parts: list[RenderableType] = [Text(sentence) for sentence in sentences if sentence]
    if subject.timelines:
        parts.append(_headlines(subject))
    if accuracy := figures.accuracy(subject):
        parts.append(Text(f"accuracy of memory: {accuracy}\naccuracy of time: {figures.accuracy_of_time(subject)}\n"))
    if found := figures.peaks(subject):
        parts.append(_breakdown(found))
    if subject.pareto is not None:
        parts.append(_pareto(subject.pareto))
    if subject.trace is not None:
        parts.append(_storages(subject))
    return Group(*parts)


def plan_rendered(
    script: str, subject: Subject, *, early: str = "", may_move: str = "", written: Sequence[tuple[str, str]] = ()
) -> RenderableType:
    """Render the answer of `elbowroom plan`: what the plan does, what it costs, and how much better it could be.

    Args:
        script: the script that was planned.
        subject: the plan, its trace and its timelines.
        early: what a search that ended early did not try.
        may_move: a sentence on the least size of storages that may move.
        written: the files that were written: the kind and the name of each.
    """
    plan, name = subject.plan, subject.machine.name if subject.machine else ""
    assert plan is not None
    head = f"{script} on {name}: {_headline(subject)}"
    sentences = (early, _too_much(subject), figures.decisions(subject), may_move, _numbers(plan), _bound(subject))
    parts: list[RenderableType] = [Text(head, style="bold green")]
    parts += [Text(sentence) for sentence in (*sentences, figures.machine(subject)) if sentence]
    parts.append(_headlines(subject))
    parts += _moved(subject)
    if written:
        parts.append(Text("\nwritten: " + ", ".join(f"{file} ({what})" for what, file in written)))
    return Group(*parts)


def _headline(subject: Subject) -> str:
    """Compare time and memory of the plan with those of keeping everything; memory is reserved bytes on both sides."""
    plan, line = subject.plan, subject.simulated
    assert plan is not None
    assert line is not None
    before = subject.kept or line
    slower = line.step_ns / before.step_ns if before.step_ns else 1.0
    reserved_bytes = line.peak_reserved_bytes
    more = f", {before.peak_reserved_bytes / reserved_bytes:.2f} times as much" if reserved_bytes else ""
    return (
        f"a step of {format_ns(line.step_ns)} within {format_bytes(plan.budget_bytes)}, {slower:.3f} times as long as "
        f"with everything kept; it reserves {format_bytes(reserved_bytes)}, and everything kept reserves "
        f"{format_bytes(before.peak_reserved_bytes)}{more}"
    )


def _numbers(plan: Plan) -> str:
    """Say whether the numbers of the training change."""
    if not plan.algorithms:
        return "The numbers of the training are the same as without a plan."
    count = len(plan.algorithms)
    ops = "1 convolution runs" if count == 1 else f"{count} convolutions run"
    return (
        f"Numbers change: {ops} with another algorithm, which rounds differently; leave algorithm out of --allow to "
        "keep every bit"
    )


def _too_much(subject: Subject) -> str:
    """Warn if the device has no room for the memory outside the allocator, which a budget does not count."""
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


def _headlines(subject: Subject) -> Table:
    table = plain_table(title="\nThe step")
    table.add_column("")
    for title, _ in subject.timelines:
        table.add_column(title, justify="right", style=COLOUR_OF[title])
    for row in figures.headlines(subject):
        table.add_row(row.name, *row.cells)
    return table


def _moved(subject: Subject) -> list[Table]:
    """Render what a step moves under the plan; nothing if it moves nothing."""
    found = moved_bytes(subject.trace, subject.simulated) if subject.trace and subject.simulated else ()
    if not found:
        return []
    table = plain_table(title="\nWhat a step moves")
    for name in ("", "link", "out", "back"):
        table.add_column(name, justify="right" if name in ("out", "back") else "left")
    for category, upper, lower, out_bytes, back_bytes in found:
        moved = format_bytes(out_bytes), format_bytes(back_bytes)
        table.add_row(category.replace("_", " "), f"{upper} and {lower}", *moved)
    return [table]


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


def _pareto(curve: Pareto) -> FittingTable:
    columns = [Column(name, left=name == "planner", rank=PARETO_RANKS.get(name, 0)) for name in figures.PARETO_COLUMNS]
    return FittingTable(f"\nBudget against step time on {curve.machine}", columns, list(figures.pareto_rows(curve)))


def _storages(subject: Subject) -> Table:
    table = plain_table(title=f"\n{figures.storages_title(subject)}")
    for name, justify in (("size", "right"), ("category", "left"), ("made by", "left"), ("idle", "right")):
        table.add_column(name, justify=justify, no_wrap=name != "made by", overflow="fold")  # pyright: ignore[reportArgumentType]
    table.add_column("plan")
    for row in figures.largest_storages(subject, STORAGES_SHOWN):
        maker = f"{row.made_by} {row.module}".strip()
        idle = "" if row.idle_ns is None else format_ns(row.idle_ns)
        decision = Text(row.decision, style="" if row.action == "keep" else "yellow")
        table.add_row(format_bytes(row.size_bytes), row.category, Text(maker), idle, decision)
    return table
