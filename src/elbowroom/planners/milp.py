"""milp: a mixed-integer linear program, collected in pieces and solved by HiGHS.

Computes: values of the columns that minimise the cost, and a lower bound of it. Reference: Huangfu and Hall,
"Parallelizing the dual revised simplex method" (Math. Prog. Comp. 2018), which describes HiGHS. Optimal: within the
absolute gap asked for, unless nodes or seconds run out first; then `Solution.bound` is still a bound.
Deterministic: one thread, one seed; work is limited in nodes of the search tree, and seconds only stop what is stuck.
Cost: exponential in the integers at worst.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from elbowroom.lifetimes import Flags, Ints

if TYPE_CHECKING:
    import highspy

Reals = npt.NDArray[np.float64]
INFINITE = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """What the solver found.

    Attributes:
        values: per column; empty where it found nothing that meets the rows.
        cost: of these values; infinite where there are none.
        bound: no values cost less.
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
        self._column_count = 0
        self._row_count = 0

    def columns(
        self, count: int, cost: Reals | float = 0.0, upper: Reals | float = INFINITE, *, integer: bool = False
    ) -> Ints:
        """Add columns between 0 and `upper`; returns their numbers."""
        self._cost.append(np.broadcast_to(np.asarray(cost, np.float64), (count,)))
        self._upper.append(np.broadcast_to(np.asarray(upper, np.float64), (count,)))
        self._integer.append(np.full(count, integer, np.bool_))
        self._column_count += count
        return np.arange(self._column_count - count, self._column_count, dtype=np.int64)

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

    def solve(self, gap: float, seconds: float, nodes: int, start: Reals | None = None) -> Solution:
        """Solve it.

        Args:
            gap: stop once cost and bound are so close.
            seconds: stop then with the best values so far.
            nodes: stop after so many nodes of the search tree; 0 solves the relaxation, without integers.
            start: values to begin with.
        """
        import highspy

        solver = highspy.Highs()
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", 0),
            ("time_limit", seconds),
            ("mip_abs_gap", gap),
            ("mip_rel_gap", 0.0),
            ("mip_max_nodes", nodes),
        ):
            solver.setOptionValue(name, value)
        solver.passModel(self._program(integers=nodes > 0))
        if start is not None and nodes > 0:
            first = highspy.HighsSolution()
            first.col_value = start.tolist()
            solver.setSolution(first)
        solver.run()
        info, found = solver.getInfo(), solver.getSolution()
        good = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        whole = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        cost = float(info.objective_function_value) if good else INFINITE
        bound = float(info.mip_dual_bound) if nodes > 0 else (cost if whole else 0.0)
        values = np.array(found.col_value, np.float64) if good else np.zeros(0)
        return Solution(values=values, cost=cost, bound=bound)

    def _program(self, *, integers: bool) -> highspy.HighsLp:
        import highspy

        row, column, factor = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        order = np.lexsort((column, row))
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self._column_count, self._row_count
        program.col_cost_ = np.concatenate(self._cost)
        program.col_lower_, program.col_upper_ = np.zeros(self._column_count), np.concatenate(self._upper)
        program.row_lower_, program.row_upper_ = np.concatenate(self._least), np.concatenate(self._most)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.searchsorted(row[order], np.arange(self._row_count + 1)).astype(np.int32)
        program.a_matrix_.index_ = column[order].astype(np.int32)
        program.a_matrix_.value_ = factor[order]
        if integers:
            kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
            program.integrality_ = [kinds[flag] for flag in np.concatenate(self._integer).tolist()]
        return program
