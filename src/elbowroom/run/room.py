"""Room: what `within` yields, for the user to look at a run and to steer it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, final

from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.run.account import StepFigures
from elbowroom.run.training import TrainingRun
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace

if TYPE_CHECKING:
    from torch import nn

Model = TypeVar("Model", bound="nn.Module")


@final
class Room:
    """Training inside a budget of bytes. Its values change with each step, and stay when the room is closed."""

    __slots__ = ("__weakref__", "_run")

    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    @property
    def trace(self) -> Trace | None:
        """Trace of the step that ran last; None before the first plan."""
        return self._run.trace

    @property
    def plan(self) -> Plan | None:
        """Plan of the step that ran last; None before the first plan."""
        return self._run.plan

    @property
    def machine(self) -> Machine:
        """This computer, with the rates that the transfers of the run show."""
        return self._run.machine

    @property
    def simulated(self) -> Timeline | None:
        """Simulated timeline of the last step's plan; None before the first plan."""
        return self._run.simulated

    @property
    def measured(self) -> Timeline | None:
        """Timeline of the last step that was recorded under its plan; see `measure_next_step`."""
        return self._run.measured

    @property
    def steps(self) -> list[StepFigures]:
        """Figures of the steps that have ended; a long training keeps those of the last few thousand."""
        return self._run.steps

    @property
    def beyond_bytes(self) -> int:
        """Most bytes beyond the budget that a CUDA device held when a step began."""
        return self._run.beyond_bytes

    def place(self, model: Model) -> Model:
        """Move a model to the device, and let the parameters leave that the plan may have away.

        Inside the room models are placed as they are made or moved. So this is for one that was there before: in RAM,
        or on the device in the hands of a loader. One parameter after the other goes to the device, and leaves. Without
        "parameter" among `allow` all stay there. Call it between two steps.

        Args:
            model: a module, with the bytes of all its parameters.

        Returns:
            The model itself.

        Raises:
            UsageError: it is no module, has parameters on the meta device, or a step is under way.
        """
        self._run.place(model)
        return model

    def summary(self) -> str:
        """Return what the run held, kept, swapped and recomputed, as lines of text."""
        return self._run.summary()

    def measure_next_step(self) -> None:
        """Record the next planned step; its timeline is in `measured` once it has ended."""
        self._run.measure_next_step()

    def log_to(self, writer: object) -> None:
        """Write the figures of each step that ends from now on: its time, its stall, what moved, and the memory.

        The names begin with "elbowroom/" and end with the unit. Steps of a training that fits come in groups: their
        times are written when the next step is checked. A writer that fails gets no more, with a warning.

        Args:
            writer: TensorBoard's SummaryWriter, a run of Weights & Biases, or an object with one of their methods:
                `add_scalar(name, value, step)` or `log(values, step=step)`.

        Raises:
            UsageError: it has neither.
        """
        self._run.log_to(writer)

    def end_step(self) -> None:
        """End a step of the training here. For trainings without a torch.optim.Optimizer."""
        self._run.end_step()


def run_of(room: Room) -> TrainingRun:
    """Return the run of a room: for the command line, and for tests."""
    return room._run  # noqa: SLF001 - private to users alone
