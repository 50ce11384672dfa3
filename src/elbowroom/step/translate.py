"""Translate: turn a plan for one trace into a plan for another trace of the same training.

Computes: which storage of the other trace each swap means, and where it starts there. A trace that was captured on a
virtual GPU has more ops than one that `within` recorded, such as views. It also has more steps, and small storages. So
neither numbers of storages nor positions agree. The landmarks of the runtime do: the large saved storages, in order,
with their saves and reads; the parts of optimizers' steps with their states; the accumulations with their gradients.
A swap back begins at the first landmark at or after the plan's position: it then needs no more memory.
Storages that the plan recomputes are rebuilt by the ops that make them in the other trace. If these ops cannot do that,
the storages are swapped. Optimal: exact if the plan's position is a landmark. Ignores: algorithms, which name ops: a
plan that has some is refused. Cost: swaps times saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from elbowroom.errors import InvalidPlan
from elbowroom.machine import TierName
from elbowroom.plan import Plan, Recompute, Swap
from elbowroom.step.check import check_step
from elbowroom.step.last_step import LastStep, last_step
from elbowroom.step.recipes import recompute_for
from elbowroom.trace import Category, Part, Save, Trace
from elbowroom.units import format_bytes

STAY: tuple[Category, ...] = ("parameter", "buffer", "input")
"""Categories that stay on the device: a trace may have them among the saved storages or not."""


class Landmark(NamedTuple):
    """A place of a step that the runtime notices.

    Attributes:
        kind: "saved", "read", "part begins", "part ends", "gradient arrives" or "gradient is there".
        n: number of the saved storage, part or accumulation.
        time: number of the read of that storage.
    """

    kind: str
    n: int
    time: int = 0


class MovableParts(NamedTuple):
    """Places around which states and gradients may move.

    Attributes:
        of_optimizers: parts of optimizers' steps, with their states.
        accumulations: accumulations of gradients.
        released: parts of optimizers' steps, with the gradients that they are the last to use.
    """

    of_optimizers: list[Part]
    accumulations: list[Part]
    released: list[Part]


def translated(plan: Plan, source: Trace, trace: Trace) -> Plan:
    """Return the plan in terms of `trace`.

    Args:
        plan: a plan for `source`.
        source: a trace of the training, such as one captured on a virtual GPU.
        trace: another trace of the training, such as a run has recorded.

    Raises:
        InvalidPlan: the two save other storages, or the plan names ops or states that cannot be found in `trace`.
    """
    if plan.trace_id != source.id:
        raise InvalidPlan(
            f"plan: it is for trace {plan.trace_id}, and the trace given with it is {source.id}; give its own"
        )
    if plan.algorithms:
        raise InvalidPlan(
            f"plan: its {len(plan.algorithms)} algorithms name ops of its trace, which is no trace of a run; plan "
            "again with allow=('swap', 'recompute', 'state')"
        )
    here, there = last_step(source), last_step(trace)
    saves, its_saves = _alike(here, there)
    storage_of = {mine.storage: its.storage for mine, its in zip(saves, its_saves, strict=True)}
    parts, its_parts = _large_parts(here, there), _large_parts(there, there)
    storage_of |= _states(here, there, parts, its_parts)
    places = _places(saves, parts), _places(its_saves, its_parts)
    swaps = [_swap(swap, storage_of, there, *places) for swap in plan.swaps]
    swaps.sort(key=lambda swap: swap.out_after_op)
    moved = replace(plan, trace_id=trace.id, swaps=tuple(swaps), recomputes=())
    return _with_recomputes(moved, there, [_storages(each, storage_of) for each in plan.recomputes])


def with_swaps(plan: Plan, step: LastStep, storages: Iterable[int]) -> Plan:
    """Return the plan with further swaps of saved storages, each from its save to its first read."""
    tier: TierName = "disk" if step.trace.device == "cpu" else "host"
    n_of = step.window_of
    added = [
        Swap(
            storage=storage,
            tier=tier,
            out_after_op=int(step.saved_at[n_of[storage]]) - 1,
            back_before_op=int(step.first_read[n_of[storage]]),
        )
        for storage in storages
    ]
    return replace(plan, swaps=tuple(sorted((*plan.swaps, *added), key=lambda swap: swap.out_after_op)))


def _storages(recompute: Recompute, storage_of: dict[int, int]) -> tuple[int, ...]:
    """Return the storages of the other trace that a recompute drops. Raises InvalidPlan."""
    if lost := [storage for storage in recompute.storages if storage not in storage_of]:
        raise InvalidPlan(
            f"plan: it recomputes storage {lost[0]} of its trace, which is not a saved storage of this step; "
            "capture this training, and plan again"
        )
    return tuple(storage_of[storage] for storage in recompute.storages)


def _with_recomputes(plan: Plan, step: LastStep, dropped: Sequence[tuple[int, ...]]) -> Plan:
    """Return the plan with recomputes of sets of storages; sets that no recipe of this step rebuilds are swapped."""
    found = [recompute_for(step, storages) for storages in dropped]
    swapped = [s for storages, each in zip(dropped, found, strict=True) if each is None for s in storages]
    recomputes = sorted((each for each in found if each is not None), key=lambda each: each.before_op)
    made = replace(with_swaps(plan, step, swapped), recomputes=tuple(recomputes))
    try:
        check_step(step, made)
    except InvalidPlan:  # a recipe needs what another one drops, or a swap has away
        return with_swaps(plan, step, (s for storages in dropped for s in storages))
    return made


def _alike(here: LastStep, there: LastStep) -> tuple[list[Save], list[Save]]:
    """Return the saves that both traces have, in order, as each trace numbers them. Raises InvalidPlan."""
    its = _moving(there)
    least_bytes = min((int(there.storage_bytes[save.storage]) for save in its), default=0)
    mine = [save for save in _moving(here) if here.storage_bytes[save.storage] >= least_bytes]
    here_saved, wanted = [_size_and_dtype(here, save) for save in mine], [_size_and_dtype(there, save) for save in its]
    if here_saved == wanted:
        return mine, its
    n = next((n for n, pair in enumerate(zip(here_saved, wanted, strict=False)) if pair[0] != pair[1]), None)
    what = f"{len(its)} of at least {format_bytes(least_bytes)}, not {len(mine)}"
    if n is not None:
        what = (
            f"as number {n} one of {wanted[n][0]} bytes of {wanted[n][1]}, not {here_saved[n][0]} of {here_saved[n][1]}"
        )
    raise InvalidPlan(f"plan: this training saves other storages than its trace: {what}; plan from a trace of it")


def _moving(step: LastStep) -> list[Save]:
    return [save for save in step.saves if step.trace.storages[save.storage].category not in STAY]


def _size_and_dtype(step: LastStep, save: Save) -> tuple[int, str]:
    storage = step.trace.storages[save.storage]
    return storage.size_bytes, storage.dtype


def _large_parts(step: LastStep, other: LastStep) -> MovableParts:
    """Return the parts of a step with only the storages that are large enough to move in `other`."""
    its = [s for part in (*other.parts, *other.accumulations) for s in part.storages]
    least_bytes = min((int(other.storage_bytes[s]) for s in its), default=0)

    def large(parts: Sequence[Part], *, gradients: bool) -> list[Part]:
        known = step.trace.storages
        return [
            replace(
                part,
                storages=tuple(
                    s
                    for s in part.storages
                    if known[s].size_bytes >= least_bytes and (known[s].category == "gradient") is gradients
                ),
            )
            for part in parts
        ]

    written = [part for part in large(step.accumulations, gradients=True) if part.storages]
    return MovableParts(large(step.parts, gradients=False), written, large(step.parts, gradients=True))


def _states(here: LastStep, there: LastStep, parts: MovableParts, its_parts: MovableParts) -> dict[int, int]:
    """Return by state or gradient that of the other trace; parts that differ have no entries."""
    found: dict[int, int] = {}
    for mine, its in zip(parts, its_parts, strict=True):
        if [_sizes(here, part.storages) for part in mine] == [_sizes(there, part.storages) for part in its]:
            pairs = zip(mine, its, strict=True)
            found |= {s: t for one, other in pairs for s, t in zip(one.storages, other.storages, strict=True)}
    return found


def _sizes(step: LastStep, storages: Sequence[int]) -> list[int]:
    return [int(step.storage_bytes[storage]) for storage in storages]


def _places(saves: Sequence[Save], parts: MovableParts) -> dict[Landmark, int]:
    """Return the position of each landmark."""
    found = {Landmark("saved", n): save.saved_at for n, save in enumerate(saves)}
    for n, save in enumerate(saves):
        found |= {Landmark("read", n, time): position for time, position in enumerate(save.read_at)}
    for n, part in enumerate(parts.of_optimizers):
        found |= {Landmark("part begins", n): part.first_op, Landmark("part ends", n): part.end_op}
    for n, part in enumerate(parts.accumulations):
        found |= {Landmark("gradient arrives", n): part.first_op, Landmark("gradient is there", n): part.end_op}
    return found


def _swap(
    swap: Swap, storage_of: dict[int, int], there: LastStep, mine: dict[Landmark, int], its: dict[Landmark, int]
) -> Swap:
    """Translate one swap. Raises InvalidPlan."""
    storage = storage_of.get(swap.storage)
    n = None if storage is None else _window(swap, storage, there, mine, its)
    if storage is None or n is None:
        raise InvalidPlan(
            f"plan: it swaps storage {swap.storage} of its trace, which is not a saved storage, state or gradient that "
            "may move in this step; capture this training, with in_parts=True if states may move, "
            "and plan again"
        )
    later = [landmark for landmark in mine if mine[landmark] >= swap.back_before_op and landmark in its]
    first = min((mine[landmark] for landmark in later), default=None)
    back = min((its[landmark] for landmark in later if mine[landmark] == first), default=there.end_op)
    if n >= len(there.saves) and not there.returns[n]:
        back = int(there.first_read[n])
    out = int(there.saved_at[n] if n < len(there.saves) else there.idle_from[n]) - 1
    return replace(swap, storage=storage, out_after_op=out, back_before_op=back)


def _window(
    swap: Swap, storage: int, there: LastStep, mine: dict[Landmark, int], its: dict[Landmark, int]
) -> int | None:
    """Return the window of the other trace that begins where the swap does, of those of a storage."""
    begins = {its[each] for each in mine if mine[each] == swap.out_after_op + 1 and each in its}
    own = (n for n in range(len(there.saves), len(there.storage)) if int(there.storage[n]) == storage)
    return next((n for n in own if int(there.idle_from[n]) in begins), there.window_of.get(storage))
