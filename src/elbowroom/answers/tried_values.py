"""Tried values: what a training needs with each value of a knob that a search has captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from elbowroom.answers.estimate import Estimate, estimate
from elbowroom.answers.slowdown import SlowdownNeed
from elbowroom.machine import Machine
from elbowroom.trace import Trace


@final
class TriedValues:
    """The values that were tried.

    Args:
        captured: captures the training with a value.
        machine: the machine that the training is to fit.
        planned: computes what a step with a value needs within a slowdown; None if nothing is planned.
        in_parts: captures the training with a value for these plans, with optimizers' steps in parts; None if they
            move no states, gradients or parameters.

    Attributes:
        answers: by value, what the training needs with everything kept.
        planned: by value, what the training needs within the slowdown.
    """

    def __init__(
        self,
        captured: Callable[[int], Trace],
        machine: Machine,
        planned: Callable[[int, Trace], SlowdownNeed] | None,
        in_parts: Callable[[int], Trace] | None = None,
    ) -> None:
        self.answers: dict[int, Estimate] = {}
        self.planned: dict[int, SlowdownNeed] = {}
        self._captured = captured
        self._machine = machine
        self._plan, self._in_parts = planned, in_parts
        self._marks: dict[int, int] = {}

    def needed_bytes(self, value: int) -> int:
        """Device memory that a value needs. Raises what capturing and planning raise."""
        trace = self._captured(value)
        self._marks[value] = hash(trace.events)
        answer = self.answers[value] = estimate(trace, self._machine, plans=False)
        if self._plan is None:
            return answer.needed_bytes
        planned = self.planned[value] = self._plan(value, self._in_parts(value) if self._in_parts else trace)
        return planned.needed_bytes

    def slowdown(self, value: int) -> float | None:
        """Slowdown of a value that was tried, within the machine's memory; None if no plan fits, or none is made."""
        return self.planned[value].slowdown if value in self.planned else None

    def is_same(self, one: int, other: int) -> bool:
        """Whether the captures with two values have the same allocations and frees, byte for byte."""
        return self._marks[one] == self._marks[other]
