"""Recompute options: closed choices for a planner, each with what it saves and what it costs.

Computes: a "single" is the shortest recipe of one saved storage from the storages present when it is read back. A
"block" rebuilds all saved storages of a run of forward ops at once. Runs are those of one module at every depth, groups
of 2, 4, 8 .. of these, and parts of equal bytes (2, 4, 8 .. of them). Each run is also offered with its cheap storages
alone: those that ops without products make, such as norms and activations.
Reference: Chen et al., "Training Deep Nets with Sublinear Memory Cost" (1604.06174): segments; Jain et al., "Checkmate"
(1910.02653): any storage, any recipe.
When optimal: every recipe is minimal for its storages, if every other storage that is present stays. The blocks are a
selection, not all that exist.
Ignores: recipes whose inputs are rebuilt by another recipe; a planner may still combine those by
`RecomputeOption.inputs`.
Cost: O(depth of modules * log saves) passes over the forward ops; a recipe is linear in its ops.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from elbowroom.plan import Recompute
from elbowroom.step.last_step import LastStep
from elbowroom.step.recipes.closure import closure
from elbowroom.step.recipes.history import History, history
from elbowroom.step.recipes.rules import check_recipe, inputs_of, not_droppable
from elbowroom.step.recipes.segments import ForwardSegment, segments

MOST_OPS_OF_SINGLE = 16
"""Most ops of a single: a longer recipe is better shared with other storages, in a block."""

MOST_OPS_BEFORE_BLOCK = 32
"""Most ops before a block that its recipe may need in addition to those of the block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeOption:
    """One way to recompute.

    Attributes:
        kind: "single" for one storage, "block" for those of a run of ops.
        name: path of the module, or of the ops from first to last.
        recompute: the storages, their recipe and when it runs.
        inputs: storages that must be on the device when the recipe runs.
        saved_bytes: bytes of the storages that are dropped.
        duration_ns: time of the recipe's ops.
        peak_bytes: the most bytes that the recipe holds at once: rebuilt so far, intermediates, scratch.
    """

    kind: Literal["single", "block"]
    name: str
    recompute: Recompute
    inputs: tuple[int, ...]
    saved_bytes: int
    duration_ns: int
    peak_bytes: int


def options(step: LastStep, min_size_bytes: int = 2**20) -> tuple[RecomputeOption, ...]:
    """Return all options of a last step, in the order in which their recipes run; no two have the same storages.

    Args:
        step: the last step.
        min_size_bytes: smaller storages stay.
    """
    known = history(step)
    wanted = _droppable(step, known, min_size_bytes)
    found: dict[tuple[int, ...], RecomputeOption | None] = {
        (storage,): _single(step, known, storage) for storage in wanted
    }
    makers = sorted((known.maker[storage], storage) for storage in wanted)
    last_read = _last_forward_reads(step)
    saved = [step.trace.storages[storage].size_bytes for _, storage in makers]
    for segment in segments(step, [op for op, _ in makers], saved):
        inside = makers[bisect_left(makers, (segment.first, -1)) : bisect_left(makers, (segment.end, -1))]
        inner = [s for _, s in inside if last_read.get(s, -1) < segment.end]
        cheap = [s for s in inner if not any(step.trace.ops[w].flops for w in known.writers_before(s, segment.end))]
        for storages in (_together(step, known, inner), _together(step, known, cheap)):
            if storages and storages not in found:
                found[storages] = _block(step, known, storages, segment)
    offered = (option for option in found.values() if option is not None)
    return tuple(sorted(offered, key=lambda o: (o.recompute.before_op, o.recompute.storages)))


def blocks(step: LastStep, runs: Iterable[tuple[int, int]], min_size_bytes: int = 2**20) -> tuple[RecomputeOption, ...]:
    """Return at most one option for each of some runs of ops: it drops the saves that no other run's recipe needs.

    Args:
        step: the last step.
        runs: ops [first, end) of each.
        min_size_bytes: smaller storages stay.
    """
    runs, kept = list(runs), set[int]()
    while True:
        found = _blocks(step, runs, min_size_bytes, kept)
        dropped = {storage: i for i, option in enumerate(found) for storage in option.recompute.storages}
        needed = {s for i, option in enumerate(found) for s in option.inputs if dropped.get(s, i) != i}
        if not needed:
            return tuple(found)
        kept |= needed


def _blocks(step: LastStep, runs: list[tuple[int, int]], min_size_bytes: int, kept: set[int]) -> list[RecomputeOption]:
    """Return options of runs that do not drop the storages `kept`."""
    known, last_read = history(step), _last_forward_reads(step)
    wanted = (storage for storage in _droppable(step, known, min_size_bytes) if storage not in kept)
    makers = sorted((known.maker[storage], storage) for storage in wanted)
    found: list[RecomputeOption] = []
    for first, end in runs:
        inside = makers[bisect_left(makers, (first, -1)) : bisect_left(makers, (end, -1))]
        inner = _idle_before(step, known, [s for _, s in inside if last_read.get(s, -1) < end])
        segment = ForwardSegment(f"ops {first} to {end - 1}", first, end)
        option = _block(step, known, tuple(sorted(inner)), segment) if len(inner) > 1 else None
        if len(inner) == 1:
            option = _single(step, known, inner[0])
        found += [] if option is None else [option]
    return found


def _idle_before(step: LastStep, known: History, storages: list[int]) -> list[int]:
    """Return the storages that are idle before the first of the returned ones is read."""
    before_op = min((int(step.first_read[known.save_of[s]]) for s in storages), default=0)
    idle = [s for s in storages if int(step.idle_from[known.save_of[s]]) < before_op]
    return idle if len(idle) == len(storages) else _idle_before(step, known, idle)


def peak_of_recipe(step: LastStep, recompute: Recompute) -> int:
    """Return the most bytes that a recipe holds at once; an intermediate is freed after its last use in the recipe."""
    known, sizes = history(step), step.trace.storages
    last_use: dict[int, int] = {}
    for i in recompute.recipe:
        last_use.update(dict.fromkeys(known.makes.get(i, ()), i))
        last_use.update(
            (s, i) for s in (*known.reads[i - step.first_op], *known.writes[i - step.first_op]) if s in last_use
        )
    ends: dict[int, list[int]] = {}
    for storage, i in last_use.items():
        ends.setdefault(i, []).append(storage)
    stays, held, level, peak = set(recompute.storages), set[int](), 0, 0
    for i in recompute.recipe:
        peak = max(peak, level + known.scratch_peak.get(i, 0))
        held.update(known.makes.get(i, ()))
        level += sum(sizes[storage].size_bytes for storage in known.makes.get(i, ()))
        gone = [storage for storage in ends.get(i, ()) if storage in held and storage not in stays]
        held.difference_update(gone)
        level -= sum(sizes[storage].size_bytes for storage in gone)
    return peak


def _droppable(step: LastStep, known: History, min_size_bytes: int) -> list[int]:
    """Return the storages that may be dropped and that the step makes."""
    return [
        save.storage
        for n, save in enumerate(step.saves)
        if step.size[n] >= min_size_bytes
        and save.storage in known.maker
        and not_droppable(step, known, save.storage, int(step.first_read[n])) is None
    ]


def _last_forward_reads(step: LastStep) -> dict[int, int]:
    """Return by storage the last op of forward that reads it."""
    ops = step.trace.ops
    forward = (i for i in range(step.first_op, step.end_op) if ops[i].phase == "forward")
    return {storage: i for i in forward for storage in ops[i].reads}


def _single(step: LastStep, known: History, storage: int) -> RecomputeOption | None:
    before_op = int(step.first_read[known.save_of[storage]])
    recipe = closure(known, (storage,), before_op, most_ops=MOST_OPS_OF_SINGLE).recipe
    if not recipe:
        return None
    name = step.trace.ops[known.maker[storage]].module
    return option_of(step, "single", name, Recompute(storages=(storage,), recipe=recipe, before_op=before_op))


def _together(step: LastStep, known: History, storages: list[int]) -> tuple[int, ...]:
    """Return the storages that are idle when the first of them is read back: these can be rebuilt at once."""
    saves = [known.save_of[storage] for storage in storages]
    before_op = min((int(step.first_read[n]) for n in saves), default=0)
    return tuple(sorted(s for s, n in zip(storages, saves, strict=True) if int(step.idle_from[n]) <= before_op))


def _block(
    step: LastStep, known: History, storages: tuple[int, ...], segment: ForwardSegment
) -> RecomputeOption | None:
    """Return the option that rebuilds all of some storages at once, before the first of them is read."""
    before_op = min(int(step.first_read[known.save_of[storage]]) for storage in storages)
    most_ops = segment.end - segment.first + MOST_OPS_BEFORE_BLOCK
    recipe = closure(known, storages, before_op, most_ops=most_ops).recipe
    if not recipe:
        return None
    return option_of(step, "block", segment.name, Recompute(storages=storages, recipe=recipe, before_op=before_op))


def recompute_for(step: LastStep, storages: Iterable[int]) -> Recompute | None:
    """Return the recompute that rebuilds some storages together from those present then; None if there is none."""
    known, dropped = history(step), tuple(sorted(storages))
    if any(storage not in known.maker or storage not in known.save_of for storage in dropped):
        return None
    before_op = min(int(step.first_read[known.save_of[storage]]) for storage in dropped)
    recipe = closure(known, dropped, before_op).recipe
    if not recipe:
        return None
    found = Recompute(storages=dropped, recipe=recipe, before_op=before_op)
    return found if check_recipe(step, found) is None else None


def option_of(
    step: LastStep, kind: Literal["single", "block"], name: str, recompute: Recompute
) -> RecomputeOption | None:
    """Return a recompute with what it saves and costs; None if it would not give the same bits."""
    if check_recipe(step, recompute) is not None:
        return None
    return RecomputeOption(
        kind=kind,
        name=name,
        recompute=recompute,
        inputs=inputs_of(step, recompute),
        saved_bytes=sum(step.trace.storages[storage].size_bytes for storage in recompute.storages),
        duration_ns=sum(step.trace.ops[i].duration_ns for i in recompute.recipe),
        peak_bytes=peak_of_recipe(step, recompute),
    )
