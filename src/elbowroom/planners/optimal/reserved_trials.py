"""reserving: trials for `optimal` that an allocator with the budget as its limit has room for.

Computes: for a machine with a caching allocator, the fastest trial found, waits for the driver counted (Note: [At the
limit] in simulate/reserved_curve.py). What the allocator holds follows from the order and the sizes of all blocks. No
bound of it is known that is easy to plan with. So trials are replayed, and annealing is charged for what they reserve
above the budget. The least budget is that of the trials that allocate least, for any requested budget. So a budget that
a refusal names can be met.
Reference: rough_trials.py and annealing.py; the replay is elbowroom.allocator. Optimal: never provably, as reserved
bytes need not grow with allocated ones. Ignores: what the simulation ignores. Cost: that of annealing on a few rungs,
plus replays of a few equal steps for each trial that is fast enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import final

from elbowroom.planners.budget.confirm_reserved import replayed
from elbowroom.planners.budget.reserved_search import lowest
from elbowroom.planners.optimal.annealing import ease, go_on
from elbowroom.planners.optimal.leaving import NOTHING, Over, Reserving, WeighedLeaving
from elbowroom.planners.optimal.refine import Pool
from elbowroom.planners.optimal.rough_trials import NAME, Found, Start, effort_of
from elbowroom.planners.optimal.trial import Trial
from elbowroom.planners.problem import peak_of
from elbowroom.simulate.curves import away_points
from elbowroom.simulate.driver_waits import delays_of
from elbowroom.simulate.reserved_curve import AllocatorUse, EqualSteps, Played, equal_steps, reserved_at
from elbowroom.step.last_step import LastStep

LOOKS = 8
"""Number of trials that are looked at for the least limit, the fastest first."""
LIMIT_SHARE = 0.005
"""Share to which the least limit is found."""
MOST_DRIVEN = 8
"""Trials that are played with waits for the driver, if they may be faster than those without."""
NEAR = 1.1
"""Trials with waits are gone on from if they take at most this many times as long as the best one without."""
DRIVEN_CHANGES = 100
"""Changes to the best of these."""
MOST_ASKED = 30
"""Most exchanges that are played with waits for the driver, if the best trial has such waits."""
GUIDING_STEPS = 1
"""Equal steps that are played to see about what a trial reserves."""

ABOVE = (1.0, 1.2)
"""Factors on the least allocated bytes at which the least limit is searched for."""
MOST_LOWERED = 40
"""Most exchanges in the search for the least limit."""

Near = Callable[[Trial, Pool], Iterator[Trial]]
"""Yields trials that differ from one in one thing."""
Rough = Callable[[int], Sequence[Found]]
"""Returns trials within a number of allocated bytes, the fastest first."""
Ladder = Callable[[int, int, Over, int], Sequence[Start]]
"""Looks for trials within some reserved bytes: see `Search.annealed_within`."""


def _step_of(trial: Trial) -> LastStep:
    problem = trial.basis.asked
    return problem.step if problem.states is None else problem.states.step


def is_free(trial: Trial, limit_bytes: int) -> bool:
    """Tell whether an allocator with a limit has room, without turning to the driver in every step."""
    return reserving(trial, limit_bytes) == (0, 0)


def reserving(trial: Trial, limit_bytes: int) -> Reserving:
    """Replay a trial through an allocator with a limit."""
    if _keeps_all(trial):
        return Reserving(max(0, reserved_bytes(trial) - limit_bytes), 0)
    steps = _steps_of(trial)
    found = _within(steps, limit_bytes)
    if found is None:
        return Reserving(max(1, steps.most_reserved(GUIDING_STEPS) - limit_bytes), 0)
    step, settings = _step_of(trial), trial.basis.asked.machine.allocator
    driven = found.heights(step, trial.played).driven
    return Reserving(0, sum(delays_of(step, driven, trial.done, settings).values()) if driven else 0)


def _within(steps: EqualSteps, limit_bytes: int) -> Played | None:
    """Play equal steps with an allocator that has a limit; None if they do not stay within it.

    Pages may go beyond it by a part of one: see `page_bytes` in planners/budget/run_budget.py.
    """
    found = steps.within(limit_bytes)
    return None if found is None or found.most_reserved > limit_bytes else found


def _steps_of(trial: Trial) -> EqualSteps:
    step, moves, settings = _step_of(trial), trial.played, trial.basis.asked.machine.allocator
    return equal_steps(step, moves, away_points(step, moves, trial.done), AllocatorUse(settings))


def _keeps_all(trial: Trial) -> bool:
    return not (len(trial.played.n) or trial.played.rebuilds or trial.basis.asked.algorithms)


def reserved_bytes(trial: Trial) -> int:
    """Return what an allocator without a limit reserves in some equal steps."""
    if not _keeps_all(trial):
        return int(_steps_of(trial).played().reserved.max())
    step, moves, settings = _step_of(trial), trial.played, trial.basis.asked.machine.allocator
    away = away_points(step, moves, trial.done)
    return int(reserved_at(step, moves, away, settings, as_recorded=True).level.max())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittingTrial:
    """Trial that meets the budget.

    Attributes:
        found: the trial, and the pool that it was chosen from.
        step_ns: time of the step, waits for the driver included, and what it costs beyond that (`Trial.extra_ns`).
        is_driven: whether compute waits for the driver.
        most_ops: that of the choice which it was made of, as in `Leaving`.
        margin: the same.
    """

    found: Found
    step_ns: int
    is_driven: bool
    most_ops: int = NOTHING.most_ops
    margin: float | None = NOTHING.margin


def held_within(found: Found, budget_bytes: int) -> FittingTrial | None:
    """Play a trial with an allocator that may reserve `budget_bytes`. Returns None if that has no room."""
    trial, _ = found
    if peak_of(_step_of(trial), trial.played) > budget_bytes:
        return None
    if is_free(trial, budget_bytes):
        return FittingTrial(found=found, step_ns=trial.cost[0], is_driven=False)
    problem = trial.basis.asked
    done = replayed(problem.step.trace, problem.machine, trial.plan(NAME), budget_bytes)
    step_ns = done.step_ns + trial.extra_ns
    return FittingTrial(found=found, step_ns=step_ns, is_driven=done.is_driven) if done.fits else None


def limit_of_trial(found: Found) -> int:
    """Return a limit that a trial fits, close to the least one."""
    trial, _ = found
    steps, least_bytes = _steps_of(trial), peak_of(_step_of(trial), trial.played)

    def works(limit_bytes: int) -> bool:
        return _within(steps, limit_bytes) is not None

    fits = lowest(works, least_bytes - 1, reserved_bytes(trial), 1, LIMIT_SHARE)
    # With waits for the driver, storages may leave at other ticks. Then a little more is needed.
    while held_within(found, fits) is None:
        fits += max(1, int(LIMIT_SHARE * fits))
    return fits


def frugalest(frugal: Sequence[Found], rough: Rough, near: Near) -> tuple[Found, int]:
    """Return the trial with the least limit, and that limit. Both depend on no budget.

    Args:
        frugal: trials that allocate least, the least first.
        rough: makes trials for a little more than that.
        near: makes trials that differ from one in one thing.
    """
    best, limit = frugal[0], limit_of_trial(frugal[0])
    least_bytes = peak_of(_step_of(best[0]), best[0].played)
    others = [each for above in ABOVE for each in rough(int(above * least_bytes))[:LOOKS]]
    for each in (*frugal[1:], *others):
        if _is_lower(each[0], limit):
            best, limit = each, limit_of_trial(each)
    left, is_found = MOST_LOWERED, True
    while is_found and left > 0:
        is_found = False
        for trial in islice(near(best[0], best[1].within(int(ABOVE[-1] * least_bytes))), left):
            left -= 1
            if _is_lower(trial, limit):
                best, is_found = (trial, best[1]), True
                limit = limit_of_trial(best)
                break
    return best, limit


def _is_lower(trial: Trial, limit_bytes: int) -> bool:
    """Tell whether a trial has room within clearly less than a limit."""
    lower = int((1 - 2 * LIMIT_SHARE) * limit_bytes)
    return peak_of(_step_of(trial), trial.played) <= lower and _within(_steps_of(trial), lower) is not None


def fastest_within(budget_bytes: int, least_bytes: int, ladder: Ladder, enough_ns: int) -> FittingTrial | None:
    """Return the fastest trial found that meets a budget; None if no trial does.

    Args:
        budget_bytes: budget of reserved bytes.
        least_bytes: the least allocated bytes that can be planned for.
        ladder: looks for trials.
        enough_ns: a step this fast ends the search.
    """
    found = ladder(budget_bytes, least_bytes, lambda trial: reserving(trial, budget_bytes), enough_ns)
    best, driven = None, list[tuple[FittingTrial, Start]]()
    for scale, each in sorted(found, key=_rank):
        if each.trial is None:
            continue
        if best is not None and (each.over_bytes or each.step_ns > NEAR * best.step_ns):
            break
        if not (each.over_bytes or each.is_driven):  # those that follow are slower, or above the budget
            best = best or _free(each, each.trial, scale.pool)
        elif len(driven) < MOST_DRIVEN and (met := held_within((each.trial, scale.pool), budget_bytes)):
            driven.append((met, (scale, each)))
    if driven:
        met, start = min(driven, key=lambda pair: pair[0].step_ns)
        if best is None or met.step_ns < NEAR * best.step_ns:
            less = _driven_less(met, start, budget_bytes, enough_ns)
            best = less if best is None or less.step_ns < best.step_ns else best
    return best


def _free(weighed: WeighedLeaving, trial: Trial, pool: Pool) -> FittingTrial:
    choice = weighed.choice
    return FittingTrial(
        found=(trial, pool),
        step_ns=trial.cost[0],
        is_driven=False,
        most_ops=choice.most_ops,
        margin=choice.margin,
    )


def _rank(start: Start) -> tuple[int, float]:
    return start[1].over_bytes, start[1].step_ns


def _driven_less(held: FittingTrial, start: Start, budget_bytes: int, enough_ns: int) -> FittingTrial:
    """Anneal a trial with waits for the driver. Each change is played with these waits, so there are few."""
    scale, weighed = start
    best = held

    def over(trial: Trial) -> Reserving:
        nonlocal best
        met = held if trial is weighed.trial else held_within((trial, scale.pool), budget_bytes)
        if met is None:
            return reserving(trial, budget_bytes)
        best = met if met.step_ns < best.step_ns else best
        return Reserving(0, met.step_ns - trial.cost[0])

    changes = int(DRIVEN_CHANGES * effort_of(scale.pool.problem) * ease(scale.step, counts_reserved=True))
    go_on(scale, weighed, over, changes, enough_ns)
    return best


@final
class AcceptedTrials:
    """Accepts trials that meet a budget and are faster than all before."""

    def __init__(self, held: FittingTrial, budget_bytes: int) -> None:
        self.best = held
        self._budget_bytes = budget_bytes
        self._left = MOST_ASKED

    def __call__(self, trial: Trial) -> bool:
        """Tell whether a trial is accepted. It becomes the best then."""
        found, now = (trial, self.best.found[1]), self.best
        if trial.cost[0] > now.step_ns or self._left <= 0:
            return False
        if not now.is_driven:
            held = replace(now, found=found, step_ns=trial.cost[0])
            held = held if is_free(trial, self._budget_bytes) else None
        else:
            self._left -= 1
            held = held_within(found, self._budget_bytes)
            held = held if held is not None and held.step_ns < now.step_ns else None
        self.best = held or now
        return held is not None
