"""states: which optimizer states and gradients are away while nothing uses them, as a part of `optimal`.

Computes: sets of such swaps, those idle longest first. Each comes back at the latest tick that hides its copy, if there
is room. Also steps with these swaps decided, on which the rest is planned, and exchanges of single ones, played.
Reference: Rajbhandari et al., "ZeRO-Infinity" (SC 2021), for keeping states on lower tiers; here one by one, and only
if that pays. Optimal: never provably. Ignores: that swaps of saved storages and these share the link, until they are
played. Cost: linear in the step per set; a play per exchange.

Note: [States in the bound]
Every window on offer is subtracted from the level, as if its storage were away for free: no copy, no time. Any plan
holds at least that, and its copies of states only add to what the link carries. They also give the run control at more
places. Waits of compute there count as waits of the mark before. The rows of pipe.py allow that, as it only gives
copies more time. So the bound holds; it is loose by the time of these copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from elbowroom.plan import Recompute
from elbowroom.planners.optimal.refine import Pool, covered
from elbowroom.planners.optimal.swaps_after_recomputes import Basis, basis_again
from elbowroom.planners.optimal.trial import Trial, tried
from elbowroom.planners.problem import DecidedStates, Judge, Problem, movable, moves_on_demand
from elbowroom.simulate.lanes import copy_ns
from elbowroom.step.last_step import Flags, Ints, LastStep, listed
from elbowroom.step.moves import Moves, each_once, is_away, moves_of, need, windows_by_storage
from elbowroom.step.routes import link_to

SHARES = (0.5, 1.0)
"""Shares of the bytes of all states on offer that are away in the sets tried."""


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


def for_free(problem: Problem) -> Problem:
    """Return the problem for the bound: every state on offer is away for free; see Note: [States in the bound]."""
    return replace(problem, step=all_away(problem).step)


def sets_of(problem: Problem, *, all_stay: bool) -> Iterator[Problem]:
    """Yield the problem with sets of states away.

    Args:
        problem: a problem without decided states.
        all_stay: whether states come back as if all saves stayed, or else as if those alone did that cannot leave. If
            all stay, a full device has no room for a state before its use, and compute waits for it. Otherwise copies
            hide, and take room that saves may need.
    """
    n = states_on_offer(problem)
    total = np.cumsum(problem.step.size[n])
    for share in SHARES if len(n) else ():
        chosen = n[total <= share * int(total[-1])]
        yield placed(problem, chosen, None if all_stay else _least_needed(problem, chosen))


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
