"""The answers of `elbowroom estimate` and `elbowroom largest` on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from elbowroom.answers.estimate import Estimate, Interval, moment_label
from elbowroom.answers.exchange_memory import exchange_memory
from elbowroom.answers.exchanges import StepTimes, collectives_of, step_times
from elbowroom.answers.largest import Largest
from elbowroom.answers.planned_training import PlannedTraining
from elbowroom.hardware.interconnects import Interconnect
from elbowroom.report.screen import Column, FittingTable, plain_table
from elbowroom.units import format_bytes, format_ns

if TYPE_CHECKING:
    from elbowroom.answers.slowdown import SlowdownNeed
    from elbowroom.trace import Remark, Trace

NONE = "(no module)"
KINDS = {
    "unknown_op": "ops whose scratch memory is not known, taken to be none",
    "not_compared": "ops never compared with a CUDA build, taken to make their results only if no rule says more",
    "assumed_value": "values the script asked for, which are not computed but assumed (docs/values.md)",
    "workspace_model": "workspaces whose size is a model",
    "unsupported": "left out",
    "ended_early": "the script failed later, and the answer is of the steps before that",
    "allocator_settings": "settings of the allocator that the script makes itself, which count",
    "compiled": "what torch.compile saves, which these figures of eager leave out",
    "exported": "what the exported graph leaves open",
    "kept_away": "what the script wanted to do, and an estimate does not do",
}
_ONCE = ("ended_early", "kept_away", "allocator_settings", "compiled", "exported")
"""Kinds whose names are sentences."""
_NAMES_SHOWN = 5
SAME_TIME = 1.05
"""Below this factor a step is said to take as long as without a plan."""


def rendered(
    script: str,
    answers: Sequence[Estimate],
    traces: Sequence[Trace] = (),
    ranks: Sequence[int] = (),
    wires: Sequence[Interconnect] = (),
) -> RenderableType:
    """Render the answer for one GPU with all its figures, for several GPUs or ranks as one table.

    Args:
        script: the script that was estimated, and as which of many processes.
        answers: one per GPU and rank.
        traces: the trace of each answer, for its remarks and collectives.
        ranks: the rank of each answer; empty if the script is not one of many processes.
        wires: how the ranks of each answer reach each other; empty if that is not known.
    """
    notes = _remarks(dict.fromkeys(remark for trace in traces for remark in trace.remarks))
    if len(answers) > 1:
        return Group(_machines(script, answers, ranks, [step_times(trace) for trace in traces]), *notes)
    answer = answers[0]
    parts: list[RenderableType] = [Text(f"{script} on {answer.machine}: {verdict(answer)}", style=_style(answer))]
    parts += _planned_lines(answer.planned)
    if answer.failure is not None:
        parts.append(Text(f"The first allocation that fails: {moment_label(answer.failure)}"))
    parts.append(_figures(answer))
    parts.append(Text(f"\nThe allocated peak: {moment_label(answer.peak)}"))
    parts.append(_categories(answer))
    parts.append(_modules(answer))
    if answer.energy is not None:
        parts.append(
            Text(f"\nEnergy of a step, simulated, with everything kept: {answer.energy.words}, of the GPU alone")
        )
    parts += _collectives(traces[0]) if traces else []
    parts += _exchange_notes(answer, traces[0], wires[0]) if traces and wires else []
    if answer.steps < 2:
        parts.append(
            Text("\nOnly one step was recorded: the second usually needs more, as optimizer state is there then.")
        )
    return Group(*parts, *notes, *([] if answer.fits or ranks else [_what_next(answer)]))


def _planned_lines(planned: PlannedTraining | None) -> list[RenderableType]:
    """Say how what does not fit would train under a plan."""
    if planned is None:
        return []
    if not planned.fits:
        return [
            Text(
                f"No plan that was tried makes it fit: the least found needs {format_bytes(planned.needed_bytes)} of "
                "device memory."
            )
        ]
    allowed = f" --allow {','.join(planned.allow)}" if planned.allow else ""
    return [
        Text(f"With a plan {planned_sentence(planned)}.", style="bold green"),
        Text(
            f"That is simulated, of a plan that was found quickly: `elbowroom run{allowed}` trains so. "
            "`elbowroom plan` looks for a faster step."
        ),
    ]


def planned_sentence(planned: PlannedTraining) -> str:
    """Say how a training goes on under a plan, such as "it trains on this card at about 1.4 times the step time"."""
    room = [
        f"{format_bytes(size_bytes)} {where}"
        for size_bytes, where in ((planned.host_bytes, "of host memory"), (planned.disk_bytes, "on the disk"))
        if size_bytes
    ]
    times = "the step time" if planned.slowdown < SAME_TIME else f"about {planned.slowdown:.1f} times the step time"
    return f"it trains on this card at {times}" + (f", with {' and '.join(room)}" if room else "")


def _what_next(answer: Estimate) -> Text:
    """Say what to ask where a script does not fit."""
    if answer.planned is not None and answer.planned.fits:
        return Text("\nWhat next: `elbowroom largest` finds the largest batch that fits without a plan.")
    return Text(
        f"\nWhat next: `elbowroom plan` with the same words (--gpu {answer.machine}) says whether it trains there with "
        "swaps and recomputes, and how long a step takes. `elbowroom largest` finds the largest batch without them."
    )


def verdict(answer: Estimate) -> str:
    """Say whether it fits and how close it is, in a sentence."""
    if not answer.fits:
        missing = f"does not fit: {format_bytes(-answer.free_bytes)} of device memory are missing"
        return missing if answer.sure else f"{missing}, by the likely figures; by the low ones it would fit"
    doubt = "" if answer.sure else ", by the likely figures; by the high ones it would not"
    if answer.retries:
        times = "once" if answer.retries == 1 else f"{answer.retries} times"
        return f"fits, but the allocator must empty its cache {times}: slow{doubt}"
    free_bytes = answer.capacity_bytes - answer.peak_device_bytes
    return f"fits, {format_bytes(free_bytes)} are free at the peak{doubt}"


def _style(answer: Estimate) -> str:
    colour = "green" if answer.fits else "red"
    return f"bold {colour if answer.sure else 'yellow'}"


def _figures(answer: Estimate) -> Table:
    table = plain_table(title="\nDevice memory")
    table.add_column("")
    for name in ("likely", "low", "high"):
        table.add_column(name, justify="right")
    rows = (
        ("peak allocated", answer.peak_allocated),
        ("peak reserved, with room", answer.peak_reserved),
        ("outside the allocator", answer.outside),
        ("peak on the device, with room", answer.peak_device),
    )
    for name, interval in rows:
        table.add_row(name, *_cells(interval))
    table.add_row(f"least it {'runs' if answer.fits else 'would run'} in", format_bytes(answer.needed_bytes), "", "")
    table.add_row("capacity", format_bytes(answer.capacity_bytes), "", "")
    return table


def _cells(interval: Interval) -> tuple[str, str, str]:
    low_bytes, likely_bytes, high_bytes = interval
    if low_bytes == high_bytes:
        return format_bytes(likely_bytes), "", ""
    return format_bytes(likely_bytes), format_bytes(low_bytes), format_bytes(high_bytes)


def _categories(answer: Estimate) -> Table:
    table = plain_table(title="\nWhat it is for")
    _columns(table, "category")
    for category, size_bytes in answer.categories:
        _row(table, category.replace("_", " "), size_bytes, answer)
    if answer.rounding_bytes:
        _row(table, "rounding", answer.rounding_bytes, answer)
    return table


def _modules(answer: Estimate) -> Table:
    table = plain_table(title="\nWhere it is")
    _columns(table, "module, or line" if any(share.source_line for share in answer.modules) else "module")
    for module, modules, size_bytes, source_line in answer.modules:
        count = f" ({modules} modules)" if modules > 1 else ""
        _row(table, f"{module or source_line or NONE}{count}", size_bytes, answer)
    if answer.other_modules_bytes:
        _row(table, "all others", answer.other_modules_bytes, answer)
    return table


def _collectives(trace: Trace) -> list[RenderableType]:
    """Render what a step sends to other processes and receives; nothing if it does neither."""
    found = collectives_of(trace)
    if not found:
        return []
    table = plain_table(title="\nWhat a step exchanges with other processes")
    timed = bool(trace.exchanges)
    for name in ("", "calls", "bytes", *(["time"] if timed else [])):
        table.add_column(name, justify="right" if name else "left")
    for each in found:
        time = [format_ns(each.duration_ns)] if timed else []
        table.add_row(each.kind, str(each.calls), format_bytes(each.size_bytes), *time)
    return [table]


def _exchange_notes(answer: Estimate, trace: Trace, wires: Interconnect) -> list[RenderableType]:
    """Say what a step's time is with its collectives, and what NCCL takes in addition to the figures."""
    times, own = step_times(trace), exchange_memory(trace, wires)
    if times is None or own is None:
        return []
    step, wait = format_ns(times.step_ns), format_ns(times.wait_ns)
    groups = "1 group" if own.communicators == 1 else f"{own.communicators} groups"
    least, most = format_bytes(own.least_bytes), format_bytes(own.most_bytes)
    free_bytes = answer.capacity_bytes - answer.peak_device_bytes
    tight = " With the most of it the script would not fit." if answer.fits and free_bytes < own.most_bytes else ""
    return [
        Text(f"\nA step takes {step} over {wires.name}, simulated; in {wait} of it compute waits for collectives."),
        Text(f"NCCL's own memory is in no figure above: {least} to {most} for {groups} of ranks.{tight}"),
    ]


def _columns(table: Table, first: str) -> None:
    table.add_column(first, overflow="fold")
    table.add_column("allocated", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)


def _row(table: Table, name: str, size_bytes: int, answer: Estimate) -> None:
    share = size_bytes / answer.peak_allocated_bytes if answer.peak_allocated_bytes else 0.0
    table.add_row(Text(name), format_bytes(size_bytes), f"{share:.1%}")


def _machines(
    script: str, answers: Sequence[Estimate], ranks: Sequence[int], times: Sequence[StepTimes | None]
) -> FittingTable:
    planned, timed = any(answer.planned is not None for answer in answers), any(times)
    columns = (
        Column("GPU", left=True),
        *([Column("rank")] if ranks else []),
        Column("capacity"),
        Column("verdict", left=True),
        Column("needs at least"),
        Column("peak allocated", rank=1),
        Column("reserved", rank=2),
        Column("on the device", rank=3),
        Column("low", rank=4),
        Column("high", rank=4),
        *([Column("with a plan", rank=3, left=True)] if planned else []),
        *([Column("step"), Column("waits")] if timed else []),
    )
    rows = [
        (
            answer.machine,
            *map(str, ranks[number : number + 1]),
            format_bytes(answer.capacity_bytes),
            Text(_short_verdict(answer), style=_style(answer)),
            format_bytes(answer.needed_bytes),
            format_bytes(answer.peak_allocated_bytes),
            format_bytes(answer.peak_reserved_bytes),
            *_cells(answer.peak_device),
            *([_planned_cell(answer.planned)] if planned else []),
            *(_time_cells(times[number]) if timed else []),
        )
        for number, answer in enumerate(answers)
    ]
    return FittingTable(escape(script), columns, rows)


def _time_cells(times: StepTimes | None) -> tuple[str, str]:
    return ("", "") if times is None else (format_ns(times.step_ns), format_ns(times.wait_ns))


def _planned_cell(planned: PlannedTraining | None) -> str:
    if planned is None:
        return ""
    if not planned.fits:
        return f"needs {format_bytes(planned.needed_bytes)}"
    return f"{planned.slowdown:.1f}x, {format_bytes(planned.host_bytes + planned.disk_bytes)} off it"


def _short_verdict(answer: Estimate) -> str:
    if not answer.fits:
        return "does not fit" if answer.sure else "probably not"
    if answer.retries:
        return f"fits, {answer.retries} {'retry' if answer.retries == 1 else 'retries'}"
    return "fits" if answer.sure else "probably fits"


def _remarks(remarks: Mapping[Remark, None]) -> list[RenderableType]:
    """Render what the capture did not know, a line for each kind."""
    lines: list[RenderableType] = []
    for kind, meaning in KINDS.items():
        of_kind = sorted((each for each in remarks if each.kind == kind), key=lambda each: -each.count)
        if not of_kind:
            continue
        names = ", ".join(_named(each) for each in of_kind[:_NAMES_SHOWN])
        more = f" and {len(of_kind) - _NAMES_SHOWN} more" if len(of_kind) > _NAMES_SHOWN else ""
        lines.append(Text(f"  {meaning}: {names}{more}"))
    return [Text("\nRemarks", style="bold"), *lines] if lines else []


def _named(remark: Remark) -> str:
    return remark.name if remark.kind in _ONCE and remark.count == 1 else f"{remark.name} ({remark.count})"


def search_rendered(
    script: str,
    label: str,
    how: str,
    answers: Mapping[int, Estimate],
    found: Largest,
    machine: str,
    planned: Mapping[int, SlowdownNeed] | None = None,
    same: str = "",
) -> RenderableType:
    """Render the answer of a search, and every value that was tried.

    Args:
        script: the script that was searched.
        label: the knob, in words.
        how: how the knob was found; "" if the user named it.
        answers: the estimates by value.
        found: the outcome.
        machine: name of the GPU.
        planned: by value, its need with plans within a slowdown; None if the search planned nothing.
        same: which values have the same capture, if that ended the search.
    """
    parts: list[RenderableType] = [Text(f"{how}\n")] if how else []
    style = "bold yellow" if found.has_no_effect else "bold green" if found.fits else "bold red"
    parts.append(Text(f"{script} on {machine}: {outcome(label, found, same)}", style=style))
    if found.early:
        parts.append(Text(found.early))
    return Group(*parts, _looked_at(found, answers, planned))


def _looked_at(
    found: Largest, answers: Mapping[int, Estimate], planned: Mapping[int, SlowdownNeed] | None
) -> FittingTable:
    ranked = (("value", 0), ("needs at least", 0), ("peak allocated", 1), ("peak reserved", 2), ("verdict", 0))
    columns = [Column(name, rank, left=name == "verdict") for name, rank in ranked]
    columns += [Column(name) for name in PLANNED if planned]
    rows = [
        (
            str(value),
            format_bytes(answers[value].needed_bytes if planned else needed_bytes),
            format_bytes(answers[value].peak_allocated_bytes),
            format_bytes(answers[value].peak_reserved_bytes),
            Text(_short_verdict(answers[value]), style=_style(answers[value])),
            *(_planned_cells(value, planned[value]) if planned else ()),
        )
        for value, needed_bytes in sorted(found.probes)
    ]
    return FittingTable(f"\n{len(found.probes)} values were looked at", columns, rows)


PLANNED = ("with a plan", "step time", "per value", "slowdown")


def _planned_cells(value: int, planned: SlowdownNeed) -> tuple[str, ...]:
    """Return the figures of one value with plans, in the columns of `PLANNED`."""
    if planned.step_ns is None or planned.slowdown is None:
        return f"{format_bytes(planned.needed_bytes)}, too much", "", "", ""
    needed = f"{format_bytes(planned.needed_bytes)}{'' if planned.fits else ', too much'}"
    per_value = format_ns(planned.step_ns // value) if value else ""
    return needed, format_ns(planned.step_ns), per_value, f"{planned.slowdown:.3f}"


def outcome(label: str, found: Largest, same: str = "") -> str:
    """Say what a search found, in a sentence or two."""
    capacity = format_bytes(found.capacity_bytes)
    if found.fits is None and found.too_slow is not None:
        slow = f"with {found.too_slow.value} a plan fits {capacity}, and its step takes too long"
        return f"no value of {label} that was looked at is fast enough: {slow}; allow a larger factor, or other means"
    if found.fits is None:
        assert found.too_large is not None
        least, needed_bytes = found.too_large
        return f"not even {label} = {least} fits: it needs {format_bytes(needed_bytes)}, the GPU has {capacity}"
    value, needed_bytes = found.fits
    need = f"it needs {format_bytes(needed_bytes)} of {capacity}"
    if found.has_no_effect:
        return f"{label} has no effect: {same}; does the script set it itself, or not use it? With every value {need}"
    if found.same_from is not None:
        beyond = f"beyond {found.same_from} it has no effect: {same}"
        return f"every value of {label} up to {value} fits; {beyond}; {need}"
    return f"the largest value of {label} that fits is {value}: {need}{_following(found)}{_slow(found)}"


def _slow(found: Largest) -> str:
    """Say from which value on a plan is fast enough, if smaller ones are too slow."""
    if found.fast_from is None or found.too_slow is None:
        return ""
    fast, slow = found.fast_from.value, found.too_slow.value
    between = "" if found.early or fast == slow + 1 else " (between them was not looked)"
    return f". From {fast} on a plan is fast enough; with {slow} it is not{between}"


def _following(found: Largest) -> str:
    """Say what is known of the value after the largest one that fits."""
    assert found.fits is not None
    value, after = found.fits.value, found.too_large
    if found.failed is not None and (after is None or found.failed.value < after.value):
        return f"; with {found.failed.value} the script fails: {found.failed.problem}"
    if after is not None:
        between = "" if after.value == value + 1 or found.early else " (between them was not looked)"
        return f"; {after.value} would need {format_bytes(after.needed_bytes)}{between}"
    return "" if found.early else "; that is the end of the range"
