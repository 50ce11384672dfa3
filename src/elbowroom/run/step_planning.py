"""Plans for one kind of step, as functions from an immutable question to an immutable answer.

These functions run in the planning thread. They read no state of the run, call nothing of torch and change nothing. The
training's thread applies their answers (learner.py).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from elbowroom.errors import Infeasible, InvalidPlan, again
from elbowroom.plan import Plan
from elbowroom.planners import check
from elbowroom.planners.budget.kept_courses import kept_or_planned
from elbowroom.planners.budget.run_budget import (
    Course,
    CourseRequest,
    course_of,
    exploring,
    without,
)
from elbowroom.planners.problem import OF_STATES
from elbowroom.run.given_plan import course_of_moved
from elbowroom.run.kind_totals import uncounted_bytes
from elbowroom.run.recompute.call_recorder import Calls
from elbowroom.run.recompute.planning import Planned, planned, would_help
from elbowroom.run.refusals import naming_compiled_backward, with_others
from elbowroom.run.step_kinds import StepKind, has_parts, known_of
from elbowroom.run.step_question import Answer, Explores, Followed, MadePlan, Next, RefusedPlan, StepQuestion
from elbowroom.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Before:
    """State of a kind of step until it is planned again.

    Attributes:
        plan: the plan that it follows.
        rebuilds: whether it has a rebuilder for recomputes.
        alike: the step that followed the plan, with the idle times of the observed one; None if their ops differ.
        is_captured: whether the plan was made from a capture of the script.
    """

    plan: Plan
    rebuilds: bool
    alike: Trace | None
    is_captured: bool = False


def first_plan(question: StepQuestion) -> Answer:
    """Plan after an observed step, whose trace the question has."""
    try:
        return MadePlan(plan_of(question))
    except (Infeasible, InvalidPlan) as problem:
        if question.given is None and would_help(question, None):
            return Next.RECORD_CALLS
        explores = _exploring(question)
        refused = _refused(question, problem)
    return Explores(explores, refused) if explores is not None else refused


def better_plan(question: StepQuestion, before: Before) -> Answer:
    """Plan a kind of step again, from a steady step."""
    try:
        better = plan_of(question)
    except InvalidPlan:
        return Next.AS_BEFORE
    except Infeasible as problem:
        if before.is_captured:  # it has shown that it holds the budget
            return Next.AS_BEFORE
        return _instead(question, before, problem) or _refused(question, problem)
    better.refined = True
    better.wants_calls = question.given is None and would_help(question, better.course)
    return MadePlan(better)


def scaled_plan(question: StepQuestion) -> StepKind | Infeasible:
    """Return a plan for a scaled trace, which other steps can follow, or why there is none."""
    try:
        return plan_of(replace(question, asked=without(question.asked, "recompute", "algorithm")))
    except Infeasible as problem:
        return again(problem)


def smaller_plan(question: StepQuestion, device_bytes: int, known: StepKind) -> StepKind:
    """Return a plan for fewer bytes than that of a kind; if there is none, that plan below the allocator's limit."""
    course = replace(known.course, at_limit=True)
    with suppress(Infeasible, InvalidPlan):
        course = _swaps(replace(question, budget=question.budget.on_device(device_bytes)))
    return replace(_known_of(question, course), refined=True)


def plan_of_calls(question: StepQuestion, calls: Calls, *, is_needed: bool) -> Planned | None:
    """Return a plan with recomputes, now that the calls of a step are known; None if no recompute helps.

    Raises:
        Infeasible: no recompute helps, and one `is_needed`, as no plan with swaps alone meets the budget.
        InvalidPlan: the calls cannot carry out the given plan.
    """
    found = planned(question, calls, is_needed=is_needed)
    if found is None and is_needed:
        _swaps(question)
    return found


def plan_after_proof(question: StepQuestion, without_any: StepQuestion, calls: Calls | None) -> Planned | StepKind:
    """Plan a kind of step again with the recomputes that are still allowed, or without any.

    Raises:
        Infeasible: no plan meets the budget.
    """
    found = None if calls is None else planned(question, calls, is_needed=True)
    return found or replace(plan_of(without_any), refined=True)


def plan_of(question: StepQuestion) -> StepKind:
    """Return a plan without recomputes, or the given plan.

    Raises:
        Infeasible: no plan meets the budget.
        InvalidPlan: the given plan is not for this step.
    """
    if question.given is None:
        return _known_of(question, _swaps(question))
    trace, machine = question.trace, question.machine
    made = question.given.on(trace)
    check(trace, made, machine)
    return _known_of(question, course_of(trace, machine, made, question.budget.device_bytes))


def _swaps(question: StepQuestion) -> Course:
    """Return a course without recomputes. Optimizer states move only if the trace has the parts of optimizer steps."""
    asked = _request(question).without("recompute")
    with naming_compiled_backward(question.compiled_backward):
        return kept_or_planned(asked if question.trace.parts else asked.without(*OF_STATES))


def _request(question: StepQuestion) -> CourseRequest:
    """Return the request to the planners."""
    return CourseRequest(
        trace=question.trace,
        machine=question.machine,
        budget=question.budget,
        asked=question.asked,
    )


def _known_of(question: StepQuestion, course: Course) -> StepKind:
    return known_of(question.trace, course, question.machine, question.budget.device_bytes)


def _instead(question: StepQuestion, before: Before, problem: Infeasible) -> Answer | None:
    """Return what to do if no new plan meets the budget: follow the old one, observe, explore. None: nothing helps."""
    alike = before.alike
    if alike is None:
        return Next.AS_BEFORE
    # a list of losses that grows is no reason to end the run
    budget_bytes = question.budget.device_bytes
    more_bytes = uncounted_bytes(budget_bytes) if question.machine.allocator == "exact" else 0
    allowed_bytes = budget_bytes + max(more_bytes, question.asked.min_size_bytes)
    try:
        course = course_of_moved(alike, question.machine, before.plan, allowed_bytes)
    except InvalidPlan:  # it was carried out, whatever the records of this step say
        return Next.AS_BEFORE
    if course is not None and before.rebuilds:
        return Next.AS_BEFORE
    if course is not None:
        return Followed(replace(_known_of(question.on(alike), course), refined=True))
    if question.asked.in_parts and not alike.parts and not question.explored:  # states could help
        return Next.OBSERVE_STATES
    explores = _exploring(question.on(alike))
    return None if explores is None else Explores(explores, _refused(question, problem))


def _exploring(question: StepQuestion) -> StepKind | None:
    """Return what the next step does if no plan for the observed one meets the budget; None if it may not explore."""
    if question.given is not None or not question.may_explore:
        return None
    course = exploring(_request(question))
    if course is None:
        return None
    return replace(_known_of(question, course), in_parts=has_parts(question.trace), explores=True)


def _refused(question: StepQuestion, problem: Infeasible | InvalidPlan) -> RefusedPlan:
    """Return a refusal that names what other kinds of steps need."""
    if isinstance(problem, InvalidPlan):
        return RefusedPlan(again(problem))
    why = again(with_others(problem, question.other_kinds_bytes))
    return RefusedPlan(why, problem.least_feasible_bytes, None if question.given else _request(question))
