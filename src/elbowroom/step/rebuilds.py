"""Rebuilds: what the recomputes of a plan do to the bytes on the device, and which storages they read.

A recipe runs between two ops of the step. It allocates and frees what the events of its ops say, scratch memory
included. A storage that the plan dropped stays until it is freed in the step. Every other storage that a recipe makes
is freed after its last use in the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from elbowroom.plan import Plan, Recompute
from elbowroom.step.last_step import Ints, LastStep


class RecipeChange(NamedTuple):
    """A recipe allocates (size_bytes > 0) or frees a storage while the recipe's op at a turn runs again."""

    turn: int
    storage: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rebuild:
    """One recompute, worked out on the last step.

    Attributes:
        position: its recipe runs before the op here.
        recipe: the ops that run again.
        n: the saves that are dropped.
        begin: per save, the point from which it is off the device.
        end: per save, the point at which it is rebuilt or freed.
        changes: what the recipe allocates and frees, in order.
        inputs: storages that must be on the device when it starts.
        peak_bytes: the most bytes that the recipe holds at once.
        left_bytes: the bytes that it has made and that are left when it has run.
    """

    position: int
    recipe: tuple[int, ...]
    n: Ints
    begin: Ints
    end: Ints
    changes: tuple[RecipeChange, ...]
    inputs: tuple[int, ...]
    peak_bytes: int
    left_bytes: int


def rebuilds_of_plan(step: LastStep, plan: Plan) -> tuple[Rebuild, ...]:
    """Return the rebuilds of a plan, in the order they run. Cost: linear in the recipes and their events."""
    save_of = {save.storage: n for n, save in enumerate(step.saves)} if plan.recomputes else {}
    return tuple(rebuild_of(step, recompute, save_of) for recompute in plan.recomputes)


def rebuild_of(step: LastStep, recompute: Recompute, save_of: dict[int, int] | None = None) -> Rebuild:
    """Work out one recompute; `save_of` gives the save of a storage, and is derived if it is not given."""
    by_storage = save_of or {save.storage: n for n, save in enumerate(step.saves)}
    n = np.array([by_storage[storage] for storage in recompute.storages], np.int64)
    position = np.full(len(n), recompute.before_op, np.int64)
    point = int(step.points(position[:1])[0])
    stay = {storage for storage in recompute.storages if step.gone[storage] > point}
    changes = tuple(_changes(step, recompute.recipe, stay))
    held = list(accumulate((change.size_bytes for change in changes), initial=0))
    gone = step.gone[step.storage_of(n)]
    begin = np.minimum(step.points(step.idle_from[n]), gone)
    return Rebuild(
        position=recompute.before_op,
        recipe=recompute.recipe,
        n=n,
        begin=begin,
        end=np.maximum(begin, np.minimum(step.points(position), gone)),
        changes=changes,
        inputs=_inputs(step, recompute.recipe),
        peak_bytes=max(held),
        left_bytes=held[-1],
    )


def _inputs(step: LastStep, recipe: tuple[int, ...]) -> tuple[int, ...]:
    """Return the storages that a recipe reads before it has made them."""
    made: set[int] = set()
    inputs: set[int] = set()
    for op in recipe:
        made.update(storage for storage, size_bytes in step.events_of(op) if size_bytes > 0)
        inputs.update(storage for storage in step.trace.ops[op].reads if storage not in made)
    return tuple(sorted(inputs))


def _changes(step: LastStep, recipe: tuple[int, ...], stay: set[int]) -> Iterator[RecipeChange]:
    """Yield what a recipe allocates and frees; of the storages that it makes, only `stay` is left."""
    last_use: dict[int, int] = {}
    for turn, op in enumerate(recipe):
        last_use.update(dict.fromkeys((*step.trace.ops[op].reads, *step.trace.ops[op].writes), turn))
    dying: dict[int, list[int]] = {}
    for turn, op in enumerate(recipe):
        own: dict[int, int] = {}
        for storage, size_bytes in step.events_of(op):
            if size_bytes > 0:
                own[storage] = size_bytes
            elif own.pop(storage, None) is None:
                continue
            yield RecipeChange(turn, storage, size_bytes)
        for storage in own:
            if storage not in stay:
                dying.setdefault(max(turn, last_use.get(storage, turn)), []).append(storage)
        for storage in dying.get(turn, ()):
            yield RecipeChange(turn, storage, -int(step.storage_bytes[storage]))


class Beat(NamedTuple):
    """One op of a recipe while it runs again.

    Attributes:
        rebuild: index of the rebuild.
        turn: which op of the recipe it is, from 0.
        most: the most bytes on the device while it runs.
        after: bytes on the device when it has ended.
    """

    rebuild: int
    turn: int
    most: int
    after: int


def beats(step: LastStep, rebuilds: tuple[Rebuild, ...], level: Ints) -> list[Beat]:
    """Return what the device holds while each recipe runs.

    Args:
        step: the last step.
        rebuilds: in the order they run.
        level: bytes on the device per point; at a position, those after its recipes have run.
    """
    found: list[Beat] = []
    held = held_before(step, rebuilds, level)
    for r, rebuild in enumerate(rebuilds):
        now, changes, at = held[r], rebuild.changes, 0
        for turn in range(len(rebuild.recipe)):
            most = now
            while at < len(changes) and changes[at].turn == turn:
                now += changes[at].size_bytes
                most = max(most, now)
                at += 1
            found.append(Beat(r, turn, most, now))
    return found


def held_before(step: LastStep, rebuilds: tuple[Rebuild, ...], level: Ints) -> list[int]:
    """Return the bytes on the device when each recipe starts; `level` as in `beats`."""
    if not rebuilds:
        return []
    points = step.points(np.array([rebuild.position for rebuild in rebuilds], np.int64))
    held, later = level[points].tolist(), 0
    for r in range(len(rebuilds) - 1, -1, -1):
        same = r + 1 < len(rebuilds) and rebuilds[r + 1].position == rebuilds[r].position
        later = (later if same else 0) + rebuilds[r].left_bytes
        held[r] -= later
    return held
