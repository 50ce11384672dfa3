"""The limit of the device's allocator while the steps of a plan run that needs one.

Note: [What a plan does not know of]
A plan was simulated with the tensors that were on the device when its first step began. If a later step begins with
more, those bytes would use up the limit, and the step would run out of memory. If at most `LITTLE_BYTES` more are
allocated, the limit grows by their segments, up to `SPARE_BYTES`, which plans leave free. Otherwise that step runs
without a limit, with a warning. A step that proves recomputes has no limit either: it also copies out what it drops,
and works out checksums, which no plan counts.
"""

from __future__ import annotations

from typing import final

from elbowroom.engine.residence import Residence
from elbowroom.planners.budget.run_budget import SPARE_BYTES
from elbowroom.run.run_warnings import Surprises
from elbowroom.run.step_kinds import StepKind

LITTLE_BYTES = 1 << 18
"""Less than what has a segment of its own: the losses of a few hundred steps."""


@final
class AllocatorLimit:
    """Sets and lifts it.

    Args:
        residence: of the device.
        surprises: are told.
    """

    def __init__(self, residence: Residence, surprises: Surprises) -> None:
        self._residence = residence
        self._surprises = surprises

    def begin(self, known: StepKind) -> None:
        """A step begins that follows a plan. It has a limit if it is a steady step that proves no recomputes."""
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
        """The step has ended, or is another one than its plan was made for."""
        self._residence.limit(None)
