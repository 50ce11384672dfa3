"""Comparison: two steps with their records, and how they differ: of two runs, two plans, or versions of a script.

Each side has the same kind of timeline, measured or simulated, so no measured time stands against a simulated one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elbowroom.answers.memory_tree import module_bytes
from elbowroom.answers.moved_bytes import moved_bytes
from elbowroom.errors import UsageError
from elbowroom.files.record_files import ANSWERS
from elbowroom.plan import Plan
from elbowroom.report.figures import ENERGY, HEADLINES, StorageRow, energy, largest_storages
from elbowroom.report.peak_section import held_of
from elbowroom.report.subject import Record, Subject, kind_of, subject_of
from elbowroom.simulate.simulate import simulate
from elbowroom.timeline import Timeline
from elbowroom.trace import Category, Trace
from elbowroom.units import format_bytes, format_joules, format_ns

MODULES_SHOWN = 30
MOST_TIMES = 10
"""From this multiple on a share says nothing."""
RUN_SCHEMA = f"{ANSWERS}run"
"""Schema of what `elbowroom run --json` writes, which it begins with."""
OF_ONE = ("trace", "plan", "simulated", "measured")
"""Kinds of records that make a side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two steps.

    Attributes:
        name: its file.
        subject: its records.
        line: the timeline that is compared.
    """

    name: str
    subject: Subject
    line: Timeline


Sides = tuple[Side, Side]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of both sides as text, and the second less the first."""

    name: str
    first: str
    second: str
    difference: str


def is_pair(records: Sequence[Record]) -> bool:
    """Whether records are of two steps: two of one kind."""
    kinds = [kind_of(record) for record in records]
    return any(kinds.count(kind) == 2 for kind in OF_ONE)


def sides_of(named: Mapping[str, Record]) -> Sides:
    """Sort records into two sides. What is given once, such as a machine, belongs to both.

    Args:
        named: records by the name of their file.

    Raises:
        UsageError: a record could be of either side, three of a kind, or no timelines of one source.
    """
    ids = list(dict.fromkeys(found for record in named.values() if (found := _trace_id(record))))
    if len(ids) > 2:
        raise UsageError(f"report: given records of {len(ids)} traces; allowed are two at most; leave some out")
    halves: tuple[dict[str, Record], dict[str, Record]] = ({}, {})
    names: dict[int, str] = {}
    for kind in ("trace", "machine", "plan", "simulated", "measured", "pareto", "estimate"):
        of_kind = [(name, record) for name, record in named.items() if kind_of(record) == kind]
        for half, (name, record) in _dealt(kind, of_kind, ids):
            halves[half][kind] = record
            if len(of_kind) == 2 and kind in OF_ONE:
                names[half] = _stem(name)
    _check_owners(halves, named)
    subjects = [subject_of(*half.values()) for half in halves]
    lines = [subject.measured for subject in subjects]
    if None in lines:
        lines = [_simulated(subject) for subject in subjects]
    made = [
        Side(name=names.get(half, f"step {half + 1}"), subject=subject, line=line)
        for half, (subject, line) in enumerate(zip(subjects, lines, strict=True))
        if line is not None
    ]
    if len(made) < 2:
        raise UsageError(
            "report: given two steps without timelines of one source; allowed are two measured or two simulated ones, "
            "or a trace and a machine for plans; add the machine (`elbowroom machine NAME -o machine.json` writes "
            "it), or leave records out"
        )
    if made[0].name == made[1].name:
        made = [replace(side, name=f"{side.name} ({half})") for half, side in enumerate(made, 1)]
    return made[0], made[1]


def _dealt(
    kind: str, of_kind: Sequence[tuple[str, Record]], ids: Sequence[str]
) -> Iterator[tuple[int, tuple[str, Record]]]:
    """Yield records of one kind with the side of each: by trace if there are two, else in their order."""
    if len(of_kind) > 2:
        raise UsageError(f"report: given {len(of_kind)} records of the kind {kind}; allowed are two; leave some out")
    for number, each in enumerate(of_kind):
        found = _trace_id(each[1])
        if len(ids) == 2 and found:
            yield ids.index(found), each
        elif len(of_kind) == 2:
            yield number, each
        else:
            yield 0, each
            yield 1, each


def _check_owners(halves: Sequence[Mapping[str, Record]], named: Mapping[str, Record]) -> None:
    """Refuse what could be of either side, and two of one kind on one side."""
    kinds = [kind_of(record) for record in named.values()]
    for kind in ("simulated", "measured"):
        if kinds.count("plan") == 2 and kinds.count(kind) == 1 and len(_ids(halves)) == 1:
            raise UsageError(
                f"report: given two plans and one {kind} timeline, which could be of either; allowed is one for each "
                "or no timeline; leave it out"
            )
    placed = sum(len(half) for half in halves)
    shared = sum(1 for kind in halves[0] if halves[0][kind] is halves[1].get(kind))
    if placed - shared != len(named):
        raise UsageError("report: given two records of one kind for one trace, and another trace; leave one out")


def _ids(halves: Sequence[Mapping[str, Record]]) -> set[str]:
    return {found for half in halves for record in half.values() if (found := _trace_id(record))}


def _trace_id(record: Record) -> str:
    if isinstance(record, Trace):
        return record.id
    return getattr(record, "trace_id", "")


def _stem(name: str) -> str:
    return Path(name).name.removesuffix(".json").removesuffix(".timeline") or name


def _simulated(subject: Subject) -> Timeline | None:
    """Return the simulated timeline of one side, made if trace and machine are there."""
    if subject.simulated is not None or subject.trace is None or subject.machine is None:
        return subject.simulated
    return simulate(subject.trace, subject.machine, subject.plan)


def headline_differences(sides: Sides) -> Iterator[Difference]:
    """Yield the figures of both steps."""
    first, second = sides[0].line, sides[1].line
    bytes_of = {
        "peak allocated": (first.peak_allocated_bytes, second.peak_allocated_bytes),
        "peak reserved": (first.peak_reserved_bytes, second.peak_reserved_bytes),
        "peak on the device": (first.peak_device_bytes, second.peak_device_bytes),
        "swapped out": (first.swapped_out_bytes, second.swapped_out_bytes),
        "swapped back": (first.swapped_back_bytes, second.swapped_back_bytes),
    }
    times_of = {"step time": (first.step_ns, second.step_ns), "stall": (first.stall_ns, second.stall_ns)}
    for name, show in HEADLINES:
        said = changed(*bytes_of[name], format_bytes) if name in bytes_of else ""
        said = changed(*times_of[name], format_ns) if name in times_of else said
        yield Difference(name=name, first=show(first), second=show(second), difference=said)
    one, other = (energy(side.subject, side.line) for side in sides)
    if one is not None and other is not None:
        said = changed(one.likely_millijoules, other.likely_millijoules, format_joules)
        yield Difference(name=ENERGY, first=one.words, second=other.words, difference=said)


def changed(one: int, other: int, show: Callable[[int], str]) -> str:
    """Return the second less the first with its sign, and the share of the first below `MOST_TIMES` of it."""
    if one == other:
        return "equal"
    size = show(abs(other - one))
    share = f" ({(other - one) / one:+.1%})" if one and other < MOST_TIMES * one else ""
    return f"{'+' if other > one else '-'}{size}{share}"


def category_bytes(sides: Sides) -> dict[Category, tuple[int, int]]:
    """Return the bytes of each category at the peaks of both steps, the most first."""
    one, other = (side.line.breakdown() for side in sides)
    found: dict[Category, tuple[int, int]] = {name: (one.get(name, 0), other.get(name, 0)) for name in (*one, *other)}
    return dict(sorted(found.items(), key=lambda entry: (-max(entry[1]), entry[0])))


def category_differences(sides: Sides) -> Iterator[Difference]:
    """Yield what both steps hold at their allocated peaks, by category."""
    for name, sizes in category_bytes(sides).items():
        yield _of_bytes(name.replace("_", " "), *sizes)


def module_differences(sides: Sides) -> Iterator[Difference]:
    """Yield the modules whose bytes at the simulated peak differ most; nothing without traces."""
    held = [held_of(side.subject) for side in sides]
    traces = [side.subject.trace for side in sides]
    if traces[0] is None or traces[1] is None:
        return
    one, other = (
        module_bytes(trace, found[-1].held) for trace, found in zip((traces[0], traces[1]), held, strict=True)
    )
    both = {name: (one.get(name, 0), other.get(name, 0)) for name in (*one, *other)}
    ranked = sorted(both, key=lambda name: (-abs(both[name][1] - both[name][0]), name))
    for name in ranked[:MODULES_SHOWN]:
        if both[name][0] != both[name][1]:
            yield _of_bytes(name or "outside modules", *both[name])


def moved_differences(sides: Sides) -> Iterator[Difference]:
    """Yield what both steps move, by category, link and way; nothing without traces."""
    found: dict[str, list[int]] = {}
    for number, side in enumerate(sides):
        for each in moved_bytes(side.subject.trace, side.line) if side.subject.trace is not None else ():
            for way, size in (("out", each.out_bytes), ("back", each.back_bytes)):
                link = f"{each.upper} to {each.lower}" if way == "out" else f"{each.lower} to {each.upper}"
                row = found.setdefault(f"{each.category.replace('_', ' ')}, {link}", [0, 0])
                row[number] += size
    yield from (_of_bytes(name, *sizes) for name, sizes in found.items())


def _of_bytes(name: str, one: int, other: int) -> Difference:
    return Difference(
        name=name,
        first=format_bytes(one),
        second=format_bytes(other),
        difference=changed(one, other, format_bytes),
    )


def action_differences(sides: Sides) -> Iterator[tuple[StorageRow, StorageRow]]:
    """Yield the storages that two plans of one trace treat differently, the largest first."""
    trace, plans = sides[0].subject.trace, [side.subject.plan for side in sides]
    if trace is None or sides[1].subject.trace is not trace or plans[0] == plans[1]:
        return
    rows = [{row.storage: row for row in largest_storages(side.subject, len(trace.storages))} for side in sides]
    for storage, row in sorted(rows[0].items(), key=lambda entry: (-entry[1].size_bytes, entry[0])):
        other = rows[1][storage]
        if row.action != other.action or _tiers(plans[0], storage) != _tiers(plans[1], storage):
            yield row, other


def _tiers(plan: Plan | None, storage: int) -> set[str]:
    return {swap.tier for swap in plan.swaps if swap.storage == storage} if plan is not None else set()


def comparison_sentences(sides: Sides) -> tuple[str, ...]:
    """Say which step holds less, and which is faster."""
    first, second = sides
    source, held = first.line.source, (first.line.peak_reserved_bytes, second.line.peak_reserved_bytes)
    time = first.line.step_ns, second.line.step_ns
    memory = (
        f"Both hold {format_bytes(held[0])}, {source}."
        if held[0] == held[1]
        else f"{second.name} holds {_less(held)} at the peak than {first.name}: {format_bytes(held[1])} against "
        f"{format_bytes(held[0])}, {source}."
    )
    steps = (
        f"Both steps take {format_ns(time[0])}, {source}."
        if time[0] == time[1] or not time[0]
        else f"A step of {second.name} takes {time[1] / time[0]:.3f} times as long: {format_ns(time[1])} against "
        f"{format_ns(time[0])}, {source}."
    )
    budgets = [side.subject.plan.budget_bytes for side in sides if side.subject.plan is not None]
    said = (
        [f"Their budgets are {format_bytes(budgets[0])} and {format_bytes(budgets[1])}."] if len(budgets) == 2 else []
    )
    return (memory, steps, *said)


def _less(held: tuple[int, int]) -> str:
    return f"{format_bytes(abs(held[1] - held[0]))} {'less' if held[1] < held[0] else 'more'}"
