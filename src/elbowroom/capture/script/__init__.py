"""A user's training script, run unchanged in a child process on the virtual device."""

from __future__ import annotations

from elbowroom.capture.script.order import TIMEOUT_S, ScriptOrder
from elbowroom.capture.script.script import STEPS, capture_script

__all__ = ["STEPS", "TIMEOUT_S", "ScriptOrder", "capture_script"]
