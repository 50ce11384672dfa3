"""Limit of the device's allocator during the steps of a plan that keeps within the budget only at a limit.

Note: [The budget as a limit]
A plan says what the blocks of a step take. What the allocator reserves for them depends on where they lie. With the
budget as its limit, it gives free memory back to the driver before it exceeds the budget. Torch counts a whole block
there, even where pages for most of it are mapped. So the limit is for plans that were simulated to fit at it, and for
those whose steps held more than the budget and for which no smaller plan was found. Other plans need none. Code between
steps runs without a limit.

The limit is the one that the plan was simulated with. Where memory runs out below it, the budget takes its place. A
step may begin with more on the device than its plan was simulated with. That step runs without a limit, with a warning,
if the plan leaves no room for it. A step that proves recomputes has no limit either. It also copies out what
it drops, and computes checksums, which no plan counts.
"""

from __future__ import annotations

from typing import final

from elbowroom.engine.residence import Residence
from elbowroom.planners.budget.run_budget import page_bytes
from elbowroom.run.run_warnings import Surprises
from elbowroom.run.step_kinds import StepKind


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
        self._wider_bytes = 0

    def begin(self, known: StepKind, most_bytes: int) -> None:
        """Begin a step that follows a plan, once what leaves as it begins has left and the earlier limit is lifted.

        Args:
            known: its kind.
            most_bytes: the most that the allocator may reserve.
        """
        if known.proofs or not known.course.at_limit:
            return
        more_bytes = max(0, self._residence.allocated_bytes() - known.course.begins_bytes)
        limit_bytes = known.course.peak_bytes + more_bytes
        if limit_bytes > most_bytes:
            self._surprises.lies_there(more_bytes)
            return
        self._residence.limit(limit_bytes)
        wider_bytes = most_bytes - page_bytes(known.machine.allocator)  # it may be exceeded by a part of a page
        self._wider_bytes = wider_bytes if wider_bytes > limit_bytes else 0

    def widen(self) -> bool:
        """Raise the limit to the budget: memory ran out below it. Returns whether that is more."""
        wider_bytes, self._wider_bytes = self._wider_bytes, 0
        return wider_bytes > 0 and self._residence.limit(wider_bytes)

    def lift(self) -> bool:
        """Lift the limit: the step has ended, or is not the one that its plan was made for.

        Returns whether there was one.
        """
        self._wider_bytes = 0
        return self._residence.limit(None)
