"""What goes to the planning thread and what comes back: values that nobody changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum, auto

from elbowroom.errors import Infeasible, InvalidPlan
from elbowroom.machine import Machine
from elbowroom.planners.request import PlanRequest, ResolvedBudget
from elbowroom.run.given_plan import GivenPlan
from elbowroom.run.step_kinds import StepKind
from elbowroom.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepQuestion:
    """All that the plan for a kind of step is made of, taken on the training's thread.

    Attributes:
        trace: the step that was recorded.
        machine: where it runs, with the rates that are known by now.
        budget: of all tiers.
        asked: knobs of the plans, with the modules that existed.
        clear: positions at which the cache may be emptied.
        given: a plan to follow in place of planning.
        compiled_backward: whether a backward pass of the run was compiled.
        recomputes: whether plans may recompute.
        banned: saves that were rebuilt wrong: no plan drops them.
        other_kinds_bytes: the budget that another kind of step was refused for; 0 where none was.
        explored: whether a step of this kind has run with everything away.
        may_explore: whether one may.
    """

    trace: Trace
    machine: Machine
    budget: ResolvedBudget
    asked: PlanRequest
    clear: Collection[int] = ()
    given: GivenPlan | None = None
    compiled_backward: bool = False
    recomputes: bool = False
    banned: frozenset[int] = frozenset()
    other_kinds_bytes: int = 0
    explored: bool = False
    may_explore: bool = False

    def on(self, trace: Trace) -> StepQuestion:
        """The question for another trace of the step."""
        return replace(self, trace=trace)


@dataclass(frozen=True, slots=True)
class MadePlan:
    """A plan that meets the budget."""

    known: StepKind


@dataclass(frozen=True, slots=True)
class Followed:
    """The plan of an earlier step, which this one can follow too."""

    known: StepKind


@dataclass(frozen=True, slots=True)
class Explores:
    """No plan meets the budget; a step with everything away may show that less is held than was recorded."""

    known: StepKind
    refused: RefusedPlan


@dataclass(frozen=True, slots=True)
class RefusedPlan:
    """No plan meets the budget.

    Attributes:
        error: to be raised as a new one (`errors.again`).
        least_bytes: the least budget of this kind of step alone.
    """

    error: Infeasible | InvalidPlan
    least_bytes: int = 0


class Next(Enum):
    """What the next step of the kind does where no plan was made."""

    AS_BEFORE = auto()
    RECORD_CALLS = auto()
    OBSERVE_STATES = auto()


Answer = MadePlan | Followed | Explores | RefusedPlan | Next
