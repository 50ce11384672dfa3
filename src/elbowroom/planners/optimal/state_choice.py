"""states: which optimizer states and gradients are away while nothing uses them, as a part of `optimal`.

Computes: sets of such swaps, chosen by the pipe program. Each comes back at the latest tick that hides its copy, if
there is room. Also steps with these swaps decided, on which the rest is planned, and exchanges of single ones, played.
Reference: Rajbhandari et al., "ZeRO-Infinity" (SC 2021), for keeping states on lower tiers; here one by one, and only
if that pays. Optimal: never provably. Ignores: that swaps of saved storages and these share the link, until they are
played. Cost: linear in the step per set; a play per exchange.

Note: [States in the bound]
The pipe program has a column for the states that are idle from the same place to the same use. So it chooses which are
away, and its bound counts their copies: Note: [Equal steps in the pipe] in pipe.py. Waits of compute where only a state
is used count as waits of the next tick. The rows of pipe.py allow that, as it only gives copies more time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from elbowroom.plan import Recompute
from elbowroom.planners.optimal.pipe_bound import alike, are_much, choice_of, makers_of
from elbowroom.planners.optimal.refine import Pool, covered
from elbowroom.planners.optimal.swaps_after_recomputes import Basis, basis_again
from elbowroom.planners.optimal.trial import Trial, tried
from elbowroom.planners.problem import DecidedStates, Judge, Problem, movable, moves_on_demand
from elbowroom.simulate.lanes import copy_ns
from elbowroom.step.last_step import Flags, Ints, LastStep, listed
from elbowroom.step.moves import Moves, each_once, is_away, moves_of, need, windows_by_storage
from elbowroom.step.routes import link_to

SHARES = (1.0, 0.85)
"""Shares of the budget for which the pipe program chooses the states that are away."""
LEAST_PART = 0.01
"""States of which the program takes at least this share are away as a whole."""
ROOMS = (1.0, 0.94, 0.88, 0.8)
"""Shares of the budget that states may fill as they come back. What is left is room for one that is still being
written as the next one is read: without it, each copy back waits for a copy out."""
HALF = 0.5
"""Share of the bytes of all states that is away where they are not much."""


def states_on_offer(problem: Problem) -> Ints:
    """Return the windows of optimizer states and gradients that may be swapped, those idle longest first."""
    step, first = problem.step, len(problem.step.saves)
    if problem.tier is None or not problem.moves_states:
        return np.zeros(0, np.int64)
    n = np.array([i for i in range(first, len(step.size)) if problem.means_of(i) in problem.allow], dtype=np.int64)
    n = n[step.size[n] >= max(1, problem.min_size_bytes)]
    begin, end = step.window(n, step.first_read[n])
    n = n[step.wraps(n, step.first_read[n]) | (begin < end)]
    idle_ns = step.nominal_ns(step.first_read[n]) - step.nominal_ns(step.idle_from[n])
    idle_ns += np.where(step.wraps(n, step.first_read[n]), step.at_ns[-1], 0)
    n = n[np.lexsort((n, -idle_ns))]
    return n[np.cumsum(step.size[n] * each_once(step, n)) <= problem.tier_bytes]


def deciding(problem: Problem, n: Ints, back: Ints) -> Problem:
    """Return a problem without decided states with swaps of some states decided."""
    if not len(n):
        return problem
    step, moves = problem.step, moves_of(problem.step, n, back)
    level = step.level - _away(step, n, back)
    left = replace(step, level=level, slot_peak=np.maximum.reduceat(level, step.borders))
    tier_bytes = problem.tier_bytes - int(moves.size[each_once(step, moves.n)].sum())
    judge = _reading_what_is_there(step, moves, problem.judge)
    return replace(problem, step=left, tier_bytes=tier_bytes, judge=judge, states=DecidedStates(step=step, moves=moves))


def _reading_what_is_there(step: LastStep, moves: Moves, judge: Judge) -> Judge:
    """Return a judge that also refuses recomputes whose recipes read what is away then, as parameters may be."""
    away = windows_by_storage(step, moves)

    def judged(recompute: Recompute) -> bool:
        point = int(step.point_of[recompute.before_op - step.first_op])
        read = {storage for op in recompute.recipe for storage in step.trace.ops[op].reads}
        there = not any(is_away(point, *window) for storage in read for window in away.get(storage, ()))
        return there and judge(recompute)

    return judged


def again(problem: Problem, states: DecidedStates | None) -> Problem:
    """Return a problem without decided states with the same swaps of states decided as in another."""
    return problem if states is None else deciding(problem, states.moves.n, states.moves.back)


def all_away(problem: Problem) -> Problem:
    """Return the problem with every state on offer away until it is used: this needs the fewest bytes."""
    n = states_on_offer(problem)
    return deciding(problem, n, problem.step.first_read[n])


def indispensable(problem: Problem, n: Ints, budget_bytes: int) -> Ints:
    """Return those of states `n` that have to be away for a budget, where all saves that may be are, back on demand.

    One after the other stays on the device if there is room for it all along, the last one first. This is the reverse
    deletion of covering problems: no other one of the result could stay, though another set may be smaller.

    Args:
        problem: a problem without decided states.
        n: the states, those that stay last first.
        budget_bytes: allocated bytes that the device may hold; if `n` are not enough for it, all of them are returned.
    """
    away = moves_of(problem.step, n, problem.step.first_read[n])
    held = _least_needed(problem, n)
    if held.max() > budget_bytes:
        return n
    place = {window: i for i, window in enumerate(listed(away.n))}
    stays = set[int]()
    for window in reversed(listed(n)):
        i = place[window]
        begin, end, size = int(away.begin[i]), int(away.end[i]), int(away.size[i])
        parts = (slice(begin, None), slice(end)) if away.wraps[i] else (slice(begin, end),)
        if all(held[part].max(initial=0) + size <= budget_bytes for part in parts):
            stays.add(window)
            for part in parts:
                held[part] += size
    return np.array([window for window in listed(n) if window not in stays], dtype=np.int64)


def _least_needed(problem: Problem, n: Ints) -> Ints:
    """Return per slot the bytes that are held if states `n` and all saves that may be are away, back on demand."""
    left = deciding(problem, n, problem.step.first_read[n])
    return need(left.step, moves_on_demand(left.step, movable(left)))


def sets_of(problem: Problem, *, all_stay: bool) -> Iterator[list[Problem]]:
    """Yield sets of states that are away, each in a few placements: one set that suits the budget, and all of them.

    Where states are much of the budget, and come back in parts, the pipe program chooses the set, for the budget and
    for less of it. They then fill more or less of the budget as they come back. Else it is those that are idle longest,
    half of the bytes.

    Args:
        problem: a problem without decided states.
        all_stay: whether states come back as if all saves stayed, or else as if those alone did that cannot leave. If
            all stay, a full device has no room for a state before its use, and compute waits for it. Otherwise copies
            hide, and take room that saves may need.
    """
    n, budget_bytes = states_on_offer(problem), problem.budget_bytes
    if not len(n):
        return
    is_much, total = are_much(problem, problem.step.size[n]), np.cumsum(problem.step.size[n])
    some = _chosen(problem, n) if is_much else [n[total <= HALF * int(total[-1])]]
    rooms = ROOMS if is_much else ROOMS[:1]
    for away in (*some, n):
        needed = None if all_stay else _least_needed(problem, away)
        placings = [replace(problem, budget_bytes=int(room * budget_bytes)) for room in rooms]
        yield [replace(placed(each, away, needed), budget_bytes=budget_bytes) for each in placings]


def _chosen(problem: Problem, n: Ints) -> list[Ints]:
    """Return the sets among states `n` that the pipe program has away for shares of the budget; no set twice."""
    groups, found = alike(problem.step, n), dict[tuple[int, ...], None]()
    makers = makers_of(problem, may_drop="recompute" in problem.allow)
    for share in SHARES:
        choice = choice_of(problem, movable(problem), (), makers, int(share * problem.budget_bytes), states=groups)
        if choice.found:
            parts = zip(groups, choice.states.tolist(), strict=True)
            found[tuple(sorted(i for group, part in parts if part > LEAST_PART for i in listed(group)))] = None
    return [np.array(chosen, np.int64) for chosen in found if 0 < len(chosen) < len(n)]


def placed(problem: Problem, n: Ints, needed: Ints | None = None) -> Problem:
    """Return the problem with states `n` away, each back at the latest tick that hides its copy, if there is room.

    Args:
        problem: a problem without decided states.
        n: the states.
        needed: per slot, the bytes that other storages hold; None: all other storages are kept.
    """
    step = problem.step
    if problem.tier is None or not len(n):
        return problem
    _, back_ns = copy_ns(link_to(problem.machine, problem.tier), step.size[n])
    away = moves_of(step, n, step.first_read[n])
    held = need(step, away) if needed is None else needed.copy()
    back, after = step.first_read[n].copy(), float("inf")
    use_ns = step.nominal_ns(step.first_read[n])
    for i in listed(np.lexsort((n, -use_ns))):
        if not step.returns[n[i]]:  # it is freed there, and not brought back
            continue
        after = min(float(use_ns[i]), after) - float(back_ns[i])
        back[i] = _start(step, int(n[i]), after, held, problem.budget_bytes)
        begin, end = (int(slot) for slot in step.slots(step.points(np.array([back[i], step.first_read[n[i]]]))))
        held[begin:end] += int(step.size[n[i]])
    return deciding(problem, n, back)


def _start(step: LastStep, n: int, before_ns: float, held: Ints, budget_bytes: int) -> int:
    """Return the last place at which a state may start back by a time, or the first later one with room for it."""
    use = int(step.first_read[n])
    first = step.first_op if use <= step.idle_from[n] else int(step.idle_from[n]) + 1
    places = np.append(step.ticks[(step.ticks >= first) & (step.ticks < use)], use)
    slots = step.slots(step.points(places))
    full = np.nonzero(held[slots[0] : slots[-1]] + int(step.size[n]) > budget_bytes)[0]
    earliest = int(np.searchsorted(slots, int(slots[0] + full[-1]) + 1)) if len(full) else 0
    latest = int(np.searchsorted(step.nominal_ns(places), before_ns, side="right")) - 1
    return int(places[min(max(earliest, latest), len(places) - 1)])


def states_near(problem: Problem, pool: Pool, best: Trial) -> Iterator[Trial]:
    """Yield trials with the states placed anew, with one state less, or with one more.

    Args:
        problem: a problem without decided states, with the trial's algorithms.
        pool: swaps and recomputes to choose from.
        best: the trial to begin with.
    """
    step, decided = problem.step, best.basis.asked.states
    chosen = decided.moves.n if decided is not None else np.zeros(0, np.int64)
    held = need(best.basis.asked.step, best.moves)
    if decided is not None:
        held -= np.maximum.reduceat(_away(step, chosen, step.first_read[chosen]), step.borders)
        held += np.maximum.reduceat(_away(step, chosen, decided.moves.back), step.borders)
    waited = [int(best.played.n[stall.move]) for stall in best.done.stalls]
    fewer = [i for i in dict.fromkeys((*waited, *listed(chosen))) if i in set(listed(chosen))]
    more = [i for i in listed(states_on_offer(problem)) if i not in set(fewer)]
    sets = [chosen, *(chosen[chosen != i] for i in fewer), *(np.append(chosen, i) for i in more)]
    for n in sets:
        for changed in (placed(problem, n, held if n is chosen else None), deciding(problem, n, step.first_read[n])):
            if all(map(changed.judge, best.basis.recomputes)):
                yield from _neighbours(basis_again(changed, pool.n, best.basis), best)


def _neighbours(basis: Basis, best: Trial) -> Iterator[Trial]:
    """Yield the same swaps of saves, and swaps that cover the budget now."""
    moves = basis.moves(best.moves.n, best.moves.back)
    asked = basis.asked
    if int(need(asked.step, moves).max()) <= asked.budget_bytes and asked.holds(moves):
        yield tried(basis, moves)
    trial = covered(basis, best.moves.n)
    if trial is not None:
        yield trial


def _away(step: LastStep, n: Ints, back: Ints) -> Ints:
    """Return for each point the bytes of states `n` that are away."""
    begin, end = step.window(n, back)
    wraps: Flags = step.wraps(n, back)
    change = np.zeros(len(step.level) + 1, np.int64)
    change[0] = step.size[n[wraps]].sum()
    np.add.at(change, begin, step.size[n])
    np.subtract.at(change, end, step.size[n])
    return np.cumsum(change[:-1])
