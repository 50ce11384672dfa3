"""Cases: a random trace on a random machine, with a budget and a random plan for it. A seed names one for good."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from elbowroom.errors import ElbowroomError, InvalidPlan
from elbowroom.machine import Link, Machine, Tier, TierName
from elbowroom.plan import Algorithm, Plan, Recompute, Swap
from elbowroom.planners import check
from elbowroom.step.last_step import LastStep, last_step, listed
from elbowroom.step.recipes import options
from elbowroom.trace import Trace
from tests.fuzz.traces import random_trace

MIB = 2**20
RATES = (10**7, 10**8, 10**9, 10**10)
SETTINGS = ("", "", "expandable_segments:True", "max_split_size_mb:40", "roundup_power2_divisions:4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is asked of the planners and the simulator.

    Attributes:
        seed: makes the same case again.
        trace: what the training does.
        machine: where; sizes and rates are in units of the trace's.
        percent: where the device budget lies, from the least feasible one (0) to what keeping everything takes (100).
        lower: budgets of the tiers below, as in "host=100B,disk=50B"; "" for all there is.
        plan: some random plan, no planner's.
    """

    seed: int
    trace: Trace
    machine: Machine
    percent: int
    lower: str
    plan: Plan

    @property
    def is_caching(self) -> bool:
        return self.machine.allocator != "exact"

    @property
    def peak(self) -> int:
        """Allocated bytes when everything is kept."""
        return int(last_step(self.trace).level.max())


def case(seed: int, *, layers: int = 7) -> Case:
    """The case of a seed."""
    random = Random(seed)
    is_caching = random.randrange(5) == 0
    unit = random.choice((MIB // 8, MIB // 2, MIB)) if is_caching else 1
    trace = random_trace(random, layers=random.randint(1, layers), unit=unit)
    machine = random_machine(random, int(last_step(trace).level.max()), unit, is_caching=is_caching)
    lower = random_budget(random, machine)
    return Case(
        seed=seed,
        trace=trace,
        machine=machine,
        percent=random.choice((0, 10, 25, 50, 75, 100)),
        lower=lower,
        plan=random_plan(random, trace, machine),
    )


def random_machine(random: Random, peak: int, unit: int, *, is_caching: bool) -> Machine:
    """Two tiers (a disk or a host below the device) or three."""
    names: list[TierName] = ["device", *random.choice((("disk",), ("host",), ("host", "disk"), ("host", "disk")))]
    sizes = {"device": 100 * peak + 10**9, "host": _room(random, peak), "disk": _room(random, peak)}
    links = [_link(random, upper, lower, unit) for upper, lower in pairwise(names)]
    return Machine(
        name="fuzz",
        tiers=tuple(Tier(name=name, capacity_bytes=sizes[name]) for name in names),
        links=tuple(links),
        allocator=random.choice(SETTINGS) if is_caching else "exact",
        outside_bytes=random.choice((0, 5)),
    )


def _room(random: Random, peak: int) -> int:
    return random.choice((10**13, peak, peak // 2, peak // 4, 0))


def _link(random: Random, upper: TierName, lower: TierName, unit: int) -> Link:
    return Link(
        upper=upper,
        lower=lower,
        out_bytes_per_s=random.choice(RATES) * unit,
        back_bytes_per_s=random.choice(RATES) * unit,
        latency_ns=random.choice((0, 0, 3, 40)),
        shared_by=random.choice((1, 1, 2, 8)),
    )


def random_budget(random: Random, machine: Machine) -> str:
    """Bytes of the lower tiers that may be used, in text; the device's part is put before it."""
    some = [tier.name for tier in machine.tiers[1:] if random.randrange(3) == 0]
    parts = [f"{name}={random.choice((50, 90, 100))}%" for name in some]
    if random.randrange(4) == 0 and any(tier.name == "host" for tier in machine.tiers):
        host = next((part for part in parts if part.startswith("host=")), None)
        parts += [] if host else ["host=100%"]
        parts.append("pinned=50%")
    return ",".join(parts)


def passes(trace: Trace, plan: Plan, machine: Machine) -> bool:
    """Whether a plan may run."""
    try:
        check(trace, plan, machine)
    except InvalidPlan:
        return False
    return True


def random_plan(random: Random, trace: Trace, machine: Machine) -> Plan:
    """Swaps to any tier, states, recomputes and algorithms, as far as that may run."""
    plan = Plan(trace_id=trace.id, planner="random", budget_bytes=10**15)
    step = last_step(trace)
    tiers: list[TierName] = [tier.name for tier in machine.tiers[1:]]
    windows = list(range(len(step.size)))
    random.shuffle(windows)
    for n in windows:
        means = random.choice(("keep", "swap", "swap", "recompute", "recompute"))
        if means == "swap":
            plan = _tried(trace, machine, plan, [_swap(random, step, n, random.choice(tiers))])
        elif means == "recompute" and n < len(step.saves):
            plan = _tried(trace, machine, plan, _recomputes(random, step, n))
    offered = [op for op in range(step.first_op, step.end_op) if trace.ops[op].choices and random.randrange(2)]
    return _tried(trace, machine, plan, [Algorithm(op=op, choice="other") for op in offered])


def _swap(random: Random, step: LastStep, n: int, tier: TierName) -> Swap:
    use = int(step.first_read[n]) if step.returns[n] else step.end_op
    places = [use, use, *listed(step.ticks), step.first_op, step.end_op]
    storage, out = int(step.storage[n]), int(step.saved_at[n]) - 1
    return Swap(storage=storage, tier=tier, out_after_op=out, back_before_op=random.choice(places))


def _recomputes(random: Random, step: LastStep, n: int) -> list[Recompute]:
    """One with a recipe of the ops up to the maker of a save, perhaps with others that these make."""
    storage = int(step.storage[n])
    if random.randrange(2):
        on_offer = [option.recompute for option in options(step, 1) if storage in option.recompute.storages]
        return [random.choice(on_offer)] if on_offer else []
    makers = {e.storage: e.op for e in step.trace.events if e.size_bytes > 0}
    if makers[storage] < step.first_op or not step.returns[n]:
        return []
    lowest = max(step.first_op, makers[storage] - random.choice((0, 0, 1, 3)))
    recipe = tuple(range(lowest, makers[storage] + 1))
    others = (int(s) for s in step.storage.tolist() if s != storage and makers[int(s)] in recipe)
    storages = tuple(dict.fromkeys((storage, *(s for s in others if random.randrange(2)))))
    before = int(step.first_read[n])
    return [Recompute(storages=storages, recipe=recipe, before_op=before)] if before > recipe[-1] else []


def _tried(trace: Trace, machine: Machine, plan: Plan, more: list[Swap] | list[Recompute] | list[Algorithm]) -> Plan:
    """A plan with more in it, if that may run."""
    swaps = (*plan.swaps, *(each for each in more if isinstance(each, Swap)))
    recomputes = (*plan.recomputes, *(each for each in more if isinstance(each, Recompute)))
    try:
        changed = replace(
            plan,
            swaps=tuple(sorted(swaps, key=lambda swap: swap.out_after_op)),
            recomputes=tuple(sorted(recomputes, key=lambda each: each.before_op)),
            algorithms=(*plan.algorithms, *(each for each in more if isinstance(each, Algorithm))),
        )
    except ElbowroomError:
        return plan
    return changed if passes(trace, changed, machine) else plan
