"""What must hold of every case: of the simulator beside the reference, and of the plans of every planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from elbowroom.errors import Infeasible
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.planners import MEANS, PLANNERS, asking, check, requested
from elbowroom.planners.ask import Asking
from elbowroom.planners.budget.budgets import below_device, held_to
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step, listed
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace
from elbowroom.units import parse_budget
from tests.core.reference import Reference
from tests.fuzz.brute import every_plan, fastest_ns, plan_count
from tests.fuzz.cases import Case

MOST_PLANS = 200
"""So few plans of a case are all played."""


class Broken(AssertionError):
    """A property does not hold. The message says which, and what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a planner made of a budget: a plan and its simulation."""

    planner: str
    budget_bytes: int
    plan: Plan
    line: Timeline


def demand(holds: bool, says: str) -> None:
    if not holds:
        raise Broken(says)


def held(case: Case) -> Machine:
    """The machine with what the case allows of its lower tiers."""
    return held_to(case.machine, below_device(case.machine, parse_budget(_budget(case))))


def _budget(case: Case) -> str:
    return f"device=auto,{case.lower}" if case.lower else "auto"


def asked(case: Case, planner: str) -> Asking:
    lower = below_device(case.machine, parse_budget(_budget(case)))
    return asking(case.trace, case.machine, lower, requested(planner, 1, allow=MEANS))


def agrees_with_reference(trace: Trace, machine: Machine, plan: Plan, line: Timeline | None = None) -> None:
    """Bytes over time and the time of the step are those of the reference, which plays eight steps in a row."""
    # The reference has no allocator, which may wait for the driver.
    line = line or simulate(trace, replace(machine, allocator="exact"), plan)
    expected = Reference(trace, machine, plan).run()
    curve = next(each for each in line.curves if (each.tier, each.kind) == ("device", "allocated"))
    found = list(zip(curve.at_ns, curve.size_bytes, strict=True))
    demand(line.step_ns == expected.step_ns, f"step: {line.step_ns} ns, by the reference {expected.steps_ns}")
    demand(line.peak_allocated_bytes == expected.peak, f"peak: {line.peak_allocated_bytes}, not {expected.peak}")
    demand(found == expected.curve, f"curve: {found}, by the reference {expected.curve}")
    demand(sum(line.breakdown().values()) == expected.peak, f"breakdown: {line.breakdown()}, peak {expected.peak}")


def keeps_budgets(case: Case, answer: Answer) -> None:
    """`check` passes, every tier stays inside its budget, and the bound is not above the plan."""
    made, line, budget = answer.plan, answer.line, answer.budget_bytes
    machine = held(case)
    check(case.trace, made, machine)
    who = f"{answer.planner} at {budget}"
    demand(line.peak_allocated_bytes <= budget, f"{who}: allocates {line.peak_allocated_bytes}")
    demand(line.peak_reserved_bytes <= budget or not case.is_caching, f"{who}: reserves {line.peak_reserved_bytes}")
    for tier in machine.tiers[1:]:
        most = line.peak_of(tier.name, "allocated")
        demand(most <= tier.capacity_bytes, f"{who}: {most} on {tier.name}, which has {tier.capacity_bytes}")
    if made.bound is not None:
        demand(made.bound.step_ns == line.step_ns, f"{who}: says {made.bound.step_ns} ns, takes {line.step_ns}")
        demand(made.bound.lower_bound_ns <= line.step_ns, f"{who}: bound {made.bound.lower_bound_ns}")


def least_bytes(case: Case, planner: str = "optimal") -> int:
    """The least budget that a planner names."""
    try:
        return asked(case, planner).plan(0).budget_bytes
    except Infeasible as found:
        return found.least_feasible_bytes


def budget_of(case: Case) -> int:
    """The device budget of a case."""
    least, most = least_bytes(case), simulate(case.trace, case.machine).peak_reserved_bytes
    return least + max(0, most - least) * case.percent // 100


def answers(case: Case, budget_bytes: int) -> Iterator[Answer]:
    """The answers of all planners; to one that cannot meet the budget the one it names is given."""
    for planner in PLANNERS:
        ask = asked(case, planner)
        try:
            made = ask.plan(budget_bytes)
        except Infeasible as found:
            least = found.least_feasible_bytes
            demand(least > budget_bytes, f"{planner}: {budget_bytes} is infeasible, and {least} the least feasible")
            try:
                made = ask.plan(least)
            except Infeasible as again:
                raise Broken(f"{planner}: {least} was named as feasible, then {again.least_feasible_bytes}") from again
        line = simulate(case.trace, held(case), made)
        yield Answer(planner=planner, budget_bytes=made.budget_bytes, plan=made, line=line)


def is_best(case: Case, answer: Answer, least: int) -> None:
    """No plan at all is faster than `optimal`'s or its bound, and none needs less than the least budget it names."""
    machine, made = held(case), answer.plan
    best_ns = fastest_ns(case.trace, machine, answer.budget_bytes, made.recomputes)
    demand(answer.line.step_ns == best_ns, f"optimal takes {answer.line.step_ns} ns, the fastest plan {best_ns}")
    demand(made.bound is not None and made.bound.lower_bound_ns <= answer.line.step_ns, f"the bound is {made.bound}")
    below = next(every_plan(case.trace, machine, least - 1), None) if least else None
    demand(below is None, f"{least} was named as the least, and {below} needs less")


def examine(case: Case) -> Counter[str]:
    """Look at all that must hold of a case; what was looked at, counted.

    Raises:
        Broken: it does not hold.
    """
    agrees_with_reference(case.trace, case.machine, case.plan)
    budget = budget_of(case)
    found = list(answers(case, budget))
    for answer in found:
        keeps_budgets(case, answer)
    fastest = next(answer for answer in found if answer.planner == "optimal")
    agrees_with_reference(case.trace, held(case), fastest.plan, None if case.is_caching else fastest.line)
    demand(fastest.budget_bytes == budget, f"optimal: {budget} is infeasible")
    met = [answer for answer in found if answer.budget_bytes == budget]
    for answer in met:
        ns = fastest.line.step_ns, answer.line.step_ns
        demand(ns[0] <= ns[1], f"optimal takes {ns[0]} ns at {budget}, {answer.planner} {ns[1]}")
    is_small = not case.is_caching and 1 < plan_count(case.trace, held(case)) <= MOST_PLANS
    if is_small:
        is_best(case, fastest, least_bytes(case))
    return counted(case, found, len(met)) + Counter({"cases compared with every plan": int(is_small)})


def counted(case: Case, found: list[Answer], met: int) -> Counter[str]:
    """What a case had in it."""
    step = last_step(case.trace)
    states = set(listed(step.storage[len(step.saves) :]))
    plans = [case.plan, *(answer.plan for answer in found)]
    swaps = [swap for plan in plans for swap in plan.swaps]
    two_hops = len(case.machine.tiers) == 3 and any(swap.tier == "disk" for swap in swaps)
    return Counter(
        {
            "cases": 1,
            "cases with a caching allocator": int(case.is_caching),
            "cases with swaps over two links": int(two_hops),
            "cases with states away": int(any(swap.storage in states for swap in swaps)),
            "plans of planners": len(found),
            "plans at the budget of the case": met,
            "plans at a budget named as the least": len(found) - met,
            "plans with swaps": sum(bool(plan.swaps) for plan in plans),
            "plans with recomputes": sum(bool(plan.recomputes) for plan in plans),
            "plans with algorithms": sum(bool(plan.algorithms) for plan in plans),
            "plans beside the reference simulator": 2,
        }
    )
