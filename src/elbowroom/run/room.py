"""The room: what `within` yields, for the user to look at a run and to steer it."""

from __future__ import annotations

from typing import final

from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.run.account import StepFigures
from elbowroom.run.training import TrainingRun
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace


@final
class Room:
    """A training inside a budget of bytes. Its values change with each step, and stay when the room is closed."""

    __slots__ = ("__weakref__", "_run")

    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    @property
    def trace(self) -> Trace | None:
        """Of the step that ran last; None before the first is planned."""
        return self._run.trace

    @property
    def plan(self) -> Plan | None:
        """Of the step that ran last; None before the first is planned."""
        return self._run.plan

    @property
    def machine(self) -> Machine:
        """This computer, with the rates that the transfers of the run show."""
        return self._run.machine

    @property
    def simulated(self) -> Timeline | None:
        """What the plan of the last step should do; None before the first is planned."""
        return self._run.simulated

    @property
    def measured(self) -> Timeline | None:
        """The last step that was recorded under its plan; see `measure_next_step`."""
        return self._run.measured

    @property
    def steps(self) -> list[StepFigures]:
        """Figures of the steps that have ended; of a long training those of the last few thousand."""
        return self._run.steps

    @property
    def beyond_bytes(self) -> int:
        """By how much a CUDA device has held more than the budget where a step began, at most."""
        return self._run.beyond_bytes

    def summary(self) -> str:
        """Lines for people: what the run held, kept, swapped and recomputed."""
        return self._run.summary()

    def measure_next_step(self) -> None:
        """Record the next planned step; its timeline is in `measured` once it has ended."""
        self._run.measure_next_step()

    def end_step(self) -> None:
        """Say that a step of the training ends here, where no torch.optim.Optimizer says so."""
        self._run.end_step()


def run_of(room: Room) -> TrainingRun:
    """What goes on in a room: for the command line, and for tests."""
    return room._run  # noqa: SLF001 - private to users alone
