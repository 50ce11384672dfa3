"""Questions to the planning thread and its answers: immutable values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from elbowroom.errors import Infeasible, InvalidPlan
from elbowroom.machine import Machine
from elbowroom.planners.budget.run_budget import CourseRequest, remedied
from elbowroom.planners.request import PlanRequest, ResolvedBudget
from elbowroom.run.given_plan import GivenPlan
from elbowroom.run.step_kinds import StepKind
from elbowroom.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepQuestion:
    """All that the plan for a kind of step depends on, collected on the training's thread.

    Attributes:
        trace: the recorded step.
        machine: the machine that it runs on, with the rates known by now.
        budget: the budgets of all tiers.
        asked: knobs of the plans, with the modules that existed.
        given: a plan to follow in place of planning.
        compiled_backward: whether a backward pass of the run was compiled.
        recomputes: whether plans may recompute.
        banned: saves that were rebuilt wrong: no plan drops them.
        other_kinds_bytes: the budget that other kinds of steps need that were refused; 0 if none was.
        explored: whether a step of this kind has run with everything away.
        may_explore: whether a step of this kind may still run so.
    """

    trace: Trace
    machine: Machine
    budget: ResolvedBudget
    asked: PlanRequest
    given: GivenPlan | None = None
    compiled_backward: bool = False
    recomputes: bool = False
    banned: frozenset[int] = frozenset()
    other_kinds_bytes: int = 0
    explored: bool = False
    may_explore: bool = False

    def on(self, trace: Trace) -> StepQuestion:
        """Return the question for another trace of the step."""
        return replace(self, trace=trace)


@dataclass(frozen=True, slots=True)
class MadePlan:
    """New plan that meets the budget."""

    known: StepKind


@dataclass(frozen=True, slots=True)
class Followed:
    """Plan of an earlier step that this one can follow too."""

    known: StepKind


@dataclass(frozen=True, slots=True)
class Explores:
    """No plan meets the budget, but a step with everything away may show that less memory is needed than recorded."""

    known: StepKind
    refused: RefusedPlan


@dataclass(frozen=True, slots=True)
class RefusedPlan:
    """No plan meets the budget.

    Attributes:
        error: the error, to be raised as a copy (`errors.again`).
        least_bytes: the least budget of this kind of step alone.
        request: what was refused, to look for what would help; None where nothing is looked for.
    """

    error: Infeasible | InvalidPlan
    least_bytes: int = 0
    request: CourseRequest | None = None

    def explained(self) -> Infeasible | InvalidPlan:
        """Return the error with what would help. This plans anew, so it is asked only once the training has ended."""
        if self.request is None or isinstance(self.error, InvalidPlan):
            return self.error
        return remedied(self.error, self.request)


class Next(Enum):
    """Action of the next step of the kind if no plan was made."""

    AS_BEFORE = auto()
    RECORD_CALLS = auto()
    OBSERVE_STATES = auto()


Answer = MadePlan | Followed | Explores | RefusedPlan | Next
