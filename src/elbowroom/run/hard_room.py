"""Room below a hard limit on this process: the budget of a run on RAM follows what was measured.

A container's limit counts the whole process: interpreter, libraries, the records of observed steps, freed memory that
the C library keeps. How much these take is known once a step was recorded. So the budget is set then: to the limit less
what lay outside storages, in the step and after it. A budget that was given is never raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, final

from elbowroom.capture.assemble import StepRead, step_read
from elbowroom.capture.recording.recorder import Recorder, live_ram_bytes
from elbowroom.engine.ram_guard import COPIED_BYTES, KEPT_BYTES, LeastLimit, RamGuard
from elbowroom.engine.residence import Residence
from elbowroom.errors import Infeasible, InvalidPlan
from elbowroom.machine import Machine, TierName
from elbowroom.notices import Once, warn_once
from elbowroom.run.forked import CAN_FORK, NoRoom, forked
from elbowroom.units import format_bytes, format_exact_bytes

FIRST_STEP_BYTES = 64 << 20
"""Bytes that a first step takes besides storages, at most as a rule: its records, small blocks, buffers of files."""
NODE_BYTES = 110_000
"""Bytes that reading a recorded step takes for each node of autograd's graph, at most: torch makes its records then."""


class Needs(NamedTuple):
    """What is known of the memory that steps need, in bytes.

    Attributes:
        seen_bytes: the limit that would have been enough where memory ran out in this step; 0 if it did nowhere.
        captured_bytes: the budget that steps need, as a capture says; 0 if it does not say.
    """

    seen_bytes: int
    captured_bytes: int


class UnsureLimit(NamedTuple):
    """Limit that a refusal named from one request for memory.

    Attributes:
        named_bytes: the limit.
        besides_bytes: what the limit has to leave besides the storages of a step.
    """

    named_bytes: int
    besides_bytes: int


@final
class HardRoom:
    """What storages may hold below a hard limit.

    Args:
        guard: knows the limit.
        residence: knows what else the process holds.
        given_bytes: the budget that was given; None if it is `auto`.
    """

    def __init__(self, guard: RamGuard, residence: Residence, given_bytes: int | None) -> None:
        self._guard = guard
        self._residence = residence
        self._given_bytes = given_bytes
        self._room_bytes = self._nodes = self._left_bytes = self._begun_bytes = self._named_bytes = 0
        self._once = Once()

    def read(self, recorder: Recorder, tier: TierName, machine: Machine) -> StepRead | None:
        """Read a recording in a child, and throw it away here. None if there is no room for that."""
        if not CAN_FORK:
            return step_read(recorder.stop(), tier, machine)
        found: StepRead | None = None
        self._nodes, self._left_bytes = recorder.nodes, self._guard.own_left_bytes()
        try:
            with suppress(NoRoom):
                found = forked(lambda: replace(step_read(recorder.stop(), tier, machine), happenings=()), self._guard)
        finally:
            happenings = recorder.drop()
        return None if found is None else replace(found, happenings=happenings)

    def apart(self, work: Callable[[], Any], shared: Sequence[object]) -> Any:
        """Return what planning finds in a child. See `forked`."""
        return forked(work, self._guard, shared) if CAN_FORK else work()

    def was_lowered(self) -> bool:
        """Return whether the limit is lower than when this was asked last."""
        return self._guard.was_lowered()

    def is_short(self, what: str, help_: str) -> None:
        """Warn once that steps of a kind follow no plan, and say what would help."""
        warn_once(
            self._once,
            "short",
            f"elbowroom: {self._guard.limit.name} allows {format_bytes(self._guard.limit.limit_bytes)}, and {what} "
            "below it: storages leave in each step as early as they can, as in the first one, and come back where they "
            f"are read. {help_}",
        )

    def help_of(self, least_bytes: int) -> str:
        """Return a sentence on the limit that would do.

        Args:
            least_bytes: the least budget of a plan, in bytes; 0 if there was no room to read or to plan.
        """
        limit = self._guard.limit
        if least_bytes:
            needed_bytes = limit.limit_bytes + max(0, least_bytes - self._room_bytes)
            return f"A limit of {format_exact_bytes(needed_bytes)} would do"
        if not self._nodes:
            return "A higher limit makes it faster"
        reading_bytes = COPIED_BYTES + self._nodes * NODE_BYTES
        needed_bytes = limit.limit_bytes + KEPT_BYTES + max(0, reading_bytes - self._left_bytes)
        return (
            f"Reading the records of its {self._nodes:,} nodes takes up to {format_bytes(reading_bytes)}, where "
            f"{format_bytes(self._left_bytes)} are left. A limit of {format_exact_bytes(needed_bytes)} would do"
        )

    def sets(self, budget_bytes: int) -> bool:
        """Return whether the limit has set this budget, and not the user."""
        return budget_bytes == self._room_bytes

    def most_bytes(self) -> int:
        """Return the most that storages may come to hold, before a step has shown what else is needed."""
        most_bytes = self._guard.own_left_bytes() + live_ram_bytes()
        return most_bytes if self._given_bytes is None else min(most_bytes, self._given_bytes)

    def budget_bytes(self, peak_bytes: int) -> int:
        """Return the budget from now on, after a recorded step in which storages held `peak_bytes` at most."""
        room_bytes = self._residence.room_bytes(live_ram_bytes, peak_bytes)
        assert room_bytes is not None, "there is a guard"
        self._room_bytes = room_bytes
        if self._given_bytes is None or room_bytes < self._given_bytes:
            if self._given_bytes is not None:
                self._warn(self._given_bytes)
            return room_bytes
        return self._given_bytes

    def budget_after_plan(self, peak_bytes: int, budget_bytes: int) -> int:
        """Return the budget from now on, after a step under a plan for `budget_bytes`: that, if the limit allows it."""
        return min(budget_bytes, self.budget_bytes(peak_bytes)) if self._residence.short_bytes() else budget_bytes

    def _warn(self, given_bytes: int) -> None:
        warn_once(
            self._once,
            "limit",
            f"elbowroom: given a budget of {format_bytes(given_bytes)}, and {self._guard.limit.name} allows "
            f"{format_bytes(self._guard.limit.limit_bytes)}, of which {format_bytes(self._room_bytes)} are left for "
            "storages; the run keeps to these. Raise the limit, or give a smaller budget",
        )

    def refusal(self, problem: BaseException, budget_bytes: int, needs: Needs) -> Infeasible | None:
        """Return what to raise for an error that a refused request for memory caused; None for any other error."""
        captured = self._limit_for(needs.captured_bytes) if needs.captured_bytes else 0
        least = LeastLimit(max(needs.seen_bytes, captured), is_captured=captured > needs.seen_bytes)
        found = self._guard.refusal(problem, budget_bytes, least if least.limit_bytes else None)
        if found is not None and not needs.captured_bytes:
            self._named_bytes = self._guard.limit.limit_bytes + found.least_feasible_bytes - budget_bytes
        return found

    @property
    def unsure(self) -> UnsureLimit | None:
        """The limit that the last refusal named, if no capture has said what steps need; else None."""
        if not self._begun_bytes or not self._named_bytes:
            return None
        return UnsureLimit(self._named_bytes, self._besides_bytes)

    @property
    def _besides_bytes(self) -> int:
        """What the limit has to leave besides the storages of a first step, once one has begun."""
        return self._guard.limit.limit_bytes + FIRST_STEP_BYTES - self._begun_bytes

    def begins(self) -> None:
        """Note what the first step may hold where it begins: the script has loaded its libraries and its data."""
        if not self._begun_bytes:
            self._begun_bytes = self._guard.own_left_bytes() + live_ram_bytes()

    def _limit_for(self, budget_bytes: int) -> int:
        """Return the limit in bytes that leaves a first step this much for storages; 0 if none has begun."""
        if not self._begun_bytes:
            return 0
        return max(self._guard.limit.limit_bytes, self._besides_bytes + budget_bytes)

    def refused_beforehand(self, problem: Infeasible) -> Infeasible:
        """Return the refusal of a capture, which knows of storages alone."""
        if problem.budget_bytes == self._given_bytes:
            return problem
        said, needed_bytes = self._of_limit(problem)
        needed_bytes = max(needed_bytes, self._limit_for(problem.least_feasible_bytes))
        return problem.reworded(f"{said}\nA limit of {format_exact_bytes(needed_bytes)} is the least that may do.")

    def explained(self, problem: Infeasible | InvalidPlan) -> Infeasible | InvalidPlan:
        """Return a refusal that names the limit, if the limit set the budget."""
        if not isinstance(problem, Infeasible) or problem.budget_bytes != self._room_bytes:
            return problem
        said, needed_bytes = self._of_limit(problem)
        return problem.reworded(
            f"{said}\nThe rest is what the process holds besides storages.\n"
            f"A limit of {format_exact_bytes(needed_bytes)} would do."
        )

    def _of_limit(self, problem: Infeasible) -> tuple[str, int]:
        """Return a refusal's text with the limit named, and the limit in bytes that its least budget needs."""
        limit = self._guard.limit
        said = f"{problem}\nThe budget is what {limit.name} leaves of its {format_exact_bytes(limit.limit_bytes)}."
        return said, limit.limit_bytes + problem.least_feasible_bytes - problem.budget_bytes
