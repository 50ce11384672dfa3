"""Schedule: a plan compiled into what the runtime does at each tick, with a peak that does not depend on timing.

Note: [Ticks]
The runtime gets control only at ticks. Autograd gives it control when it saves a storage for the first time, and when
it reads one back. Begins and ends of steps, and of parts of optimizers' steps, are ticks too. The states that a part
used are queued at its end, like a save. The states that it needs are waited for at its begin, like a read. At a tick
the runtime does this, in order: (1) queue the write of a swapped storage that was just saved, or release one that is
dropped; (2) give up the unfinished writes of `Action.back` (those storages simply stay); (3) wait until
`Action.writes_done` of the plan's writes have ended, been given up or lost their storage. They are
    counted in write order, among those queued so far;
(4) start the swaps back of `Action.back`;
(5) run the recipes of `Action.rebuild`;
(6) on a read, wait until the storage is there.
Several ticks at one position all carry that position's action, as their order is not known beforehand. Doing it twice
changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from elbowroom.errors import InvalidPlan
from elbowroom.machine import TierName
from elbowroom.plan import Plan
from elbowroom.step.check import check_step
from elbowroom.step.last_step import LastStep, is_lasting, last_step, listed
from elbowroom.step.moves import Moves, in_order_of_need, moves_of_plan, need, tiers_of_plan, waits
from elbowroom.step.states_of_others import idle_storages
from elbowroom.trace import Part, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What the runtime does at a tick before it goes on.

    Attributes:
        writes_done: how many of the plan's writes must have ended, in write order.
        back: the saves whose swap back starts here, in the order of need.
        rebuild: the plan's recomputes that run here, by index.
    """

    writes_done: int
    back: tuple[int, ...]
    rebuild: tuple[int, ...] = ()


class StateSlot(NamedTuple):
    """One optimizer state of a part, the gradient of an accumulation or of a part, or a parameter of a use.

    The size and the dtype are those that the run must find. `n` is the window that begins there if it is swapped, else
    None.
    """

    size_bytes: int
    dtype: str
    n: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A plan as the runtime follows it: by number of saved storages, parts of optimizers' steps and their states.

    The windows of states are numbered on after the saves, see `LastStep.storage`. A tick with nothing to do has no
    entry.

    Attributes:
        peak_allocated_bytes: the most bytes that the step holds, on any machine: see Note: [Waits that do not
            depend on timing] in moves.py.
        swapped: the windows in which a storage is away, in write order.
        tiers: where each of `swapped` goes.
        dropped: by save that is dropped, which of the plan's recomputes rebuilds it.
        on_save: by save, what to do when it is saved.
        on_read: by (save, k), what to do when it is read back for the k-th time, from 0.
        saved: per save of the step, the (size_bytes, dtype) that the run must find.
        parts: the states of each part; empty if optimizers' steps are carried out whole.
        on_part: by (part, whether it ends there), what to do.
        accumulated: per accumulation, the (size_bytes, dtype) of its gradient.
        lasting: the accumulations whose gradient is there before the step, and outlives it.
        idle_bytes: bytes of states and gradients that the step neither uses nor frees, as others do.
        gradients: the gradient of each accumulation; empty if no gradient is swapped.
        on_gradient: by (accumulation, whether it ends there), what to do.
        released: the gradients of each part, that nothing uses after it; empty if none is swapped there.
        uses: the parameters of each use; empty if no parameter is swapped and nothing is due at a use.
        on_use: by (use, whether it ends there), what to do.
        on_begin: what to do when the step begins.
        on_end: what to do when it ends.
        carried: the windows that go on in the next step.
    """

    peak_allocated_bytes: int
    swapped: tuple[int, ...]
    tiers: tuple[TierName, ...]
    dropped: dict[int, int]
    on_save: dict[int, Action]
    on_read: dict[tuple[int, int], Action]
    saved: tuple[tuple[int, str], ...]
    parts: tuple[tuple[StateSlot, ...], ...] = ()
    on_part: Mapping[tuple[int, bool], Action] = field(default_factory=dict[tuple[int, bool], Action])
    accumulated: tuple[tuple[int, str], ...] = ()
    lasting: frozenset[int] = frozenset()
    idle_bytes: int = 0
    gradients: tuple[StateSlot, ...] = ()
    on_gradient: Mapping[tuple[int, bool], Action] = field(default_factory=dict[tuple[int, bool], Action])
    released: tuple[tuple[StateSlot, ...], ...] = ()
    uses: tuple[tuple[StateSlot, ...], ...] = ()
    on_use: Mapping[tuple[int, bool], Action] = field(default_factory=dict[tuple[int, bool], Action])
    on_begin: Action | None = None
    on_end: Action | None = None
    carried: frozenset[int] = frozenset()


def actions(step: LastStep, moves: Moves, waiting: Mapping[int, int]) -> dict[int, Action]:
    """Return by position what to do at its ticks. Swaps back that start together go in the order of need."""
    back: dict[int, list[int]] = {}
    for i in in_order_of_need(step, moves):
        if step.returns[moves.n[i]]:
            back.setdefault(int(moves.back[i]), []).append(int(moves.n[i]))
    rebuild: dict[int, list[int]] = {}
    for index, each in enumerate(moves.rebuilds):
        rebuild.setdefault(each.position, []).append(index)
    return {
        p: Action(
            writes_done=waiting.get(p, 0),
            back=tuple(back.get(p, ())),
            rebuild=tuple(rebuild.get(p, ())),
        )
        for p in sorted({*back, *waiting, *rebuild})
    }


def compile_schedule(trace: Trace, plan: Plan, waiting: Mapping[int, int] | None = None) -> Schedule:
    """Compile a plan for the runtime.

    Args:
        trace: what the training does.
        plan: what to do in its last step.
        waiting: by position of a tick, how many writes must have ended there; None waits only if room is needed.

    Raises:
        InvalidPlan: the plan may not run on this trace (see `check`), or the runtime cannot carry it out.
    """
    step = last_step(trace)
    _check_means(step, plan)
    check_step(step, plan)
    moves = moves_of_plan(step, plan)
    needed = need(step, moves)
    peak = int(needed.max())
    at = actions(step, moves, waits(step, moves, needed, peak) if waiting is None else waiting)
    known, written = trace.storages, [part.storages[0] for part in step.accumulations]
    return Schedule(
        peak_allocated_bytes=peak,
        swapped=tuple(moves.n.tolist()),
        tiers=tiers_of_plan(step, plan, moves),
        dropped={n: index for index, each in enumerate(moves.rebuilds) for n in each.n.tolist()},
        on_save={n: at[s.saved_at] for n, s in enumerate(step.saves) if s.saved_at in at},
        on_read={(n, k): at[p] for n, s in enumerate(step.saves) for k, p in enumerate(s.read_at) if p in at},
        saved=_saved(step),
        parts=_slots_of_parts(step, moves),
        on_part=_at_borders(step.parts, at),
        accumulated=tuple((known[s].size_bytes, known[s].dtype) for s in written),
        lasting=frozenset(j for j, s in enumerate(written) if is_lasting(step, s)),
        idle_bytes=sum(known[s].size_bytes for s in idle_storages(step)),
        gradients=_slots_of_gradients(step, moves),
        on_gradient=_at_borders(step.accumulations, at),
        released=_slots_of_released(step, moves),
        uses=_slots_of_uses(step, moves, at),
        on_use=_at_borders(step.uses, at),
        on_begin=at.get(step.first_op),
        on_end=at.get(step.end_op),
        carried=frozenset(listed(moves.n[moves.wraps])),
    )


def _saved(step: LastStep) -> tuple[tuple[int, str], ...]:
    storages = (step.trace.storages[save.storage] for save in step.saves)
    return tuple((storage.size_bytes, storage.dtype) for storage in storages)


def _at_borders(parts: Sequence[Part], at: Mapping[int, Action]) -> dict[tuple[int, bool], Action]:
    """Return by (part, whether it ends there) what to do."""
    borders = (
        (j, ends, p) for j, part in enumerate(parts) for ends, p in ((False, part.first_op), (True, part.end_op))
    )
    return {(j, ends): at[p] for j, ends, p in borders if p in at}


def _slots_of_gradients(step: LastStep, moves: Moves) -> tuple[StateSlot, ...]:
    """Return the gradient of each accumulation, with its window if it is swapped; empty if no gradient is."""
    begins = _begins(step, moves)
    slots = [_slot(step, part.storages[0], begins.get((part.storages[0], part.end_op))) for part in step.accumulations]
    moved = any(step.trace.storages[int(step.storage[n])].category == "gradient" for n in begins.values())
    return tuple(slots) if moved else ()


def _slots_of_released(step: LastStep, moves: Moves) -> tuple[tuple[StateSlot, ...], ...]:
    """Return the gradients of each part, with their windows after it; empty if no gradient is swapped there."""
    begins, known = _begins(step, moves), step.trace.storages
    found = tuple(
        tuple(_slot(step, s, begins.get((s, part.end_op))) for s in part.storages if known[s].category == "gradient")
        for part in step.parts
    )
    return found if any(slot.n is not None for slots in found for slot in slots) else ()


def _slot(step: LastStep, storage: int, n: int | None) -> StateSlot:
    known = step.trace.storages[storage]
    return StateSlot(known.size_bytes, known.dtype, n)


def _slots_of_uses(step: LastStep, moves: Moves, at: Mapping[int, Action]) -> tuple[tuple[StateSlot, ...], ...]:
    """Return the parameters of each use, with the windows that begin at its end; empty if the run needs no control."""
    begins = _begins(step, moves)
    if not _at_borders(step.uses, at) and not any(
        (s, part.end_op) in begins for part in step.uses for s in part.storages
    ):
        return ()
    return tuple(tuple(_slot(step, s, begins.get((s, part.end_op))) for s in part.storages) for part in step.uses)


def _begins(step: LastStep, moves: Moves) -> dict[tuple[int, int], int]:
    """Return by (storage, position) the swapped window that begins there, of states, gradients and parameters."""
    return {(int(step.storage[n]), int(step.idle_from[n])): n for n in listed(moves.n) if n >= len(step.saves)}


def _slots_of_parts(step: LastStep, moves: Moves) -> tuple[tuple[StateSlot, ...], ...]:
    """Return the states of each part, with their windows if they are swapped."""
    states = {n for n in listed(moves.n) if n >= len(step.saves)}
    window_of = {int(step.storage[n]): n for n in states}
    known = step.trace.storages
    return tuple(
        tuple(_slot(step, s, window_of.get(s)) for s in part.storages if known[s].category != "gradient")
        for part in step.parts
    )


def _check_means(step: LastStep, plan: Plan) -> None:
    """Raise InvalidPlan for swaps that the runtime cannot carry out."""
    in_parts = {storage for part in (*step.parts, *step.accumulations, *step.uses) for storage in part.storages}
    saved = {save.storage for save in step.saves}
    loose = [swap.storage for swap in plan.swaps if swap.storage not in in_parts and swap.storage not in saved]
    if loose:
        category = step.trace.storages[loose[0]].category if loose[0] < len(step.trace.storages) else "storage"
        raise InvalidPlan(
            f"the plan swaps {len(loose)} storages that autograd does not save, such as of category {category}; "
            "allowed in a run are optimizer states and gradients that the trace names in its parts, as one of "
            "elbowroom.capture(..., in_parts=True) does: plan again from such a trace, or with "
            "elbowroom.plan(..., allow=('swap',))"
        )


class Turn(NamedTuple):
    """Actions of a plan for the n-th saved storage of a step, looked up once per plan.

    Attributes:
        tier: where it goes when it is saved; None if it is not swapped.
        on_save: what to do when it is saved.
        on_read: per read, what to do before it.
    """

    tier: TierName | None
    on_save: Action | None
    on_read: tuple[Action | None, ...]


def turns_of(schedule: Schedule) -> tuple[Turn, ...]:
    """Return the turns of a step's saves, in their order."""
    tiers = dict(zip(schedule.swapped, schedule.tiers, strict=True))
    most: dict[int, int] = {}
    for n, k in schedule.on_read:
        most[n] = max(most.get(n, 0), k + 1)
    return tuple(
        Turn(
            tiers.get(n),
            schedule.on_save.get(n),
            tuple(schedule.on_read.get((n, k)) for k in range(most.get(n, 0))),
        )
        for n in range(len(schedule.saved))
    )
