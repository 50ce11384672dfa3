"""Recomputing: when a run records its calls, and which of a plan's recomputes it may use.

A kind of step is planned with swaps alone first. Where those make it wait, or do not meet the budget, and recomputes
would do better, one more step of the kind runs under that plan, or swapped whole, and records its calls (calls.py);
then it is planned again with the recomputes that the calls can carry out.

Note: [Compiled code]
The compiler's guards look at dispatch keys, the recorder's among them: a region that is called while calls are recorded
would be compiled anew. So no calls are recorded in a run once a recorded step of it went through torch.compile, be it a
module or a function. What else the process has compiled does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from elbowroom.engine.executor import Executor
from elbowroom.errors import Infeasible, InvalidPlan, UsageError
from elbowroom.machine import Machine
from elbowroom.plan import Plan, Recompute
from elbowroom.planners import check
from elbowroom.planners.budget.run_budget import Course, course_of, course_within, without
from elbowroom.planners.request import PlanRequest
from elbowroom.run.recompute.calls import Calls
from elbowroom.run.recompute.programs import Impossible, Matched, Program, matched, programs_of, why_impossible
from elbowroom.run.recompute.proofs import sample_bytes
from elbowroom.run.recompute.rebuild import Rebuilder
from elbowroom.run.step_kinds import Known, known_of
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import last_step
from elbowroom.step.module_selection import Selection
from elbowroom.torch_compat.cuda_allocator import compiler_graphs
from elbowroom.trace import Trace
from elbowroom.units import Amount, Budget

PROOFS = 2
"""So many steps under a plan with recomputes prove them in every bit."""
WORTH = 1.01
"""A step that takes at most so many times as long as with everything kept needs no recomputes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """What is to be done in steps of a kind, recomputes included, that nothing carries out yet.

    Attributes:
        known: all but what rebuilds.
        programs: of its recomputes.
        calls: that the programs are made of.
    """

    known: Known
    programs: tuple[Program, ...]
    calls: Calls


@final
class Recomputing:
    """What is known of recomputes, for all kinds of steps.

    Args:
        executor: moves the storages.
        budget: for the device tier, in bytes, and for those below.
        asked: knobs of the plans.
    """

    def __init__(self, executor: Executor, budget: Budget, asked: PlanRequest) -> None:
        self._executor = executor
        self._budget = budget
        self._asked = asked
        self._banned: set[int] = set()
        self._compiled = False

    @property
    def allowed(self) -> bool:
        """Whether plans may recompute at all."""
        return "recompute" in self._asked.allow and not self._compiled

    def recorded(self, compiled: bool, given: Plan | None, modules: Selection) -> None:
        """A step of this run was recorded: see Note: [Compiled code].

        Args:
            compiled: whether some of it went through torch.compile.
            given: the plan that the run was given.
            modules: those that plans may move storages of.

        Raises:
            InvalidPlan: it has recomputes, which such a run cannot carry out.
            UsageError: it is captured as CUDA graphs.
        """
        self._asked = replace(self._asked, modules=modules)
        self._compiled |= compiled
        if compiled and compiler_graphs(self._executor.device):
            raise UsageError(
                "within: given code that torch.compile captures as CUDA graphs, as mode='reduce-overhead' does; "
                "allowed are modes that capture none, as graphs know nothing of storages that leave; "
                "compile with mode='default' or mode='max-autotune-no-cudagraphs'"
            )
        if self._compiled and given is not None and given.recomputes:
            raise InvalidPlan(
                "plan: it recomputes, and this training runs code that torch.compile has compiled, whose calls cannot "
                "be recorded; plan again with allow=('swap', 'state')"
            )

    def stop(self) -> None:
        """No plan of this run recomputes from now on."""
        self._asked = without(self._asked, "recompute")

    def ban(self, saves: set[int]) -> None:
        """What was rebuilt of these saves was wrong: no plan drops them again."""
        self._banned |= saves

    def would_help(self, trace: Trace, machine: Machine, swaps: Course | None) -> bool:
        """Whether a plan with recomputes is better than one with swaps alone; None where there is none."""
        if not self.allowed:
            return False
        if swaps is not None and not swaps.plan.swaps:
            return False
        kept_ns = simulate(trace, machine).step_ns
        swaps_ns = None if swaps is None else simulate(trace, machine, swaps.plan).step_ns
        if swaps_ns is not None and swaps_ns <= WORTH * kept_ns:
            return False
        found = self._course(trace, machine, None)
        if found is None or not found.plan.recomputes:
            return False
        return swaps_ns is None or simulate(trace, machine, found.plan).step_ns < swaps_ns

    def planned(self, trace: Trace, machine: Machine, calls: Calls) -> Planned | None:
        """What to do in the next steps, now that their calls are known; None where no recompute helps.

        It makes no tensors: see Note: [Beside the training] in background_planning.py.
        """
        found = matched(last_step(trace), calls)
        course = self._course(trace, machine, found)
        if course is None or not course.plan.recomputes:
            return None
        return self._planned(trace, machine, found, course)

    def following(self, trace: Trace, machine: Machine, calls: Calls, given: Plan) -> Planned:
        """What to do to follow a plan that was given, but for what was rebuilt wrong.

        Raises:
            InvalidPlan: the calls cannot carry it out.
        """
        check(trace, given)
        saves = last_step(trace).saves
        wrong = {saves[n].storage for n in self._banned}
        given = replace(given, recomputes=tuple(each for each in given.recomputes if wrong.isdisjoint(each.storages)))
        try:
            return self._planned(trace, machine, matched(last_step(trace), calls), course_of(trace, machine, given))
        except Impossible as problem:
            raise InvalidPlan(
                f"plan: one of its recomputes cannot be carried out: {problem}; plan again with allow=('swap',)"
            ) from None

    def _planned(self, trace: Trace, machine: Machine, found: Matched, course: Course) -> Planned:
        """Raises Impossible."""
        programs = programs_of(found, course.plan)
        known = known_of(trace, course, machine, self._budget.device.size_bytes or 0)
        return Planned(known=known, programs=programs, calls=found.calls)

    def carried_out(self, planned: Planned) -> Known:
        """What was planned, and what rebuilds as it says."""
        known, programs, calls = planned.known, planned.programs, planned.calls
        nodes = {n: calls.saved[n].node for program in programs for n in program.makes}
        known.refined, known.calls = True, calls
        known.rebuilder, known.proofs = Rebuilder(self._executor, programs, nodes), PROOFS
        return known

    def _course(self, trace: Trace, machine: Machine, found: Matched | None) -> Course | None:
        """A plan with recomputes; of those that can be carried out, where that is known."""
        step = last_step(trace)
        save_of = {save.storage: n for n, save in enumerate(step.saves)}

        def may(recompute: Recompute) -> bool:
            banned = any(save_of[storage] in self._banned for storage in recompute.storages)
            return not banned and (found is None or why_impossible(found, recompute) is None)

        try:
            asked = self._asked if trace.parts else without(self._asked, "state")
            large = int((step.size[: len(step.saves)] >= asked.min_size_bytes).sum())
            taken_bytes = sample_bytes(large, caching=machine.allocator != "exact")
            left_bytes = max(0, (self._budget.device.size_bytes or 0) - taken_bytes)
            budget = replace(self._budget, device=Amount(size_bytes=left_bytes))
            return course_within(trace, machine, budget, asked, may)
        except Infeasible:
            return None
