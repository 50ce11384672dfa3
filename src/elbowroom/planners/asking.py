"""Asking one planner for one trace and machine, for one budget after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

from elbowroom.checks import check_step
from elbowroom.plan import Plan
from elbowroom.planners.least import Weighed
from elbowroom.planners.options import apply
from elbowroom.planners.problem import Planner, Problem
from elbowroom.planners.reserving import lowered
from elbowroom.simulate import simulate


@final
class Asking:
    """A problem without its budget, and who is to solve it."""

    def __init__(self, problem: Problem, planner: Planner, name: str, options: Mapping[str, object]) -> None:
        self._problem = problem
        self._planner = planner
        self._name = name
        self._options = dict(options)

    def plan(self, budget_bytes: int) -> Plan:
        """A plan within a budget that has passed `check`.

        Raises:
            Infeasible: the planner cannot meet it.
        """
        problem = replace(self._problem, budget_bytes=budget_bytes)
        made = lowered(problem, lambda asked: apply(self._planner, self._name, asked, self._options))
        check_step(problem.step, made, problem.machine)
        return made

    def weigh(self, budget_bytes: int) -> Weighed:
        """A plan within a budget, and its simulation.

        Raises:
            Infeasible: the planner cannot meet it.
        """
        made = self.plan(budget_bytes)
        return Weighed(made, simulate(self._problem.step.trace, self._problem.machine, made))

    def kept(self) -> Weighed:
        """The plan that keeps everything, with what that needs as its budget, and its simulation."""
        line = simulate(self._problem.step.trace, self._problem.machine)
        name, trace_id = "keep_all", self._problem.step.trace.id
        return Weighed(Plan(trace_id=trace_id, planner=name, budget_bytes=line.peak_reserved_bytes), line)
