"""basis: a step with some recomputes decided, seen as a step in which only swaps are left to decide.

The planners of swaps (covering, placing, arranging) look at four things: how high the slots are, when each save is
needed, when each position comes, and which saves may go. Recomputes change these four, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from elbowroom.plan import Recompute
from elbowroom.planners.problem import Problem
from elbowroom.step.last_step import Ints, LastStep, listed
from elbowroom.step.moves import Moves, moves_of, need
from elbowroom.step.rebuilds import Rebuild, rebuild_of
from elbowroom.step.recipes import RecomputeOption


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Basis:
    """Problem on which swaps are decided, with some recomputes decided already.

    Attributes:
        asked: the original problem.
        options: the recomputes, in the order in which they run.
        rebuilds: the same as rebuilds of the step.
        problem: the problem with the slots, first reads and times that the recomputes leave.
        n: the saves that may still be swapped.
    """

    asked: Problem
    options: tuple[RecomputeOption, ...]
    rebuilds: tuple[Rebuild, ...]
    problem: Problem
    n: Ints

    @property
    def recomputes(self) -> set[Recompute]:
        """Recomputes as a plan has them."""
        return {option.recompute for option in self.options}

    def moves(self, n: Ints, back: Ints) -> Moves:
        """Return swaps of saves `n`, together with the recomputes."""
        return moves_of(self.asked.step, n, back, rebuilds=self.rebuilds)

    def on_demand(self, n: Ints) -> Moves:
        """Return swaps of saves `n`, each back only when it is needed."""
        return self.moves(n, self.problem.step.first_read[n])

    def fits(self, n: Ints) -> bool:
        """Tell whether swapping saves `n`, each back on demand, meets the budgets of the device and the lower tier."""
        moves = self.on_demand(n)
        if int(need(self.asked.step, moves).max()) > self.problem.budget_bytes:
            return False
        return not len(n) or self.asked.holds(moves)


def basis_of(problem: Problem, n: Ints, options: Sequence[RecomputeOption] = ()) -> Basis:
    """Return the basis that recomputes leave.

    Args:
        problem: the original problem.
        n: the saves that may be swapped without recomputes.
        options: the recomputes; no two drop the same storage. Those of one position run in the order given.
    """
    save_of = {save.storage: i for i, save in enumerate(problem.step.saves)} if options else {}
    ordered = sorted(options, key=lambda option: option.recompute.before_op)
    rebuilds = [rebuild_of(problem.step, option.recompute, save_of) for option in ordered]
    return basis_with(problem, n, ordered, rebuilds, save_of)


def basis_again(problem: Problem, n: Ints, basis: Basis) -> Basis:
    """Return the basis that the same recomputes leave in a problem with other states away.

    Args:
        problem: the original problem of `basis`, but for its decided states.
        n: as for `basis_of`.
        basis: has the recomputes, and what they do to the step: that is the same.
    """
    save_of = {save.storage: i for i, save in enumerate(problem.step.saves)} if basis.options else {}
    return basis_with(problem, n, basis.options, basis.rebuilds, save_of)


def basis_with(
    problem: Problem, n: Ints, options: Sequence[RecomputeOption], rebuilds: Sequence[Rebuild], save_of: dict[int, int]
) -> Basis:
    """Return the basis that recomputes leave, given what they do to the step.

    Args:
        problem: the original problem.
        n: the saves that may be swapped without recomputes.
        options: the recomputes, in the order they run.
        rebuilds: what each does to the step.
        save_of: storage -> its save.
    """
    step = problem.step
    if not options:
        return Basis(asked=problem, options=(), rebuilds=(), problem=problem, n=n)
    first_read, extra_ns = step.first_read.copy(), np.zeros(len(step.at_ns), np.int64)
    for option, rebuild in zip(options, rebuilds, strict=True):
        inputs = np.array([save_of[s] for s in rebuild.inputs if s in save_of], np.int64)
        first_read[inputs] = np.minimum(first_read[inputs], rebuild.position)
        extra_ns[rebuild.position - step.first_op] += option.duration_ns
    empty = moves_of(step, n[:0], n[:0], rebuilds=tuple(rebuilds))
    left = replace(step, slot_peak=need(step, empty), first_read=first_read, at_ns=step.at_ns + np.cumsum(extra_ns))
    # What the step never reads again cannot come back for a recipe either.
    lost = np.nonzero((first_read < step.first_read) & ~step.returns)[0]
    held = np.concatenate([lost, *(rebuild.n for rebuild in rebuilds)])
    free = n[~np.isin(n, held) & (first_read[n] > step.idle_from[n])]
    return Basis(
        asked=problem,
        options=tuple(options),
        rebuilds=tuple(rebuilds),
        problem=replace(problem, step=left),
        n=free,
    )


def agreeing(options: Sequence[RecomputeOption]) -> list[RecomputeOption]:
    """Return the options, in order of preference, that can be carried out together.

    No two of them drop the same storage, and no input of one is rebuilt only later.
    """
    taken: list[RecomputeOption] = []
    rebuilt: dict[int, int] = {}
    read: dict[int, int] = {}
    for option in options:
        before = option.recompute.before_op
        late = any(rebuilt.get(s, -1) >= before for s in option.inputs)
        needed = any(read.get(s, before + 1) <= before for s in option.recompute.storages)
        if late or needed or any(s in rebuilt for s in option.recompute.storages):
            continue
        taken.append(option)
        rebuilt.update(dict.fromkeys(option.recompute.storages, before))
        for storage in option.inputs:
            read[storage] = min(before, read.get(storage, before))
    return taken


def needed_by(step: LastStep, options: Sequence[RecomputeOption], n: Ints) -> list[tuple[int, int]]:
    """Return pairs (save of `n`, position) at which recipes on offer read it before the step does."""
    storage_of = dict(zip(listed(step.storage_of(n)), listed(n), strict=True))
    found = {
        (storage_of[s], option.recompute.before_op) for option in options for s in option.inputs if s in storage_of
    }
    early = ((i, before) for i, before in found if int(step.idle_from[i]) < before < int(step.first_read[i]))
    return sorted((i, before) for i, before in early if step.returns[i])
