"""Limit of the device's allocator during the steps of a plan that keeps within the budget only at a limit.

Note: [The budget as a limit]
A plan says what the blocks of a step take. What the allocator reserves for them depends on where they lie. With the
budget as its limit, it gives free memory back to the driver before it exceeds the budget. Torch counts a whole block
there, even where pages for most of it are mapped. So the limit is for plans that were simulated to fit at it, and for
those whose steps held more than the budget and for which no smaller plan was found. Other plans need none. Code between
steps runs without a limit.

A step may begin with more on the device than its plan was simulated with. That step runs without a limit, with a
warning, if the plan leaves no room for it. A step that proves recomputes has no limit either. It also copies out what
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

    def begin(self, known: StepKind, limit_bytes: int) -> None:
        """Begin a step that follows a plan, once what leaves as it begins has left.

        Args:
            known: its kind.
            limit_bytes: the most that the allocator may reserve.
        """
        if known.proofs or not known.course.at_limit:
            return
        page = page_bytes(known.machine.allocator)
        more_bytes = self._residence.allocated_bytes() - known.course.begins_bytes
        if more_bytes > limit_bytes - known.course.peak_bytes + page:
            self._surprises.lies_there(more_bytes)
        else:
            self._residence.limit(limit_bytes - page)  # the allocator may exceed it by a part of a page

    def lift(self) -> bool:
        """Lift the limit: the step has ended, or is not the one that its plan was made for.

        Returns whether there was one.
        """
        return self._residence.limit(None)
