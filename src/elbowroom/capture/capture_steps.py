"""Capture steps: `capture()` records every step of a training, really run on the CPU or on a virtual GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, final

import torch

from elbowroom.capture.assemble import Assembly
from elbowroom.capture.in_parts import PartsWatch
from elbowroom.capture.recording.never_moved import StorageSet
from elbowroom.capture.recording.observing_director import Observing, OptimizerWatch, optimizer_began, optimizer_ended
from elbowroom.capture.recording.recorder import Recorder
from elbowroom.capture.steady import with_inputs
from elbowroom.engine.conductor import Conductor
from elbowroom.engine.executor import Executor
from elbowroom.engine.gradients import Gradients
from elbowroom.engine.optimizer_parts import Portion, movable
from elbowroom.engine.saved_tensors import Hooks
from elbowroom.engine.tiers.base import HostTier
from elbowroom.errors import CaptureError, UsageError
from elbowroom.machine import Machine
from elbowroom.step.schedule import Action
from elbowroom.trace import Trace


def capture_steps(
    setup: Callable[[], Callable[[], Any]],
    machine: str | Machine,
    steps: int,
    min_size_bytes: int,
    in_parts: bool,
) -> Trace:
    """See `elbowroom.capture`."""
    if type(steps) is not int or steps < 2:
        raise UsageError(f"capture: given steps={steps!r}; allowed is an int of at least 2: the first is not steady")
    if machine != "here":
        target = machine if isinstance(machine, Machine) else Machine.of(machine)
        return _on_virtual(setup, target, steps, min_size_bytes if in_parts else None)
    step = _step_of(setup)
    executor = Executor(HostTier())
    observing = Observing(executor, StorageSet())
    gradients = Gradients(executor, _Alone(observing), min_size_bytes)
    gradients.wanted = in_parts
    parts = _parts(observing, executor.device, gradients, min_size_bytes if in_parts else None)
    watch = OptimizerWatch(parts.meets, lambda optimizer: optimizer_ended(observing.recorder, optimizer))
    recorder = observing.record()
    if recorder is None:
        raise CaptureError("capture: torch's profiler is running, and only one can; stop it, then capture")
    try:
        with Hooks(executor, observing, min_size_bytes).installed():
            for _ in range(steps):
                gradients.begin_step(None)
                step()
                recorder.step_ends()
    finally:
        watch.close()
        parts.close()
        observing.recorder = None
        recording = recorder.stop()
        gradients.close()
    return with_inputs(Assembly(recording, "host").trace())


@final
class _Alone(Conductor):
    """Conductor of a capture: every step is observed."""

    def __init__(self, observing: Observing) -> None:
        self._observing = observing

    def known(self) -> None:
        return None

    def recorder(self) -> Recorder | None:
        return self._observing.recorder

    def aside(self) -> AbstractContextManager[None]:
        return self._observing.aside()

    def act(self, action: Action | None) -> None:
        """Do nothing, as there is no plan."""

    def surprised_by(self, what: str) -> None:
        """Do nothing, as no plan expects anything."""


def _parts(observing: Observing, device: torch.device, gradients: Gradients, min_size_bytes: int | None) -> PartsWatch:
    """Carry out optimizers' steps in parts, which are reported to the recorder."""

    def begins(optimizer: torch.optim.Optimizer, portion: Portion) -> None:
        if observing.recorder is not None:
            observing.recorder.part_begins()
        gradients.part_begins(optimizer, portion)

    def ends(optimizer: torch.optim.Optimizer, portion: Portion) -> None:
        if observing.recorder is not None:
            states = movable(optimizer, portion, device, {}, max(1, min_size_bytes or 0))
            observing.recorder.part_ends([(each.storage, each.dtype) for each in states])
            found = gradients.of_part(portion)
            gradients.note(found)
            gradients.part_ends(found, 0, None)

    return PartsWatch(lambda _: optimizer_began(observing.recorder), min_size_bytes, begins, ends)


def _step_of(setup: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    step = setup()
    if not callable(step):
        raise UsageError(f"capture: setup() returned {type(step).__name__}; allowed is the function that does one step")
    return step


def _on_virtual(
    setup: Callable[[], Callable[[], Any]], machine: Machine, steps: int, min_size_bytes: int | None
) -> Trace:
    """Record the wanted number of steps on a virtual GPU; that may take more or fewer calls of the step function."""
    from elbowroom.capture.virtual import VirtualDevice

    if not machine.compute_capability:
        raise UsageError(
            f"capture: given machine {machine.name!r}, which has no CUDA GPU; allowed are 'here' and such with one; "
            "take a name of `elbowroom machine --list`"
        )
    with VirtualDevice(machine, steps, min_size_bytes=min_size_bytes) as device:
        step = _step_of(setup)
        for _ in range(steps):
            step()
    return device.trace()
