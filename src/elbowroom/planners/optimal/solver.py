"""solving: a linear program, collected in pieces and solved by HiGHS.

Computes: values of the columns that minimise the cost, and a lower bound of it. Reference: Huangfu and Hall,
"Parallelizing the dual revised simplex method" (Math. Prog. Comp. 2018), which describes HiGHS. Optimal: always, unless
seconds run out first; then there is no bound. Deterministic: one thread, one seed; seconds only stop a solve that is
stuck. Cost: that of the simplex method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from elbowroom.step.last_step import Ints

if TYPE_CHECKING:
    import highspy

Reals = npt.NDArray[np.float64]
INFINITE = float("inf")


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
        self._entries: list[tuple[Ints, Ints, Reals]] = []
        self._least: list[Reals] = []
        self._most: list[Reals] = []
        self.column_count = 0
        self._row_count = 0

    def columns(self, count: int, cost: Reals | float = 0.0, upper: Reals | float = INFINITE) -> Ints:
        """Add columns between 0 and `upper`; returns their numbers."""
        self._cost.append(np.broadcast_to(np.asarray(cost, np.float64), (count,)))
        self._upper.append(np.broadcast_to(np.asarray(upper, np.float64), (count,)))
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

    def solve(self, seconds: float) -> Solution:
        """Solve it. Stops after this time; there is no solution then."""
        import highspy

        solver = highspy.Highs()
        for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0), ("time_limit", seconds)):
            solver.setOptionValue(name, value)
        solver.passModel(self._program())
        solver.run()
        return _solution(solver)

    def _program(self) -> highspy.HighsLp:
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
        return program


def _solution(solver: highspy.Highs) -> Solution:
    """Return the result of a solver. Its bound is its cost."""
    import highspy

    good = solver.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    cost = float(solver.getInfo().objective_function_value) if good else INFINITE
    values = np.array(solver.getSolution().col_value, np.float64) if good else np.zeros(0)
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return Solution(values=values, cost=cost, bound=cost if optimal else 0.0)
