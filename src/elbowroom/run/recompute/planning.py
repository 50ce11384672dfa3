"""Plans with recomputes, as pure functions of a question: the planning thread runs them.

A kind of step is planned with swaps alone first. Those may make it wait, or not meet the budget. If recomputes would do
better, one more step of the kind records its calls (call_recorder.py). It runs under that plan, or swapped whole. Then
the kind is planned again, with the recomputes that the calls can carry out.

Note: [Recomputes and a limit]
With a limit of the allocator, a block that lies elsewhere than simulated ends the training. So a plan with recomputes
that needs a limit never replaces a plan that does without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elbowroom.errors import Infeasible, InvalidPlan
from elbowroom.plan import Plan, Recompute
from elbowroom.planners import check
from elbowroom.planners.budget.kept_courses import kept_or_planned
from elbowroom.planners.budget.run_budget import Course, CourseRequest, course_of, without
from elbowroom.planners.problem import OF_STATES
from elbowroom.run.recompute.call_recorder import Calls
from elbowroom.run.recompute.checksums import sample_bytes
from elbowroom.run.recompute.recompute_programs import Matched, Program, matched, programs_of, why_impossible
from elbowroom.run.step_kinds import StepKind, known_of
from elbowroom.run.step_question import StepQuestion
from elbowroom.simulate.simulate import simulate
from elbowroom.step.check import check_step
from elbowroom.step.last_step import LastStep, last_step
from elbowroom.step.translate import with_swaps

WORTH = 1.01
"""Factor on the time with everything kept: a step that takes no longer than this needs no recomputes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """Kind of step with planned recomputes, before it has a rebuilder.

    Attributes:
        known: the kind of step, without its rebuilder.
        programs: the programs of its recomputes.
        calls: the calls that the programs are made of.
    """

    known: StepKind
    programs: tuple[Program, ...]
    calls: Calls


def would_help(question: StepQuestion, swaps: Course | None) -> bool:
    """Tell whether a plan with recomputes is better than `swaps`, a plan with swaps alone (None: there is none)."""
    trace, machine = question.trace, question.machine
    if not question.recomputes or (swaps is not None and not swaps.plan.swaps):
        return False
    kept_ns = simulate(trace, machine).step_ns
    swaps_ns = None if swaps is None else simulate(trace, machine, swaps.plan).step_ns
    if swaps_ns is not None and swaps_ns <= WORTH * kept_ns:
        return False
    found = _course(question, None)
    if found is None or not found.plan.recomputes:
        return False
    if swaps is not None and found.at_limit and not swaps.at_limit:
        return False
    return swaps_ns is None or simulate(trace, machine, found.plan).step_ns < swaps_ns


def planned(question: StepQuestion, calls: Calls, *, is_needed: bool) -> Planned | None:
    """Plan with recomputes, now that the calls of a step are known; None if no recompute helps.

    A given plan is followed, except for what was rebuilt wrong.

    Args:
        question: what is planned.
        calls: the recorded calls of a step.
        is_needed: whether no plan with swaps alone meets the budget. A plan with recomputes may need a limit then.

    Raises:
        InvalidPlan: the calls cannot carry out the given plan.
    """
    if question.given is not None:
        return following(question, calls, question.given.on(question.trace))
    if not question.recomputes:
        return None
    found = matched(last_step(question.trace), calls)
    course = _course(question, found)
    if course is None or not course.plan.recomputes or not (is_needed or not course.at_limit):
        return None
    return _planned(question, found, course)


def following(question: StepQuestion, calls: Calls, given: Plan) -> Planned:
    """Follow a given plan, except for what was rebuilt wrong. What the calls cannot rebuild is swapped.

    Raises:
        InvalidPlan: the plan is not one for this step.
    """
    trace, machine, step = question.trace, question.machine, last_step(question.trace)
    check(trace, given)
    wrong = {step.saves[n].storage for n in question.banned}
    given = replace(given, recomputes=tuple(each for each in given.recomputes if wrong.isdisjoint(each.storages)))
    found = matched(step, calls)
    return _planned(question, found, course_of(trace, machine, _carried_out(given, step, found)))


def _carried_out(given: Plan, step: LastStep, found: Matched) -> Plan:
    """Return the plan with swaps in place of recomputes that the calls of a step cannot carry out."""
    cannot = [each for each in given.recomputes if why_impossible(found, each) is not None]
    if not cannot:
        return given
    left = replace(given, recomputes=tuple(each for each in given.recomputes if each not in cannot))
    made = with_swaps(left, step, (storage for each in cannot for storage in each.storages))
    try:
        check_step(step, made)
    except InvalidPlan:  # a recipe needs what another one rebuilds
        every = (storage for each in given.recomputes for storage in each.storages)
        return with_swaps(replace(given, recomputes=()), step, every)
    return made


def _planned(question: StepQuestion, found: Matched, course: Course) -> Planned:
    """Make the programs of a course's plan. Raises Impossible."""
    programs = programs_of(found, course.plan)
    known = known_of(question.trace, course, question.machine, question.budget.device_bytes)
    return Planned(known=known, programs=programs, calls=found.calls)


def _course(question: StepQuestion, found: Matched | None) -> Course | None:
    """Return a course with recomputes, or None. If `found` is given, its calls must be able to carry them out."""
    trace, machine, asked = question.trace, question.machine, question.asked
    step = last_step(trace)
    save_of = {save.storage: n for n, save in enumerate(step.saves)}

    def may(recompute: Recompute) -> bool:
        banned = any(save_of[storage] in question.banned for storage in recompute.storages)
        return not banned and (found is None or why_impossible(found, recompute) is None)

    asked = asked if trace.parts else without(asked, *OF_STATES)
    large = int((step.size[: len(step.saves)] >= asked.min_size_bytes).sum())
    taken_bytes = sample_bytes(large, caching=machine.allocator != "exact")
    budget = question.budget.on_device(max(0, question.budget.device_bytes - taken_bytes))
    try:
        return kept_or_planned(CourseRequest(trace=trace, machine=machine, budget=budget, asked=asked, judge=may))
    except Infeasible:
        return None
