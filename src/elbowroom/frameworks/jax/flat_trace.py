"""Flat trace: a flat step becomes a `Trace` of one step, with what forward leaves for backward as its saves.

A value that forward makes and backward reads is saved, if a policy of `jax.checkpoint` can tell it from others. What
else stays is held to the end of its last use and no plan moves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elbowroom.frameworks.jax.flat_step import (
    Buffers,
    Change,
    FlatLine,
    FlatStep,
    bases,
    buffers_of,
    output_by_output,
    recomputed_late,
)
from elbowroom.frameworks.jax.heap_gaps import gap_bytes, stack_bytes
from elbowroom.trace import Category, Event, Op, Remark, Save, Step, Storage, Trace

NOT_FUSED = "fusion by XLA: the memory is an upper bound"
"""Remark of every trace of JAX."""

HEAP = -(2**40)
"""Number of the buffer for what XLA's block has besides live buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxCapture:
    """A trace, and how a policy tells its saved storages.

    Attributes:
        trace: the trace.
        keys: by saved storage, what the policy sees of it.
    """

    trace: Trace
    keys: dict[int, str]


def traced(step: FlatStep, durations_ns: Sequence[int], device: str, version: str) -> JaxCapture:
    """Return the trace of a step.

    Args:
        step: the step, as `with_phases` returns it.
        durations_ns: time of each line.
        device: device of the trace.
        version: version of JAX, such as "jax 0.10.2".
    """
    saved = _saved(step)
    buffers = _with_heap(step, buffers_of(step, frozenset(saved)))
    ids = {buffer: n for n, buffer in enumerate(dict.fromkeys(change.buffer for change in buffers.changes))}
    ops = tuple(_op(step, buffers, ids, number, ns) for number, ns in enumerate(durations_ns))
    lines = list(dict.fromkeys(line.source_line for line in step.lines if line.source_line))
    index = {line: n for n, line in enumerate(lines)}
    saves, keys = _saves(step, buffers, ids, saved)
    trace = Trace(
        device=device,
        torch_version=version,
        ops=ops,
        storages=_storages(step, buffers, ids, saved),
        events=tuple(Event(change.line, ids[change.buffer], change.size_bytes) for change in buffers.changes),
        saves=saves,
        steps=(Step(0, len(ops)),),
        remarks=_remarks(step),
        source_lines=tuple(lines),
        op_source_lines=tuple(index.get(line.source_line) for line in step.lines) if lines else (),
    )
    return JaxCapture(trace=trace, keys=keys)


def with_phases(step: FlatStep) -> FlatStep:
    """Tell lines of no gradient apart: before the end of backward they are of forward, after it of the optimizer."""
    backward = [number for number, line in enumerate(step.lines) if line.phase == "backward"]
    end = backward[-1] + 1 if backward else len(step.lines)
    lines = [_with_phase(line, number < end) for number, line in enumerate(step.lines)]
    return output_by_output(recomputed_late(replace(step, lines=tuple(lines))), end)


def _with_heap(step: FlatStep, buffers: Buffers) -> Buffers:
    """Add what XLA's block of buffers may have besides the live ones.

    These are gaps, whole stacks, what devices exchange, and one more buffer, as XLA has an order of its own.
    """
    outside = {each.value for each in step.inputs} | {buffers.of[v] for v in step.outputs if v in buffers.of}
    most = max((size for buffer, size in buffers.sizes.items() if buffer >= 0 and buffer not in outside), default=0)
    gaps = gap_bytes(buffers.changes, frozenset(outside)) + stack_bytes(buffers, step.stacks)
    more = gaps + most + step.exchanged_bytes
    if not more:
        return buffers
    sizes = {**buffers.sizes, HEAP: more}
    return Buffers(of=buffers.of, sizes=sizes, changes=(Change(-1, HEAP, more), *buffers.changes))


def _with_phase(line: FlatLine, before_end: bool) -> FlatLine:
    if before_end:
        return replace(line, phase="forward") if line.phase == "other" else line
    return replace(line, phase="optimizer")


def _saved(step: FlatStep) -> dict[int, list[int]]:
    """Return the values that forward makes and backward reads, each with the lines of backward that read it."""
    made = {value: number for number, line in enumerate(step.lines) if line.phase == "forward" for value in line.makes}
    found: dict[int, list[int]] = {}
    for number, line in enumerate(step.lines):
        if line.phase == "backward":
            for value in bases(step, line.reads):
                if value in made and step.values[value].spread_of is None and value not in step.outputs:
                    found.setdefault(value, []).append(number)
    return dict(sorted(found.items(), key=lambda each: made[each[0]]))


def _saves(
    step: FlatStep, buffers: Buffers, ids: dict[int, int], saved: dict[int, list[int]]
) -> tuple[tuple[Save, ...], dict[int, str]]:
    """Return the saves, by rising position, and the keys of their storages."""
    last: dict[int, int] = {}
    made: dict[int, int] = {}
    for number, line in enumerate(step.lines):
        made.update(dict.fromkeys(line.makes, number))
        if line.phase == "forward":
            last.update(dict.fromkeys((*bases(step, line.reads), *line.makes), number))
    found: list[Save] = []
    keys: dict[int, str] = {}
    for value, reads in saved.items():
        if value in step.keys and value in buffers.of:
            storage, idle = ids[buffers.of[value]], last[value] + 1
            idle_from = idle if idle < reads[0] else None
            save = Save(storage=storage, saved_at=made[value] + 1, idle_from=idle_from, read_at=tuple(reads))
            found.append(save)
            keys[storage] = step.keys[value]
    return tuple(sorted(found, key=lambda each: each.saved_at)), keys


def _op(step: FlatStep, buffers: Buffers, ids: dict[int, int], number: int, duration_ns: int) -> Op:
    line = step.lines[number]
    writes = dict.fromkeys(ids[buffers.of[value]] for value in line.makes if value in buffers.of)
    if -1 - number in ids:
        writes[ids[-1 - number]] = None
    reads = dict.fromkeys(ids[buffers.of[v]] for v in bases(step, line.reads) if v in buffers.of)
    return Op(
        name=f"jax.{line.name}",
        module=line.module,
        phase=line.phase,
        reads=tuple(reads),
        writes=tuple(writes),
        duration_ns=duration_ns,
        flops=line.flops,
    )


def _storages(
    step: FlatStep, buffers: Buffers, ids: dict[int, int], saved: dict[int, list[int]]
) -> tuple[Storage, ...]:
    category = _categories(step, buffers, saved)
    found = list[Storage]()
    for buffer in ids:
        dtype = step.values[buffer].dtype if buffer >= 0 else ""
        what: Category = category.get(buffer, "temporary") if buffer >= 0 else "workspace"
        found.append(Storage(size_bytes=buffers.sizes[buffer], category=what, dtype=dtype))
    return tuple(found)


def _categories(step: FlatStep, buffers: Buffers, saved: dict[int, list[int]]) -> dict[int, Category]:
    """Return what the bytes of buffers are for, by what reads and makes the values on them."""
    read_in: dict[int, set[str]] = {}
    made_in: dict[int, str] = {}
    for line in step.lines:
        made_in.update(dict.fromkeys(line.makes, line.phase))
        for value in bases(step, line.reads):
            read_in.setdefault(value, set()).add(line.phase)
    found: dict[int, Category] = {}
    for value, phases in read_in.items():
        if made_in.get(value) == "backward" and phases == {"optimizer"} and value in buffers.of:
            found.setdefault(buffers.of[value], "gradient")
    found.update({buffers.of[value]: "activation" for value in saved if value in buffers.of})
    for each in step.inputs:
        found[each.value] = what = _category_of_input(each.becomes, each.path, read_in.get(each.value, set()), made_in)
        if each.becomes in buffers.of:
            found[buffers.of[each.becomes]] = what
    return found


def _category_of_input(becomes: int | None, path: str, phases: set[str], made_in: dict[int, str]) -> Category:
    used = bool(phases & {"forward", "backward"})
    if becomes is None:
        return "parameter" if used and "params" in path else "input"
    if not used:
        return "optimizer_state"
    return "parameter" if made_in.get(becomes) == "optimizer" else "buffer"


def _remarks(step: FlatStep) -> tuple[Remark, ...]:
    counts = Counter(dict(step.remarks))
    assumed = (Remark(kind="assumed_value", name=name, count=count) for name, count in counts.items())
    exact = Remark(kind="allocator_settings", name="exact", count=1)  # XLA takes one block for a whole program
    return (Remark(kind="workspace_model", name=NOT_FUSED, count=1), exact, *assumed)
