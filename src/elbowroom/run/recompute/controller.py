"""Recomputes of a run: whether it may record its calls, and what carries out the recomputes of its plans.

Note: [Compiled code]
The compiler's guards look at dispatch keys, the recorder's among them. A region that is called while calls are recorded
would be compiled anew. So a run records no calls once a recorded step went through torch.compile, as a module or as a
function. What else the process has compiled does not matter.
"""

from __future__ import annotations

from typing import final

from elbowroom.engine.executor import Executor
from elbowroom.errors import InvalidPlan, UsageError
from elbowroom.plan import Plan
from elbowroom.run.recompute.planning import Planned
from elbowroom.run.recompute.recompute_run import PROOFS, Rebuilder
from elbowroom.run.step_kinds import StepKind
from elbowroom.torch_compat.cuda_allocator import compiler_graphs


@final
class Recomputing:
    """State of recomputes, for all kinds of steps.

    Args:
        executor: moves the storages.
        wanted: whether plans may recompute.
    """

    def __init__(self, executor: Executor, *, wanted: bool) -> None:
        self._executor = executor
        self._wanted = wanted
        self._banned: frozenset[int] = frozenset()
        self._compiled = False

    @property
    def allowed(self) -> bool:
        """Whether plans may recompute from now on."""
        return self._wanted and not self._compiled

    @property
    def banned(self) -> frozenset[int]:
        """Saves that no plan may drop."""
        return self._banned

    def recorded(self, compiled: bool, given: Plan | None) -> None:
        """Learn from a recorded step whether recomputes are possible: see Note: [Compiled code].

        Args:
            compiled: whether a part of it went through torch.compile.
            given: the plan that the run was given.

        Raises:
            InvalidPlan: the given plan has recomputes, which such a run cannot carry out.
            UsageError: torch.compile captures the code as CUDA graphs.
        """
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
        """Allow no recomputes in this run from now on."""
        self._wanted = False

    def ban(self, saves: set[int]) -> None:
        """Let no plan drop these saves again: they were rebuilt wrong."""
        self._banned |= saves

    def carried_out(self, planned: Planned) -> StepKind:
        """Return the planned kind of step, with a rebuilder for its recomputes."""
        known, programs, calls = planned.known, planned.programs, planned.calls
        known.refined, known.calls = True, calls
        known.rebuilder, known.proofs = Rebuilder(self._executor, programs, calls), PROOFS
        return known
