"""Asking one planner for plans of one trace on one machine, for one budget after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

from elbowroom.errors import Infeasible, TimeOver
from elbowroom.plan import Plan
from elbowroom.planners.budget.confirm_reserved import confirmed, limit_of_plan
from elbowroom.planners.budget.infeasible import followed, in_reserved_bytes
from elbowroom.planners.budget.least import Weighed, first_met
from elbowroom.planners.knobs import apply
from elbowroom.planners.problem import Planner, Problem
from elbowroom.simulate.energy import energy_of
from elbowroom.simulate.simulate import simulate
from elbowroom.step.check import check_step
from elbowroom.step.least_size import least_size
from elbowroom.timeline import Timeline
from elbowroom.units import format_bytes
from elbowroom.watch import Watch


@final
class Asking:
    """Problem without a budget, with the planner that solves it.

    Args:
        problem: the problem; its budget is ignored.
        planner: the planner that solves it.
        name: name of the planner.
        options: options of the planner.
        watch: shows progress.
    """

    def __init__(
        self,
        problem: Problem,
        planner: Planner,
        name: str,
        options: Mapping[str, object],
        watch: Watch | None = None,
    ) -> None:
        self._problem = problem
        self._planner = planner
        self._name = name
        self._options = dict(options)
        self._watch = watch or Watch()
        self._asked = 0

    def plan(self, budget_bytes: int) -> Plan:
        """Make a plan within a budget that passes `check`.

        Raises:
            Infeasible: the planner cannot meet it.
            TimeOver: no time is left.
        """
        try:
            return self._plan(budget_bytes)
        except Infeasible as found:
            if not self._others_move(budget_bytes, found.least_feasible_bytes):
                raise
            raise self._met(found) from None

    def _plan(self, budget_bytes: int) -> Plan:
        limit_s = self._watch.left_s(self._problem.time_limit_s)
        self._asked += 1
        self._watch.say(f"planner {self._name}: plan {self._asked}, for {format_bytes(budget_bytes)}")
        least = least_size(budget_bytes) if self._problem.follows else self._problem.min_size_bytes
        problem = replace(self._problem, budget_bytes=budget_bytes, min_size_bytes=least, time_limit_s=limit_s)
        made = self._confirmed(problem)
        if problem.prices is not None:
            made = self._of_less_energy(made, self._confirmed(replace(problem, prices=None)))
        check_step(problem.step, made, problem.machine)
        return made

    def _confirmed(self, problem: Problem) -> Plan:
        """Make a plan whose reserved bytes are within the budget. Raises Infeasible."""
        try:
            made = self._make(problem)
        except Infeasible as found:
            raise self._in_reserved_bytes(problem, found) from None
        if problem.machine.allocator != "exact" and made.bound is None:  # what has a bound was confirmed
            made = confirmed(problem, self._name, self._make, made)
        return made

    def _of_less_energy(self, *plans: Plan) -> Plan:
        """Return the plan whose step takes the least joules: a search for them may end at more than one for time."""
        trace, machine = self._problem.step.trace, self._problem.machine

        def millijoules(made: Plan) -> int:
            found = energy_of(self._simulated(made), trace, machine)
            return 0 if found is None else found.likely_millijoules

        return min(plans, key=millijoules)

    def weigh(self, budget_bytes: int) -> Weighed:
        """Make a plan within a budget, and simulate it.

        Raises:
            Infeasible: the planner cannot meet it.
        """
        made = self.plan(budget_bytes)
        return Weighed(made, self._simulated(made))

    def kept(self) -> Weighed:
        """Return the plan that keeps everything, with its peak as the budget, and its simulation."""
        line = simulate(self._problem.step.trace, self._problem.machine)
        name, trace_id = "keep_all", self._problem.step.trace.id
        return Weighed(Plan(trace_id=trace_id, planner=name, budget_bytes=line.peak_reserved_bytes), line)

    def _make(self, problem: Problem) -> Plan:
        """Call the planner, which counts allocated bytes only."""
        return apply(self._planner, self._name, problem, self._options)

    def _others_move(self, budget_bytes: int, other_bytes: int) -> bool:
        """Whether fewer storages may move with another budget, as the least size follows it."""
        sizes = self._problem.step.storage_bytes
        low, high = least_size(budget_bytes), least_size(other_bytes)
        return self._problem.follows and bool(((low <= sizes) & (sizes < high)).any())

    def _met(self, found: Infeasible) -> Infeasible:
        """Return an error whose least budget can be met with the least size that follows that budget."""

        def meets(budget_bytes: int) -> None:
            limit_s, least = self._watch.left_s(self._problem.time_limit_s), least_size(budget_bytes)
            try:  # a refusal takes less time than a plan
                self._confirmed(replace(self._problem, budget_bytes=1, min_size_bytes=least, time_limit_s=limit_s))
            except Infeasible as other:
                if other.least_feasible_bytes > budget_bytes:
                    raise

        try:
            least_bytes = first_met(found.least_feasible_bytes, meets, self.kept().plan.budget_bytes)
        except TimeOver:
            return found
        return found if least_bytes == found.least_feasible_bytes else followed(found, least_bytes)

    def _in_reserved_bytes(self, problem: Problem, found: Infeasible) -> Infeasible:
        """Return an error whose least budget is what the allocator reserves for the plan that allocates least."""
        least_bytes = found.least_feasible_bytes
        if problem.machine.allocator == "exact" or found.counts_reserved:
            return found
        try:
            made = self._make(replace(problem, budget_bytes=least_bytes))
            reserved_bytes = limit_of_plan(problem.step.trace, problem.machine, made)
        except Infeasible as more:
            reserved_bytes = more.least_feasible_bytes
        if reserved_bytes <= least_bytes:
            return found
        return in_reserved_bytes(found, reserved_bytes)

    def _simulated(self, made: Plan) -> Timeline:
        return simulate(self._problem.step.trace, self._problem.machine, made)
