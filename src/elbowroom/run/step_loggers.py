"""Step loggers: figures of each step for TensorBoard, Weights & Biases, or whatever has one of their methods.

TensorBoard's SummaryWriter has `add_scalar(tag, value, step)` (torch.utils.tensorboard). A run of Weights & Biases has
`define_metric` and `log(data, step=..., commit=...)`. It drops a row whose step is less than an earlier one. So the
figures wait there for the user's next row (`commit=False`), and have an axis of their own, "elbowroom/step".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from elbowroom.errors import UsageError
from elbowroom.run.account import StepFigures

PREFIX = "elbowroom/"

Log = Callable[[int, Mapping[str, float]], None]
"""Takes the number of a step, from 1, and its figures by name."""


def log_of(writer: object) -> Log:
    """Return what writes figures with this writer.

    Raises:
        UsageError: it has neither method.
    """
    target: Any = writer
    if callable(getattr(target, "add_scalar", None)):
        return partial(_add_scalars, target)
    if not callable(getattr(target, "log", None)):
        raise UsageError(
            f"log_to: given {type(writer).__name__}; allowed is an object with add_scalar(name, value, step), such as "
            "TensorBoard's SummaryWriter, or with log(values, step=step), such as a run of Weights & Biases; give one "
            "of them"
        )
    if callable(getattr(target, "define_metric", None)):
        axis = f"{PREFIX}step"
        target.define_metric(f"{PREFIX}*", step_metric=axis)
        return lambda step, values: target.log({**values, axis: step}, commit=False)
    return lambda step, values: target.log(dict(values), step=step)


def _add_scalars(writer: Any, step: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)


def values_of(step: StepFigures, budget_bytes: int, device_bytes: int | None) -> dict[str, float]:
    """Return the figures of a step by name, with their units: seconds and bytes.

    Args:
        step: the step.
        budget_bytes: what the device may hold.
        device_bytes: what it holds as the step has ended; None where nobody looked.
    """
    found: dict[str, float] = {
        "step_seconds": step.step_ns / 1e9,
        "stall_seconds": step.stall_ns / 1e9,
        "swapped_out_bytes": step.swapped_out_bytes,
        "swapped_back_bytes": step.swapped_back_bytes,
        "recomputed_bytes": step.recomputed_bytes,
        "budget_bytes": budget_bytes,
    }
    if device_bytes is not None:
        found["device_bytes"] = device_bytes
    return {PREFIX + name: value for name, value in found.items()}
