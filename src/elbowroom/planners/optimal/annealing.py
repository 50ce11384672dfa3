"""annealing: choices of what to drop and what to swap, changed at random, kept if they are better or hardly worse.

Computes: trials within a budget of allocated bytes. Each choice is closed (closed_recipes.py) and estimated
(quick_estimate.py); one that looks good is arranged and played. Several chains begin with different choices. After each
round only those with the best trials go on, with smaller and smaller steps uphill.
Reference: Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing" (Science 1983); rounds that halve the
chains are those of Jamieson and Talwalkar, "Non-stochastic Best Arm Identification" (AISTATS 2016).
Optimal: never provably. Ignores: nothing that a play knows. The random numbers are the same each time.
Cost: an estimate per change, which is linear in the choice; a play for about a tenth of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from random import Random
from typing import final

from elbowroom.planners.optimal.leaving import MARGINS, Leaving, Over, Scale, WeighedLeaving
from elbowroom.step.last_step import LastStep

ROUNDS = ((6, 150), (3, 150), (1, 400))
"""Per round, how many chains go on, and how many changes each makes."""
ROUNDS_NEAR = ((5, 150), (2, 150), (1, 400))
"""The same where choices begin with plans for other budgets."""
UPHILL = (3e-3, 1e-3, 3e-4, 1e-4)
"""Shares of the step that a change may cost as a rule: at the begin of each round, and at the end of the last."""
EFFORT = 400_000
"""Limit on saves times changes: with more than about 200 saves, there are fewer changes in each round."""
REPLAY_EFFORT = 4_000_000
"""The same limit on points of the step times changes, if reserved bytes are counted: each is a replay at worst."""
FEWEST_CHANGES = 10
"""Least number of changes of a chain in one round."""
CHANGES_EACH = 8
"""Most changes of a chain in one round, for each save that may be dropped or swapped."""
DEARER = 16.0
"""Factor by which bytes above the budget cost more at the end of a round, for a chain that has not met it."""
FEASIBLE = 2
"""Least number of first chains that begin within the budget, if as many do."""
APART_SHARE = 1e-4
"""Share of the step by which chains differ at the start."""


@final
class Chain:
    """Choices that follow one another.

    Attributes:
        scale: weighs them.
        best: the best one within the budget; None if there was none.
        met: all of those within the budget, if they were fast enough to go on from, or faster than all before.

    Args:
        scale: weighs them.
        first: the first one.
        over: counts reserved bytes; None if the budget counts allocated ones alone.
        against_waits: a choice that waits for the driver does not meet the budget: bytes above it cost more and more.
    """

    def __init__(
        self, scale: Scale, first: WeighedLeaving, over: Over | None = None, *, against_waits: bool = False
    ) -> None:
        self.scale, self._over, self._against_waits = scale, over, against_waits
        self.met: list[WeighedLeaving] = []
        self.best: WeighedLeaving | None = None
        self._nearest: WeighedLeaving | None = None
        self._dearer = 1.0
        self._now = self._noted(first)

    @property
    def counts_reserved(self) -> bool:
        """Whether reserved bytes are counted, which is a replay of each trial."""
        return self._over is not None

    @property
    def is_within(self) -> bool:
        """Whether its best choice is within the budget without waits for the driver."""
        return self.best is not None and not self.best.is_driven

    @property
    def rank(self) -> tuple[bool, float]:
        """Key of an order in which the best chain comes first."""
        return self.best is None, self._cost_ns(self.best or self._now)

    @property
    def ends(self) -> list[WeighedLeaving]:
        """Choices that were played: the best one within the budget, and the one that was nearest to it."""
        return [each for each in dict.fromkeys((self.best, self._nearest)) if each is not None]

    def go_on(self, changes: int, first_ns: float, last_ns: float, random: Random, enough_ns: int) -> None:
        """Make a number of changes, from the best choice on.

        Args:
            changes: their number.
            first_ns: what one may cost as a rule, at first.
            last_ns: the same at the end.
            random: random numbers.
            enough_ns: a step this fast ends it.
        """
        self._now = self.best or self._now
        for i in range(changes):
            if self.best is not None and self.best.step_ns <= enough_ns:
                return
            # Bytes above the budget cost more and more, for as long as no choice was within it.
            is_met = self.is_within if self._against_waits else self.best is not None
            self._dearer = 1.0 if is_met else DEARER ** ((i + 1) / changes)
            uphill_ns = first_ns * (last_ns / first_ns) ** (i / changes)
            weighed = self.scale.estimated(changed(self.scale, self._now, random))
            limit_ns = self._cost_ns(self._now) - uphill_ns * math.log(max(1e-12, random.random()))
            most_ns = max(limit_ns, self.best.step_ns if self.best else math.inf)
            if self._cost_ns(weighed) <= most_ns:
                weighed = self._noted(weighed, most_ns)
                self._now = weighed if self._cost_ns(weighed) <= limit_ns else self._now

    def _cost_ns(self, weighed: WeighedLeaving) -> float:
        return weighed.step_ns + self._dearer * weighed.charge_ns

    def _noted(self, weighed: WeighedLeaving, most_ns: float = math.inf) -> WeighedLeaving:
        """Play a choice, and note it if it is the best of those that take at most some time."""
        is_new = weighed.trial is None
        weighed = self.scale.played(weighed)
        if weighed.trial is None or weighed.step_ns > most_ns:
            return weighed
        if self._over is not None and is_new:
            weighed = self.scale.counted(weighed, self._over)
        if self._nearest is None or weighed.over_bytes < self._nearest.over_bytes:
            self._nearest = weighed
        if not weighed.over_bytes:
            self.met.append(weighed)
            self.best = weighed if self.best is None or weighed.step_ns < self.best.step_ns else self.best
        return weighed


def changed(scale: Scale, now: WeighedLeaving, random: Random) -> Leaving:
    """Return a choice that differs in a thing or two."""
    change = _LeavingChange(scale, now)
    kind = random.random()
    if now.over_bytes and kind < 0.5:
        change.lower(now, random)
    elif kind < 0.75 and scale.recipes.droppable:
        change.other_drops(kind, random)
    elif kind < 0.93 and scale.swappable:
        change.other_swaps(random)
    elif kind < 0.97:
        factor = random.choice((0.5, 0.8, 1.25, 2.0))
        change.most_ops = max(1, int(min(now.choice.most_ops, 4000) * factor))
    else:
        change.margin = random.choice(MARGINS)
    return change.choice


@final
class _LeavingChange:
    """A choice that is being changed."""

    def __init__(self, scale: Scale, now: WeighedLeaving) -> None:
        self._scale = scale
        self._dropped, self._swapped = set(now.choice.dropped), set(now.choice.swapped)
        self._save_of = scale.recipes.save_of
        self.most_ops, self.margin = now.choice.most_ops, now.choice.margin

    @property
    def choice(self) -> Leaving:
        return Leaving(frozenset(self._dropped), frozenset(self._swapped), self.most_ops, self.margin)

    def lower(self, now: WeighedLeaving, random: Random) -> None:
        """Let one more storage go that is idle where the most bytes are held; at times, keep another one.

        If a recipe runs there, what it rebuilds may be swapped instead.
        """
        rebuilt = self._scale.rebuilt_at(now.basis, now.slot)
        if rebuilt and random.random() < 0.5:
            n = random.choice(rebuilt)
            self._keep(n)
            if "swap" in self._scale.ways_of(n):
                self._swapped.add(n)
            return
        idle = [n for n in self._scale.idle_at(now.slot) if not self._is_away(n)]
        if idle:
            self._let_go(random.choice(idle), random)
        away = sorted({*self._swapped, *(self._save_of[s] for s in self._dropped)})
        if away and random.random() < 0.3:
            self._keep(random.choice(away))

    def other_drops(self, kind: float, random: Random) -> None:
        """Drop a storage or keep it, exchange it for another one, or do either with a few that are made in a row."""
        droppable = self._scale.recipes.droppable
        at = random.choices(range(len(droppable)), cum_weights=self._scale.drop_weights)[0]
        storage = droppable[at]
        if kind < 0.45:
            self._drop(storage) if storage not in self._dropped else self._dropped.discard(storage)
        elif kind < 0.62:
            if storage not in self._dropped and self._dropped:
                self._dropped.discard(random.choice(sorted(self._dropped)))
            self._drop(storage)
        else:
            row = droppable[at : at + random.choice((2, 3, 4, 6))]
            for each in row:
                if kind < 0.7:
                    self._drop(each)
                else:
                    self._keep(self._save_of[each])

    def other_swaps(self, random: Random) -> None:
        """Swap a save or keep it; at times, drop instead what is not swapped any more."""
        n = random.choices(self._scale.swappable, cum_weights=self._scale.swap_weights)[0]
        if n in self._swapped:
            self._give_up(n, random.random() < 0.5)
            return
        others = sorted(self._swapped)
        self._keep(n)
        self._swapped.add(n)
        if others and random.random() < 0.7:
            self._give_up(random.choice(others), random.random() < 0.7)

    def _give_up(self, n: int, is_dropped: bool) -> None:
        self._swapped.discard(n)
        if is_dropped and "drop" in self._scale.ways_of(n):
            self._drop(self._storage(n))

    def _let_go(self, n: int, random: Random) -> None:
        if random.choice(self._scale.ways_of(n)) == "drop":
            self._drop(self._storage(n))
        else:
            self._swapped.add(n)

    def _is_away(self, n: int) -> bool:
        return n in self._swapped or self._storage(n) in self._dropped

    def _drop(self, storage: int) -> None:
        self._swapped.discard(self._save_of[storage])
        self._dropped.add(storage)

    def _keep(self, n: int) -> None:
        self._swapped.discard(n)
        self._dropped.discard(self._storage(n))

    def _storage(self, n: int) -> int:
        return self._scale.step.saves[n].storage


def ease(step: LastStep, *, counts_reserved: bool) -> float:
    """Return a factor on the number of changes: large steps get fewer, and fewer still if each trial is replayed."""
    changes = sum(count * each for count, each in ROUNDS)
    factor = EFFORT / (changes * max(1, len(step.saves)))
    if counts_reserved:
        factor = min(factor, REPLAY_EFFORT / (changes * max(1, len(step.level))))
    return min(1.0, factor)


def annealed(
    chains: Sequence[Chain], enough_ns: int, effort: float = 1.0, rounds: Sequence[tuple[int, int]] = ROUNDS
) -> list[Chain]:
    """Let chains go on, in each round only the best ones. Returns all of them, the best first.

    Args:
        chains: the chains.
        enough_ns: a step this fast ends it.
        effort: factor on the number of changes.
        rounds: per round, how many chains go on, and how many changes each makes.
    """
    random, left = Random(0), sorted(chains, key=_rank)
    for turn, (count, changes) in enumerate(rounds):
        for chain in left[:count]:
            scale = chain.scale
            factor = effort * ease(scale.step, counts_reserved=chain.counts_reserved)
            most = min(max(FEWEST_CHANGES, int(factor * changes)), CHANGES_EACH * len(scale.saves))
            first_ns, last_ns = (share * scale.step_ns for share in UPHILL[turn : turn + 2])
            chain.go_on(most, first_ns, last_ns, random, enough_ns)
        left.sort(key=_rank)
    return left


def go_on(scale: Scale, first: WeighedLeaving, over: Over, changes: int, enough_ns: int) -> None:
    """Let one chain go on from a choice. `over` sees what it plays.

    Args:
        scale: weighs the choices.
        first: the choice.
        over: counts reserved bytes.
        changes: number of changes, at most.
        enough_ns: a step this fast ends it.
    """
    chain = Chain(scale, scale.counted(first, over), over)
    first_ns, last_ns = (share * scale.step_ns for share in UPHILL[-2:])
    chain.go_on(changes, first_ns, last_ns, Random(0), enough_ns)


def _rank(chain: Chain) -> tuple[bool, float]:
    return chain.rank


def first_chains(
    weighed: Iterable[tuple[Scale, WeighedLeaving]], over: Over | None = None, *, against_waits: bool = False
) -> list[Chain]:
    """Return chains that begin with the best of some choices: different ones, and some within the budget.

    Args:
        weighed: the choices.
        over: as for `Chain`.
        against_waits: as for `Chain`.
    """
    found: list[tuple[Scale, WeighedLeaving]] = []
    for scale, each in sorted(weighed, key=lambda pair: pair[1].cost_ns):
        if all(abs(each.cost_ns - other.cost_ns) > APART_SHARE * scale.step_ns for _, other in found):
            found.append((scale, each))
    within = [pair for pair in found if not pair[1].over_bytes][:FEASIBLE]
    others = [pair for pair in found if pair not in within][: ROUNDS[0][0] - len(within)]
    return [Chain(scale, each, over, against_waits=against_waits) for scale, each in (*within, *others)]
