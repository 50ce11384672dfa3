"""Limit of the device's allocator during the steps of a plan that needs one.

Note: [What a plan does not know of]
A plan was simulated with the tensors on the device at its first step. A later step may begin with more. Those bytes
would use up the limit, and the step would run out of memory. If at most `LITTLE_BYTES` more are allocated, the limit
grows by their segments, up to `SPARE_BYTES`, which plans leave free. Otherwise that step runs without a limit, with a
warning. A step that proves recomputes has no limit either: it also copies out what it drops, and computes checksums,
which no plan counts.
"""

from __future__ import annotations

from typing import final

from elbowroom.engine.residence import Residence
from elbowroom.planners.budget.run_budget import SPARE_BYTES
from elbowroom.run.run_warnings import Surprises
from elbowroom.run.step_kinds import StepKind

LITTLE_BYTES = 1 << 18
"""Bytes by which a later step may begin with more: the losses of a few hundred steps. Less than a segment."""


@final
class AllocatorLimit:
    """Sets and lifts the limit.

    Args:
        residence: the device's memory.
        surprises: warns if a step begins with more than its plan was simulated with.
    """

    def __init__(self, residence: Residence, surprises: Surprises) -> None:
        self._residence = residence
        self._surprises = surprises

    def begin(self, known: StepKind) -> None:
        """Begin a step that follows a plan. It has a limit if it is a steady step that proves no recomputes."""
        limit_bytes = known.course.limit_bytes
        if limit_bytes is None or known.proofs or not known.refined:
            return
        self._residence.empty()
        found = self._residence.held()
        if known.found is None:
            known.found = found
        more_bytes = found.allocated_bytes - known.found.allocated_bytes
        if more_bytes > LITTLE_BYTES:
            self._surprises.lies_there(more_bytes)
            return
        segments_bytes = found.reserved_bytes - known.found.reserved_bytes
        self._residence.limit(limit_bytes + max(0, min(segments_bytes, SPARE_BYTES)))

    def lift(self) -> None:
        """Lift the limit: the step has ended, or is not the one that its plan was made for."""
        self._residence.limit(None)
