"""Brute force: every plan of a small case, each checked and simulated.

All swaps of every saved storage and state, to every tier, back at every place where that may be; all sets of the
recipes on offer; all algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import prod

from elbowroom.machine import Machine, TierName
from elbowroom.plan import Algorithm, Plan, Recompute, Swap
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import LastStep, last_step, listed
from elbowroom.step.recipes import options
from elbowroom.trace import Trace
from tests.fuzz.cases import passes

Choices = list[list[Swap | None]]


def plan_count(trace: Trace, machine: Machine) -> int:
    """How many plans there are to look at, at most."""
    step = last_step(trace)
    swaps, recipes, algorithms = _swaps(trace, machine), _recipes(step), _algorithms(step)
    return prod(len(each) for each in (*swaps, *algorithms)) * len(recipes)


def every_plan(trace: Trace, machine: Machine, budget_bytes: int, others: Sequence[Recompute] = ()) -> Iterator[Plan]:
    """All plans that may run on a machine within a budget of allocated bytes; with `others` beside recipes on offer."""
    step = last_step(trace)
    windows, ops = _swaps(trace, machine), _algorithms(step)
    for recomputes in _recipes(step, others):
        dropped = {storage for each in recomputes for storage in each.storages}
        if len(dropped) < sum(len(each.storages) for each in recomputes):
            continue
        for chosen in product(*windows):
            swaps = [swap for swap in chosen if swap is not None]
            if dropped.intersection(swap.storage for swap in swaps):
                continue
            for algorithms in product(*ops):
                made = Plan(
                    trace_id=trace.id,
                    planner="every",
                    budget_bytes=budget_bytes,
                    swaps=tuple(sorted(swaps, key=lambda swap: swap.out_after_op)),
                    recomputes=tuple(sorted(recomputes, key=lambda each: each.before_op)),
                    algorithms=tuple(each for each in algorithms if each is not None),
                )
                if passes(trace, made, machine):
                    yield made


def fastest_ns(trace: Trace, machine: Machine, budget_bytes: int, others: Sequence[Recompute] = ()) -> int | None:
    """The step of the fastest of `every_plan`; None where there is none."""
    exact = replace(machine, allocator="exact")
    every = every_plan(trace, exact, budget_bytes, others)
    return min((simulate(trace, exact, made).step_ns for made in every), default=None)


def _swaps(trace: Trace, machine: Machine) -> Choices:
    """Per window of the last step: to keep it, or each swap of it that may run."""
    step, found = last_step(trace), list[list[Swap | None]]()
    for n, storage in enumerate(listed(step.storage)):
        places = {*listed(step.ticks), step.first_op, step.end_op, int(step.first_read[n])}
        tiers: list[TierName] = [tier.name for tier in machine.tiers[1:]]
        may: list[Swap | None] = [None]
        for tier, back in product(tiers, sorted(places)):
            swap = Swap(storage=storage, tier=tier, out_after_op=int(step.saved_at[n]) - 1, back_before_op=back)
            alone = Plan(trace_id=trace.id, planner="one", budget_bytes=2**62, swaps=(swap,))
            may += [swap] if passes(trace, alone, machine) else []
        found.append(may)
    return found


def _recipes(step: LastStep, others: Sequence[Recompute] = ()) -> list[tuple[Recompute, ...]]:
    """All sets of the recipes on offer, and of others such as a baseline's for a whole block."""
    on_offer = list(dict.fromkeys([*(option.recompute for option in options(step, 1)), *others]))
    return [chosen for count in range(len(on_offer) + 1) for chosen in combinations(on_offer, count)]


def _algorithms(step: LastStep) -> list[list[Algorithm | None]]:
    """Per op that offers several algorithms: the recorded one, or each other one."""
    offered = {op: step.trace.ops[op].choices[1:] for op in range(step.first_op, step.end_op)}
    return [
        [None, *(Algorithm(op=op, choice=each.name) for each in others)] for op, others in offered.items() if others
    ]
