"""Capture: a running step becomes a Trace. torch is imported when a capture begins, not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elbowroom.errors import UsageError
from elbowroom.machine import Machine
from elbowroom.step.handed_gradients import without_handed
from elbowroom.step.least_size import LEAST_BYTES
from elbowroom.step.parameter_uses import with_uses
from elbowroom.trace import Trace
from elbowroom.units import parse_bytes

__all__ = ["capture"]


def capture(
    setup: Callable[[], Callable[[], Any]],
    machine: str | Machine = "here",
    steps: int = 3,
    min_size: int | str = LEAST_BYTES,
    in_parts: bool = False,
    parameters: bool = False,
) -> Trace:
    """Run a few training steps and record what they do: on this computer, or on a virtual GPU.

    With `machine="here"` the steps really run, once, with their own numbers. Every saved storage of at least
    `min_size` is copied when it is saved. So the run needs that much more time and RAM than the training itself.
    Any other machine is a GPU that need not be there. Inside `setup` and the step, "cuda" is then a device without
    bytes, on which nothing is computed. The trace has the allocations of the CUDA build of torch
    (docs/virtual-device.md).

    Args:
        setup: builds model, optimizer and data and returns the function that does one step.
        machine: "here", a GPU of the database in any spelling, or a Machine.
        steps: how many steps to record, at least 2: the last one is the steady state.
        min_size: smaller storages are recorded, but not as saved; bytes, or text such as "4MiB".
        in_parts: whether the steps of optimizers are carried out in parts, as in a run that swaps their states. A plan
            that swaps states needs such a trace. An estimate needs False: an optimizer that updates lists of tensors
            takes more memory when its step is carried out whole.
        parameters: whether each op that uses parameters is a place at which they may leave or come back. A plan that
            swaps parameters needs such a trace. Not with "here": a run records its own.

    Returns:
        The trace of all steps.

    Raises:
        UsageError: `machine`, `steps` or what `setup` returns is not allowed.
        CaptureError: a step did nothing that can be recorded.
    """
    from elbowroom.capture.capture_steps import capture_steps

    if parameters and machine == "here":
        raise UsageError(
            'capture: given parameters=True with machine="here"; allowed is a GPU by name, or to leave it out'
        )
    least_bytes = parse_bytes(min_size)
    found = capture_steps(setup, machine, steps, least_bytes, in_parts)
    return with_uses(found, least_bytes) if parameters else without_handed(found)
