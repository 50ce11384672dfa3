"""Interface of planners: a Problem in, a Plan out; and functions that all of them need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from elbowroom.machine import Machine, TierName
from elbowroom.plan import Algorithm, Plan, Recompute, Swap
from elbowroom.simulate.energy import EnergyPrices
from elbowroom.simulate.lanes import Play, play
from elbowroom.step.last_step import Ints, LastStep, listed, why_kept
from elbowroom.step.moves import Moves, moves_of, need, tier_peak
from elbowroom.step.rebuilds import Rebuild

Judge = Callable[[Recompute], bool]
Objective = Literal["time", "energy"]
Means = Literal["swap", "recompute", "state", "gradient", "parameter", "algorithm"]
MEANS: tuple[Means, ...] = ("swap", "recompute", "state", "gradient", "parameter", "algorithm")
OBJECTIVES: tuple[Objective, ...] = ("time", "energy")
"""What plans may be chosen by."""
OF_STATES: tuple[Means, ...] = ("state", "gradient", "parameter")
"""Means that swap storages which outlive the step."""
DEFAULT_MEANS: tuple[Means, ...] = ("swap", "recompute", "state", "gradient")
"""Means of plans and of runs by default. They change no numbers."""

__all__ = [
    "DEFAULT_MEANS",
    "MEANS",
    "OBJECTIVES",
    "OF_STATES",
    "Judge",
    "Means",
    "Objective",
    "Planner",
    "Problem",
    "as_plan",
    "movable",
    "moves_on_demand",
    "moving",
    "peak_of",
    "recompute_of",
]


def any_recompute(_recompute: Recompute) -> bool:
    """Allow every recompute in a plan."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecidedStates:
    """Swaps of optimizer states and gradients that are decided already.

    Attributes:
        step: the step with all of them on the device.
        moves: the swaps.
    """

    step: LastStep
    moves: Moves


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Problem that a planner solves.

    Attributes:
        step: the last step of the trace.
        machine: the machine that the plan will run on.
        tier: the tier that storages go to first; None if the machine has no tier below the device.
        tier_bytes: bytes that this tier may hold.
        budget_bytes: allocated bytes that the device may hold.
        min_size_bytes: smaller storages are kept.
        tiers: bytes that each lower tier of the machine may hold, and how many of the host's may be pinned.
        allow: the means that a plan may use: swaps of saved storages, recomputes, swaps of optimizer states, swaps of
            gradients and of parameters, other algorithms. A planner uses those that it knows.
        time_limit_s: a planner that searches stops after this time with the best plan it has.
        judge: tells whether a recompute may be in the plan: a run cannot carry out all of them.
        algorithms: algorithms decided already; `step` has their times and workspaces.
        states: swaps of states decided already; `step` has their bytes away, and `tier_bytes` is what they leave.
        host_bytes: bytes that the host may hold, if storages may go on to the disk; `tier_bytes` is then what both
            have room for. Else None.
        prices: what recomputes and copies cost beyond their time, if plans are chosen by energy; else None.
        shared: what a planner keeps from budget to budget, if it is asked for several; None for a single plan.
        follows: whether the least size follows the budget. That of a refusal is then the least size of its least.
        memo: what a planner found that depends on no budget: a refusal asks for it again.
    """

    step: LastStep
    machine: Machine
    tier: TierName | None
    tier_bytes: int
    budget_bytes: int
    min_size_bytes: int
    tiers: Mapping[str, int] = field(default_factory=dict[str, int])
    allow: tuple[Means, ...] = MEANS
    time_limit_s: float = 60.0
    judge: Judge = any_recompute
    algorithms: tuple[Algorithm, ...] = ()
    states: DecidedStates | None = None
    host_bytes: int | None = None
    prices: EnergyPrices | None = None
    shared: dict[object, Any] | None = None
    follows: bool = False
    memo: dict[object, Any] = field(default_factory=dict[object, Any], repr=False)

    def extra_ns(self, moves: Moves, done: Play) -> int:
        """Return what a played plan costs beyond the time of its step: 0 if plans are chosen by time."""
        return 0 if self.prices is None else self.prices.extra_ns(self.step, moves, done)

    @property
    def moves_states(self) -> bool:
        """Whether optimizer states, gradients or parameters may be swapped."""
        return not set(OF_STATES).isdisjoint(self.allow)

    @property
    def kind(self) -> tuple[int, bool]:
        """What sets it apart from problems for other budgets: how many windows are large enough, and the objective.

        The least size may follow the budget. The same windows are large enough if as many are.
        """
        return int((self.step.size >= max(1, self.min_size_bytes)).sum()), self.prices is None

    def means_of(self, n: int) -> Means:
        """Return the means that swaps a window."""
        if n < len(self.step.saves):
            return "swap"
        category = self.step.trace.storages[int(self.step.storage[n])].category
        return category if category in ("gradient", "parameter") else "state"

    def tiers_for(self, step: LastStep, moves: Moves) -> list[TierName]:
        """Return the tier of each move: those idle longest go to the disk, as far as the host is full."""
        if self.tier is None:
            return []
        tiers: list[TierName] = [self.tier] * len(moves.n)
        if self.host_bytes is None or tier_peak(step, moves) <= self.host_bytes:
            return tiers
        idle_ns = step.nominal_ns(step.first_read[moves.n]) - step.nominal_ns(step.idle_from[moves.n])
        idle_ns += np.where(moves.wraps, step.at_ns[-1], 0)
        order, room = np.argsort(-idle_ns, kind="stable"), self.host_bytes - int(moves.size.max())
        few, many = 0, len(order)
        while few < many:
            middle = (few + many) // 2
            on_host = np.ones(len(order), np.bool_)
            on_host[order[:middle]] = False
            few, many = (few, middle) if tier_peak(step, moves, on_host.tolist()) <= room else (middle + 1, many)
        for i in order[:few].tolist():
            tiers[i] = "disk"
        return tiers

    def holds(self, moves: Moves) -> bool:
        """Tell whether the lower tiers have room for moves."""
        if self.host_bytes is None:
            return tier_peak(self.step, moves) <= self.tier_bytes
        step, whole = self.whole(moves)
        on_disk = [tier == "disk" for tier in self.tiers_for(step, whole)]
        return tier_peak(step, whole, on_disk) <= self.tiers["disk"]

    def whole(self, moves: Moves) -> tuple[LastStep, Moves]:
        """Return the step to play, and the moves together with the swaps decided already."""
        if self.states is None:
            return self.step, moves
        step, decided = self.states.step, self.states.moves
        n, back = np.concatenate([decided.n, moves.n]), np.concatenate([decided.back, moves.back])
        return step, moves_of(step, n, back, rebuilds=moves.rebuilds)


Planner = Callable[[Problem], Plan]


def movable(problem: Problem) -> Ints:
    """Return the saves that may be swapped, as far as the lower tier has room: most bytes times time away first."""
    step = problem.step
    if problem.tier is None or "swap" not in problem.allow:
        return np.zeros(0, np.int64)
    large = np.nonzero(step.size[: len(step.saves)] >= max(1, problem.min_size_bytes))[0].astype(np.int64)
    begin, end = step.window(large, step.first_read[large])
    idle = large[(begin < end) & (step.used_op[large] == step.end_op)]
    n = np.array([i for i in idle.tolist() if why_kept(step, i) is None], dtype=np.int64)
    if tier_peak(step, moves_on_demand(step, n)) <= problem.tier_bytes:
        return n
    begin, end = step.window(n, step.first_read[n])
    first = np.argsort(-(step.size[n].astype(np.float64) * (end - begin)), kind="stable")
    left, taken = problem.tier_bytes, list[int]()
    for i in n[first].tolist():
        if step.size[i] <= left:
            left -= int(step.size[i])
            taken.append(i)
    return np.sort(np.array(taken, dtype=np.int64))


def with_disk(problem: Problem) -> Problem:
    """Return the problem with the disk as a second tier, if the host cannot hold all that may move; else as it is."""
    ends = {(link.upper, link.lower) for link in problem.machine.links}
    host, disk = problem.tier_bytes, problem.tiers.get("disk", 0)
    if problem.tier != "host" or not ends & {("host", "disk"), ("device", "disk")} or not disk:
        return problem
    most = replace(problem, tier_bytes=2**62)
    moves = moves_on_demand(problem.step, movable(most))
    if tier_peak(problem.step, moves) <= host and not problem.moves_states:
        return problem
    largest = int(problem.step.size.max(initial=0))
    if host < 2 * largest or disk < 2 * largest:
        return problem
    return replace(problem, tier_bytes=host + disk - 2 * largest, host_bytes=host)


def without_disk(problem: Problem) -> Problem:
    """Return the problem with only the tier directly below the device."""
    if problem.host_bytes is None:
        return problem
    return replace(problem, tier_bytes=problem.host_bytes, host_bytes=None)


def moves_on_demand(step: LastStep, n: Ints) -> Moves:
    """Swap saves `n`, each back only when it is read: the least memory that these swaps can give."""
    return moves_of(step, n, step.first_read[n])


def moving(problem: Problem, moves: Moves, machine: Machine | None = None) -> Play:
    """Play moves on the problem's machine, or on another one."""
    step, whole = problem.whole(moves)
    return play(step, whole, machine or problem.machine, problem.tiers_for(step, whole))


def peak_of(step: LastStep, moves: Moves) -> int:
    """Return the peak of allocated bytes under the moves."""
    return int(need(step, moves).max())


def as_plan(problem: Problem, planner: str, moves: Moves | None = None) -> Plan:
    """Make a plan of moves; None keeps everything."""
    step, swaps = problem.step, list[Swap]()
    if problem.tier is not None and (moves is not None or problem.states is not None):
        none = np.zeros(0, np.int64)
        _, whole = problem.whole(moves_of(step, none, none) if moves is None else moves)
        columns = (step.storage_of(whole.n), step.saved_at[whole.n] - 1, whole.back)
        tiers = problem.tiers_for(step, whole)
        for tier, storage, out, back in zip(tiers, *map(listed, columns), strict=True):
            swaps.append(Swap(storage=storage, tier=tier, out_after_op=out, back_before_op=back))
    return Plan(
        trace_id=step.trace.id,
        planner=planner,
        budget_bytes=problem.budget_bytes,
        swaps=tuple(swaps),
        recomputes=tuple(recompute_of(step, rebuild) for rebuild in moves.rebuilds) if moves is not None else (),
        algorithms=problem.algorithms,
    )


def recompute_of(step: LastStep, rebuild: Rebuild) -> Recompute:
    """Return one rebuild in the form of a plan."""
    storages = tuple(listed(step.storage_of(rebuild.n)))
    return Recompute(storages=storages, recipe=rebuild.recipe, before_op=rebuild.position)
