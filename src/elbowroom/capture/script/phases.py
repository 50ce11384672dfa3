"""Phases: what a script does at the moment, shown to the user who waits for its estimate."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elbowroom.capture.virtual import VirtualDevice

IMPORTS = "<frozen importlib"
LOADS = os.path.join("torch", "utils", "data")


def phase_of(device: VirtualDevice, script: str, steps: int) -> str:
    """Say what the main thread does now, such as "importing transformers" or "step 1 of 3".

    Its frames are inspected only before the first op on the GPU. A reference to a frame holds its variables, and would
    keep the storages of a training alive.

    Args:
        device: the device on which the script runs.
        script: path of the script.
        steps: optimizer steps to record.
    """
    if not device.ledger.ops:
        return _before_ops(script)
    if device.evaluating:
        return f"evaluating without gradients: {device.evaluating} forwards"
    return f"step {min(device.steps_seen + 1, steps)} of {steps}"


def _before_ops(script: str) -> str:
    frames = list(_frames())
    imported = _imported(frames)
    if imported:
        return f"importing {imported}"
    what = "loading data" if any(LOADS in frame.f_code.co_filename for frame in frames) else "preparing"
    return f"{what}, before the first op on the GPU{_line(frames, script)}"


def _frames() -> Iterator[FrameType]:
    """Yield the frames of the main thread, the innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001  there is no other way
    while frame is not None:
        yield frame
        frame = frame.f_back


def _imported(frames: list[FrameType]) -> str:
    """Return the outermost package that is being imported; "" if there is none."""
    names = [
        str(frame.f_locals.get("name", ""))
        for frame in frames
        if frame.f_code.co_filename.startswith(IMPORTS) and frame.f_code.co_name == "_find_and_load"
    ]
    return names[-1].partition(".")[0] if names else ""


def _line(frames: list[FrameType], script: str) -> str:
    """Name the line of the script that runs."""
    for frame in frames:
        if frame.f_code.co_filename == script:
            return f" ({os.path.basename(script)}, line {frame.f_lineno})"
    return ""
