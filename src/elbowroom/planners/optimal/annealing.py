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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, NamedTuple, final

import numpy as np

from elbowroom.planners.optimal.closed_recipes import ANY_OPS
from elbowroom.planners.optimal.quick_estimate import quick_estimate, slot_ops
from elbowroom.planners.optimal.refine import Pool, covered
from elbowroom.planners.optimal.swaps_after_recomputes import Basis, basis_with
from elbowroom.planners.optimal.trial import Trial, arranged
from elbowroom.step.last_step import Ints, listed
from elbowroom.step.moves import moves_of, need

MARGINS = (None, 0.0, 0.5, 1.0)
"""Values of `Choice.margin`."""
ROUNDS = ((6, 150), (3, 150), (1, 400))
"""Per round, how many chains go on, and how many changes each makes."""
UPHILL = (3e-3, 1e-3, 3e-4, 1e-4)
"""Shares of the step that a change may cost as a rule: at the begin of each round, and at the end of the last."""
EFFORT = 400_000
"""Limit on saves times changes: with more than about 200 saves, there are fewer changes in each round."""
FEWEST_CHANGES = 10
"""Least number of changes of a chain in one round."""
CHANGES_EACH = 8
"""Most changes of a chain in one round, for each save that may be dropped or swapped."""
PRICE = 4.0
"""What all bytes of the step cost that lie above the budget, in steps."""
DEARER = 16.0
"""Factor by which these bytes cost more at the end of a round, for a chain that has not met the budget."""
FEASIBLE = 2
"""Least number of first chains that begin within the budget, if as many do."""
APART_SHARE = 1e-4
"""Share of the step by which chains differ at the start."""


class Choice(NamedTuple):
    """What is dropped and what is swapped.

    Attributes:
        dropped: storages that are dropped.
        swapped: saves that are swapped; those that recipes keep in place are not.
        most_ops: what a recipe makes on its way stays if it is read at most this number of ops later,
        margin: and if it fits, with this share of the largest storage to spare; None: it stays in any case.
    """

    dropped: frozenset[int]
    swapped: frozenset[int]
    most_ops: int = ANY_OPS
    margin: float | None = 0.0


NOTHING = Choice(frozenset(), frozenset())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighed:
    """One choice, with what it costs.

    Attributes:
        choice: the choice.
        basis: its recomputes.
        n: the saves that it swaps.
        cost_ns: time of the step, and what bytes above the budget are charged with.
        over_bytes: allocated or reserved bytes above the budget.
        slot: where the most bytes are held.
        trial: the choice as it was played; None if it was estimated only.
        dearer: factor on what bytes above the budget are charged with.
    """

    choice: Choice
    basis: Basis
    n: Ints
    cost_ns: float
    over_bytes: int
    slot: int
    trial: Trial | None = None
    dearer: float = 1.0


Over = Callable[[Trial], int]
"""Returns the bytes that a trial reserves above the budget."""


@final
class Scale:
    """Weighs the choices of one pool.

    Attributes:
        dearer: factor on what bytes above the budget cost.

    Args:
        pool: swaps and recomputes to choose from, within its problem's budget of allocated bytes.
        over: counts reserved bytes; None if the budget counts allocated ones alone.
    """

    def __init__(self, pool: Pool, over: Over | None = None) -> None:
        self._over, self.dearer = over, 1.0
        step, recipes = pool.problem.step, pool.recipes
        self.pool, self.recipes, self.step = pool, recipes, step
        self.swappable, self.droppable = listed(pool.n), frozenset(recipes.droppable)
        self._can_swap = frozenset(self.swappable)
        self.step_ns = float(step.at_ns[-1])
        self._plain = pool.basis(())
        self._slot_op = slot_ops(self._plain)
        self._slots = listed(step.slots(step.point_of))
        self._largest = int(step.size[pool.n].max(initial=0))
        self._price = PRICE * self.step_ns / max(1, int(step.level.max()))
        saves = sorted({*self.swappable, *(recipes.save_of[s] for s in recipes.droppable)})
        self.saves = np.array(saves, np.int64)
        begin, end = step.window(self.saves, step.first_read[self.saves])
        self._begin, self._end = step.slots(begin), step.slots(end)

    def estimated(self, choice: Choice) -> Weighed:
        """Estimate a choice."""
        basis = self._basis(choice)
        n = np.array(sorted(choice.swapped.intersection(listed(basis.n))), np.int64)
        found = quick_estimate(basis, n, self._slot_op)
        cost_ns = self.step_ns + found.extra_ns + self.dearer * self._price * found.over_bytes
        return Weighed(
            choice=choice,
            basis=basis,
            n=n,
            cost_ns=cost_ns,
            over_bytes=found.over_bytes,
            slot=found.slot,
            dearer=self.dearer,
        )

    def played(self, weighed: Weighed, most_ns: float = math.inf) -> Weighed:
        """Play a choice; more is swapped where it is not quite within the budget.

        Args:
            weighed: the choice.
            most_ns: reserved bytes are counted only if the step takes at most this time.
        """
        if weighed.over_bytes > self._largest or weighed.trial is not None:
            return weighed
        trial = arranged(weighed.basis, weighed.n) if weighed.basis.fits(weighed.n) else None
        trial = trial or covered(weighed.basis, weighed.n)
        return weighed if trial is None else self._of_trial(weighed, trial, most_ns)

    def brought_within(self, weighed: Weighed) -> Weighed:
        """Swap more until a choice is within the budget, if that is possible, and play it."""
        return self._of_trial(weighed, covered(weighed.basis, weighed.n))

    def priced(self, weighed: Weighed) -> Weighed:
        """Return a choice with the present price of its bytes above the budget."""
        over_ns = self._price * weighed.over_bytes
        if not weighed.over_bytes or weighed.dearer == self.dearer:
            return weighed
        cost_ns = weighed.cost_ns + (self.dearer - weighed.dearer) * over_ns
        return replace(weighed, cost_ns=cost_ns, dearer=self.dearer)

    def counted(self, weighed: Weighed) -> Weighed:
        """Count the reserved bytes of a choice that was played."""
        return self._of_trial(weighed, weighed.trial)

    def _of_trial(self, weighed: Weighed, trial: Trial | None, most_ns: float = math.inf) -> Weighed:
        if trial is None:
            return replace(weighed, over_bytes=max(1, weighed.over_bytes), cost_ns=weighed.cost_ns + self.step_ns)
        choice = weighed.choice._replace(swapped=frozenset(listed(trial.moves.n)))
        over_bytes = self._over(trial) if self._over and trial.cost[0] <= most_ns else 0
        cost_ns = trial.cost[0] + self.dearer * self._price * over_bytes
        changes = {"choice": choice, "n": trial.moves.n, "cost_ns": cost_ns, "over_bytes": over_bytes, "trial": trial}
        return replace(weighed, **changes, dearer=self.dearer)

    @property
    def without_over(self) -> Scale:
        """The same scale, for allocated bytes alone."""
        return Scale(self.pool)

    @property
    def ease(self) -> float:
        """Factor on the number of changes, as the step is a large one."""
        return min(1.0, EFFORT / (max(1, len(self.step.saves)) * sum(count * changes for count, changes in ROUNDS)))

    def ways_of(self, n: int) -> list[Literal["drop", "swap"]]:
        """Return the ways in which a save may leave."""
        ways: list[Literal["drop", "swap"]] = ["drop"] if self.step.saves[n].storage in self.droppable else []
        return [*ways, "swap"] if n in self._can_swap else ways

    def idle_at(self, slot: int) -> list[int]:
        """Return the saves that may be dropped or swapped and are idle in a slot."""
        return listed(self.saves[(self._begin <= slot) & (slot < self._end)])

    def rebuilt_at(self, basis: Basis, slot: int) -> list[int]:
        """Return the saves that recipes rebuild in a slot."""
        at = [rebuild for rebuild in basis.rebuilds if self._slots[rebuild.position - self.step.first_op] == slot]
        return [n for rebuild in at for n in listed(rebuild.n)]

    def _basis(self, choice: Choice) -> Basis:
        if not choice.dropped:
            return self._plain
        room = None if choice.margin is None else self._room(choice)
        found = self.recipes.of(choice.dropped, choice.most_ops, room)
        options, rebuilds = [each.option for each in found], [each.rebuild for each in found]
        return basis_with(self.pool.problem, self.pool.n, options, rebuilds, self.recipes.save_of)

    def _room(self, choice: Choice) -> Ints:
        """Return per slot the bytes that are free if all that is chosen is away until it is read."""
        away = [*choice.swapped, *(self.recipes.save_of[s] for s in choice.dropped)]
        n, step = np.unique(np.array(away, np.int64)), self.step
        needed = need(step, moves_of(step, n, step.first_read[n]))
        spare_bytes = int((choice.margin or 0.0) * self._largest)
        return self.pool.problem.budget_bytes - spare_bytes - needed


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
    """

    def __init__(self, scale: Scale, first: Weighed) -> None:
        self.scale = scale
        self.met: list[Weighed] = []
        self.best: Weighed | None = None
        self._now = self._noted(first)

    @property
    def rank(self) -> tuple[bool, float]:
        """Key of an order in which the best chain comes first."""
        return self.best is None, (self.best or self._now).cost_ns

    @property
    def ends(self) -> list[Weighed]:
        """The best choice, if any was within the budget, and the last one."""
        return [self._now] if self.best is None or self.best is self._now else [self.best, self._now]

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
        self.scale.dearer = 1.0
        for i in range(changes):
            if self.best is not None and self.best.cost_ns <= enough_ns:
                return
            uphill_ns = first_ns * (last_ns / first_ns) ** (i / changes)
            self._raise_price(DEARER ** (1 / changes))
            weighed = self.scale.estimated(changed(self.scale, self._now, random))
            limit_ns = self._now.cost_ns - uphill_ns * math.log(max(1e-12, random.random()))
            most_ns = max(limit_ns, self.best.cost_ns if self.best else math.inf)
            if weighed.cost_ns <= most_ns:
                weighed = self._noted(weighed, most_ns)
                self._now = weighed if weighed.cost_ns <= limit_ns else self._now

    def _raise_price(self, factor: float) -> None:
        """Let bytes above the budget cost more for as long as no choice was within it."""
        self.scale.dearer = 1.0 if self.best else self.scale.dearer * factor
        self._now = self.scale.priced(self._now)

    def _noted(self, weighed: Weighed, most_ns: float = math.inf) -> Weighed:
        """Play a choice, and note it if it is the best of those that take at most some time."""
        weighed = self.scale.played(weighed, most_ns)
        is_within = weighed.trial is not None and not weighed.over_bytes and weighed.cost_ns <= most_ns
        self.met += [weighed] if is_within else []
        if is_within and (self.best is None or weighed.cost_ns < self.best.cost_ns):
            self.best = weighed
        return weighed


def changed(scale: Scale, now: Weighed, random: Random) -> Choice:
    """Return a choice that differs in a thing or two."""
    change = _Change(scale, now)
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
class _Change:
    """A choice that is being changed."""

    def __init__(self, scale: Scale, now: Weighed) -> None:
        self._scale = scale
        self._dropped, self._swapped = set(now.choice.dropped), set(now.choice.swapped)
        self._save_of = scale.recipes.save_of
        self.most_ops, self.margin = now.choice.most_ops, now.choice.margin

    @property
    def choice(self) -> Choice:
        return Choice(frozenset(self._dropped), frozenset(self._swapped), self.most_ops, self.margin)

    def lower(self, now: Weighed, random: Random) -> None:
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
        at = random.randrange(len(droppable))
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
        n = random.choice(self._scale.swappable)
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


def annealed(chains: Sequence[Chain], enough_ns: int, effort: float = 1.0) -> list[Chain]:
    """Let chains go on, in each round only the best ones. Returns all of them, the best first.

    Args:
        chains: the chains.
        enough_ns: a step this fast ends it.
        effort: factor on the number of changes.
    """
    random, left = Random(0), sorted(chains, key=_rank)
    for turn, (count, changes) in enumerate(ROUNDS):
        for chain in left[:count]:
            most = max(FEWEST_CHANGES, min(int(effort * changes), int(effort * changes * chain.scale.ease)))
            first_ns, last_ns = (share * chain.scale.step_ns for share in UPHILL[turn : turn + 2])
            chain.go_on(min(most, CHANGES_EACH * len(chain.scale.saves)), first_ns, last_ns, random, enough_ns)
        left.sort(key=_rank)
    return left


def _rank(chain: Chain) -> tuple[bool, float]:
    return chain.rank


def first_chains(weighed: Iterable[tuple[Scale, Weighed]]) -> list[Chain]:
    """Return chains that begin with the best of some choices: different ones, and some within the budget."""
    found: list[tuple[Scale, Weighed]] = []
    for scale, each in sorted(weighed, key=lambda pair: pair[1].cost_ns):
        if all(abs(each.cost_ns - other.cost_ns) > APART_SHARE * scale.step_ns for _, other in found):
            found.append((scale, each))
    within = [pair for pair in found if not pair[1].over_bytes][:FEASIBLE]
    others = [pair for pair in found if pair not in within][: ROUNDS[0][0] - len(within)]
    return [Chain(scale, each) for scale, each in (*within, *others)]
