"""Peak section: what holds the memory at the peak, as HTML: by category, by module as icicles, and by source line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from elbowroom.answers.memory_tree import Held, MemoryNode, line_bytes, memory_tree
from elbowroom.errors import InvalidPlan
from elbowroom.machine import Link, Machine, Tier, TierName
from elbowroom.plan import Plan
from elbowroom.report import figures
from elbowroom.report.icicle import icicle, named, shared
from elbowroom.report.markup import folded, share_table, table
from elbowroom.report.subject import KEPT, Subject
from elbowroom.simulate.simulate import held_storages
from elbowroom.trace import Category, Trace
from elbowroom.units import format_bytes

LINES_SHOWN = 20
ROWS_SHOWN = 200
"""Rows of the table of modules; the picture has as many boxes as are wide enough."""
ROWS_PRINTED = 30
"""Rows of that table on paper, as in page.css: more of them would fill twenty pages."""
ROOM_BYTES, RATE = 2**50, 2**34
HINT = (
    "A box is as wide as its bytes. Click one, or press Enter, to see it whole; arrows go through the tree, Escape "
    "goes back up."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakHeld:
    """What one simulated step holds at its allocated peak.

    Attributes:
        title: of the timeline it is of.
        held: (storage, bytes).
        tree: the same by module.
        lines: bytes by source line, largest first; "" for those without one.
    """

    title: str
    held: Held
    tree: MemoryNode
    lines: dict[str, int] = field(default_factory=dict[str, int])


def held_of(subject: Subject) -> tuple[PeakHeld, ...]:
    """Return what the device holds with everything kept, and under the plan; empty without a trace."""
    trace, plan = subject.trace, subject.plan
    if trace is None:
        return ()
    machine = subject.machine or _any_machine(plan)
    found = [(KEPT, held_storages(trace, machine))]
    if plan is not None and plan.decides:
        try:
            found.append(("under the plan, simulated", held_storages(trace, machine, plan)))
        except InvalidPlan:  # the plan is for another machine: there is no such step
            return (_peak_held(trace, *found[0]),)
    return tuple(_peak_held(trace, title, held) for title, held in found)


def _any_machine(plan: Plan | None) -> Machine:
    """Return a machine with room for everything: what a step holds at its peak follows from trace and plan alone."""
    lower: list[TierName] = sorted({swap.tier for swap in plan.swaps}) if plan is not None else []
    names: tuple[TierName, ...] = ("device", *lower)
    tiers = tuple(Tier(name=name, capacity_bytes=ROOM_BYTES) for name in names)
    links = tuple(
        Link(upper="device", lower=name, out_bytes_per_s=RATE, back_bytes_per_s=RATE, latency_ns=0) for name in lower
    )
    return Machine(name="any", tiers=tiers, links=links)


def _peak_held(trace: Trace, title: str, held: Held) -> PeakHeld:
    return PeakHeld(title=title, held=held, tree=memory_tree(trace, held), lines=line_bytes(trace, held))


def peak_section(subject: Subject) -> str:
    """Make the whole section; nothing if no record says what is held."""
    return breakdown(subject) + "".join(modules_html(each) for each in held_of(subject))


def modules_html(peak: PeakHeld) -> str:
    """Draw a tree, with tables of its modules and of source lines below it."""
    all_bytes = peak.tree.size_bytes
    if not all_bytes:
        return ""
    label = f"What holds {format_bytes(all_bytes)} at the peak, by module, {peak.title}"
    by_line = [(line or "no line known", format_bytes(size), size / all_bytes) for line, size in _lines(peak)]
    lines = share_table(f"Bytes by source line, {peak.title}", ("line", "bytes"), by_line) if by_line else ""
    return (
        f'<h3>By module, {escape(peak.title)}</h3><p class="hint">{HINT}</p>'
        f'<div class="tree">{icicle(peak.tree, label)}<p class="said" aria-live="polite">all: {format_bytes(all_bytes)}'
        f"</p></div>{folded('The modules as a table', tree_table(peak))}{folded('By line of the script', lines)}"
    )


def tree_table(peak: PeakHeld) -> str:
    """Make the table behind an icicle: its boxes in the order of the tree."""
    nodes = [node for _, node in peak.tree.walk()][:ROWS_SHOWN]
    rows = [(named(node), *shared(node, peak.tree.size_bytes).split(", ")) for node in nodes]
    made = table(f"Bytes by module, {peak.title}", ("module", "bytes", "share"), rows, kind="figures modules")
    left = len(rows) - ROWS_PRINTED
    return made + (f'<p class="on-paper">{left} more rows are on the page itself.</p>' if left > 0 else "")


def _lines(peak: PeakHeld) -> Iterator[tuple[str, int]]:
    """Yield the largest lines, and all others as one."""
    rows = list(peak.lines.items())
    yield from rows[:LINES_SHOWN]
    if rest := sum(size for _, size in rows[LINES_SHOWN:]):
        yield f"{len(rows) - LINES_SHOWN} other lines", rest


def breakdown(subject: Subject) -> str:
    """Draw one bar per timeline, all on the scale of the largest peak, with the budget as a line across."""
    found = figures.peaks(subject)
    if not found:
        return ""
    scale = max(sum(size for _, size in peak.parts) for peak in found) or 1
    order: list[Category] = list(dict.fromkeys([category for peak in found for category, _ in peak.parts]))
    bars = "".join(_bar(peak, order, scale) for peak in found)
    budget_bytes = subject.plan.budget_bytes if subject.plan else 0
    line = f'<i class="budget" style="left:{budget_bytes / scale:.3%}"></i>' if 0 < budget_bytes <= scale else ""
    keys = "".join(f'<span><i class="key cat-{name}"></i>{name.replace("_", " ")}</span>' for name in order)
    over = f'<div class="over"><div></div><div class="track">{line}</div></div>'
    rows = [
        (name.replace("_", " "), *(format_bytes(dict(peak.parts).get(name, 0)) for peak in found)) for name in order
    ]
    as_table = table("Bytes by category at the peak", ("category", *(peak.title for peak in found)), rows)
    return (
        f'<h3>By category</h3><div class="bars" aria-hidden="true">{bars}{over}</div>'
        f'<p class="keys" aria-hidden="true">{keys}</p>{folded("The categories as a table", as_table)}'
    )


def _bar(peak: figures.Peak, order: list[Category], scale: int) -> str:
    parts = "".join(
        f'<i class="cat-{category}" style="width:{size / scale:.3%}" '
        f'title="{category} {escape(format_bytes(size))}"></i>'
        for category, size in sorted(peak.parts, key=lambda part: order.index(part[0]))
    )
    size = escape(format_bytes(peak.peak_allocated_bytes))
    name = f'<div class="{tone_of(peak.title)}">{escape(peak.title)}<b>{size}</b></div>'
    return f'<div class="bar">{name}<div class="track">{parts}</div></div>'


def tone_of(title: str) -> str:
    """Return the class of a timeline's colour."""
    return "tone-kept" if title == KEPT else f"tone-{title}"
