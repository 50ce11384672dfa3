"""capture(): every step of a training, recorded in one go: on the CPU for real, or on a virtual GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elbowroom.capture.assemble import Assembly
from elbowroom.capture.observe import Observing, OptimizerWatch, optimizer_began, optimizer_ended
from elbowroom.capture.reserved import Reserved
from elbowroom.errors import CaptureError, UsageError
from elbowroom.machine import Machine
from elbowroom.runtime.executor import Executor
from elbowroom.runtime.hooks import Hooks
from elbowroom.runtime.tiers import HostTier
from elbowroom.trace import Trace


def capture_steps(
    setup: Callable[[], Callable[[], Any]], machine: str | Machine, steps: int, min_size_bytes: int
) -> Trace:
    """See `elbowroom.capture`."""
    if type(steps) is not int or steps < 2:
        raise UsageError(f"capture: given steps={steps!r}; allowed is an int of at least 2: the first is not steady")
    if machine != "here":
        return _on_virtual(setup, machine if isinstance(machine, Machine) else Machine.of(machine), steps)
    step = _step_of(setup)
    executor = Executor(HostTier())
    observing = Observing(executor, Reserved())
    watch = OptimizerWatch(
        lambda _: optimizer_began(observing.recorder), lambda optimizer: optimizer_ended(observing.recorder, optimizer)
    )
    recorder = observing.record()
    if recorder is None:
        raise CaptureError("capture: torch's profiler is running, and only one can; stop it, then capture")
    try:
        with Hooks(executor, observing, min_size_bytes).installed():
            for _ in range(steps):
                step()
                recorder.step_ends()
    finally:
        watch.close()
        observing.recorder = None
        recording = recorder.stop()
    return Assembly(recording, "host").trace()


def _step_of(setup: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    step = setup()
    if not callable(step):
        raise UsageError(f"capture: setup() returned {type(step).__name__}; allowed is the function that does one step")
    return step


def _on_virtual(setup: Callable[[], Callable[[], Any]], machine: Machine, steps: int) -> Trace:
    """Steps of a virtual GPU: as many as are asked for, however many calls of the step function that takes."""
    from elbowroom.capture.virtual import VirtualDevice

    if not machine.compute_capability:
        raise UsageError(
            f"capture: given machine {machine.name!r}, which has no CUDA GPU; allowed are 'here' and such with one; "
            "take a name of `elbowroom machine --list`"
        )
    with VirtualDevice(machine, steps) as device:
        step = _step_of(setup)
        for _ in range(steps):
            step()
    return device.trace()
