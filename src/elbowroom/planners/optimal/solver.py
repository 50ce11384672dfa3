"""milp: a mixed-integer linear program, collected in pieces and solved by HiGHS.

Computes: values of the columns that minimise the cost, and a lower bound of it. Reference: Huangfu and Hall,
"Parallelizing the dual revised simplex method" (Math. Prog. Comp. 2018), which describes HiGHS. Optimal: within the
requested absolute gap, unless nodes or seconds run out first; then `Solution.bound` is still a bound.
Deterministic: one thread, one seed. Nodes of the search tree limit the work; seconds only stop a solve that is stuck.
Cost: exponential in the integers at worst; a dive solves a dozen linear programs, MOST_SOLVED at most, each from the
one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from elbowroom.step.last_step import Flags, Ints

if TYPE_CHECKING:
    import highspy

Reals = npt.NDArray[np.float64]
INFINITE = float("inf")
WHOLE = 1e-3
"""A column this close to 0 or 1 counts as that."""


MOST_SOLVED = 30
"""Most solves of a dive; columns that are open then stay between 0 and 1."""
FEWER = 4
"""If columns cannot all be 1, the number rounded up at a time is divided by this."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """Result of the solver.

    Attributes:
        values: value of each column; empty if no values were found that meet the rows.
        cost: cost of these values; infinite if there are none.
        bound: lower bound of the cost.
    """

    values: Reals
    cost: float
    bound: float


class Model:
    """Collects columns and rows. Columns are named by the numbers that `columns` returns."""

    def __init__(self) -> None:
        self._cost: list[Reals] = []
        self._upper: list[Reals] = []
        self._integer: list[Flags] = []
        self._entries: list[tuple[Ints, Ints, Reals]] = []
        self._least: list[Reals] = []
        self._most: list[Reals] = []
        self.column_count = 0
        self._row_count = 0

    def columns(
        self, count: int, cost: Reals | float = 0.0, upper: Reals | float = INFINITE, *, integer: bool = False
    ) -> Ints:
        """Add columns between 0 and `upper`; returns their numbers."""
        self._cost.append(np.broadcast_to(np.asarray(cost, np.float64), (count,)))
        self._upper.append(np.broadcast_to(np.asarray(upper, np.float64), (count,)))
        self._integer.append(np.full(count, integer, np.bool_))
        self.column_count += count
        return np.arange(self.column_count - count, self.column_count, dtype=np.int64)

    def rows(
        self, count: int, *terms: tuple[Ints, Ints, Reals | float], least: Reals | float, most: Reals | float
    ) -> None:
        """Add rows `least` <= sum of terms <= `most`; a term is (row from 0, column, factor)."""
        for row, column, factor in terms:
            wide = np.broadcast_to(np.asarray(factor, np.float64), row.shape)
            self._entries.append((row + self._row_count, column, wide))
        self._least.append(np.broadcast_to(np.asarray(least, np.float64), (count,)))
        self._most.append(np.broadcast_to(np.asarray(most, np.float64), (count,)))
        self._row_count += count

    def solve(self, gap: float, seconds: float, nodes: int) -> Solution:
        """Solve it with integers, by a search tree.

        Args:
            gap: stop once cost and bound are this close.
            seconds: stop after this time with the best values so far.
            nodes: stop after this number of nodes.
        """
        solver = self._solver(seconds, integers=True)
        solver.setOptionValue("mip_abs_gap", gap)
        solver.setOptionValue("mip_rel_gap", 0.0)
        solver.setOptionValue("mip_max_nodes", nodes)
        solver.run()
        found = _solution(solver)
        bound = float(solver.getInfo().mip_dual_bound)
        return Solution(values=found.values, cost=found.cost, bound=bound)

    def relax(self, seconds: float) -> Solution:
        """Solve it as if no column were an integer."""
        solver = self._solver(seconds, integers=False)
        solver.run()
        return _solution(solver)

    def dive(self, seconds: float, whole: Ints, share: float) -> Solution:
        """Solve it as if no column were an integer, then round some columns, a few at a time, solving it again.

        If rounding leads to a dead end, the values are those before it, some of them still between 0 and 1.

        Args:
            seconds: time limit of each solve.
            whole: columns between 0 and 1 that are to be 0 or 1.
            share: share of the open columns that are rounded up at a time; at least one is.
        """
        solver = self._solver(seconds, integers=False)
        solver.run()
        first = best = _solution(solver)
        most, solved = len(whole), 1
        while len(best.values) and solved < MOST_SOLVED:
            value = best.values[whole]
            open_ = np.nonzero((value > WHOLE) & (value < 1 - WHOLE))[0]
            if not len(open_):
                break
            count = min(most, max(1, int(share * len(open_))))
            up = whole[open_[np.argsort(-value[open_], kind="stable")[:count]]].astype(np.int32)
            _fix(solver, up, 1.0)
            found, solved = _solution(solver), solved + 1
            if not len(found.values):
                # They cannot all be 1: round fewer at a time from now on; a single one becomes 0.
                solver.changeColsBounds(len(up), up, np.zeros(len(up)), np.ones(len(up)))
                _fix(solver, up[:0] if count > 1 else up, 0.0)
                found, most, solved = _solution(solver), max(1, count // FEWER), solved + 1
            if not len(found.values):
                break
            best = found
        return Solution(values=best.values, cost=best.cost, bound=first.bound)

    def _solver(self, seconds: float, *, integers: bool) -> highspy.Highs:
        import highspy

        solver = highspy.Highs()
        for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0), ("time_limit", seconds)):
            solver.setOptionValue(name, value)
        solver.passModel(self._program(integers=integers))
        return solver

    def _program(self, *, integers: bool) -> highspy.HighsLp:
        import highspy

        row, column, factor = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        order = np.lexsort((column, row))
        row, column, factor = row[order], column[order], factor[order]
        # A column that a row names several times counts once, with the sum of its factors.
        new = np.concatenate([np.ones(1, np.bool_), (np.diff(row) != 0) | (np.diff(column) != 0)])
        row, column, factor = row[new], column[new], np.add.reduceat(factor, np.nonzero(new)[0])
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.column_count, self._row_count
        program.col_cost_ = np.concatenate(self._cost)
        program.col_lower_, program.col_upper_ = np.zeros(self.column_count), np.concatenate(self._upper)
        program.row_lower_, program.row_upper_ = np.concatenate(self._least), np.concatenate(self._most)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.searchsorted(row, np.arange(self._row_count + 1)).astype(np.int32)
        program.a_matrix_.index_ = column.astype(np.int32)
        program.a_matrix_.value_ = factor
        if integers:
            kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
            program.integrality_ = [kinds[flag] for flag in np.concatenate(self._integer).tolist()]
        return program


def _fix(solver: highspy.Highs, columns: npt.NDArray[np.int32], value: float) -> None:
    """Set columns to a value and solve again, from where the solver is."""
    wide = np.full(len(columns), value)
    solver.changeColsBounds(len(columns), columns, wide, wide)
    solver.run()


def _solution(solver: highspy.Highs) -> Solution:
    """Return the result of a solver. The bound of a program without integers is its cost."""
    import highspy

    good = solver.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    cost = float(solver.getInfo().objective_function_value) if good else INFINITE
    values = np.array(solver.getSolution().col_value, np.float64) if good else np.zeros(0)
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return Solution(values=values, cost=cost, bound=cost if optimal else 0.0)
