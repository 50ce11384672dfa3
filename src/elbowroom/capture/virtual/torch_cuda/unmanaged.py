"""Unmanaged: `elbowroom.within` on the virtual device moves nothing: an estimate is of a training without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch

from elbowroom.capture.virtual.ledger import Ledger

Change = tuple[Any, str, Any]
PLACES = ("elbowroom", "elbowroom.run")
SAID = "elbowroom.within (estimated is what the training takes without a budget)"


@final
class Unmanaged:
    """Replacement of a `Room` that has seen no step.

    Attributes:
        plan, trace, machine, simulated, measured: None.
        steps: empty.
        beyond_bytes: 0.

    Args:
        device: the device of the room; None for the GPU, if there is one.
    """

    plan = trace = machine = simulated = measured = None
    beyond_bytes = 0
    steps: tuple[Any, ...] = ()

    def __init__(self, device: str | torch.device | None = None) -> None:
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")

    def place(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move a model to the device, where all of it stays."""
        return model.to(self._device)

    def summary(self) -> str:
        """Say that it is an estimate."""
        return f"elbowroom: on a virtual GPU, {SAID}"

    def measure_next_step(self) -> None:
        """Do nothing, as no step is measured."""

    def log_to(self, writer: object) -> None:
        """Do nothing, as no step is measured."""

    def end_step(self) -> None:
        """Do nothing, as the end of a step is seen without it."""


def changes(ledger: Ledger) -> list[Change]:
    """Return the replacement of `within`, in all places where a script finds it."""

    @contextmanager
    def within(*_budget: Any, device: Any = None, **_knobs: Any) -> Iterator[Unmanaged]:
        ledger.remark("unsupported", SAID)
        yield Unmanaged(device)

    return [(place, "within", within) for place in map(sys.modules.get, PLACES) if place is not None]
