"""`elbowroom.within` on the virtual device: nothing is moved, as an estimate is of what the training needs without."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from elbowroom.capture.virtual.ledger import Ledger

Change = tuple[Any, str, Any]
PLACES = ("elbowroom", "elbowroom.run")
SAID = "elbowroom.within (estimated is what the training takes without a budget)"


@final
class Unmanaged:
    """Stands for a `Room` that has seen no step.

    Attributes:
        plan, trace, machine, simulated, measured: None.
        steps: none.
        beyond_bytes: 0.
    """

    plan = trace = machine = simulated = measured = None
    beyond_bytes = 0
    steps: tuple[Any, ...] = ()

    def summary(self) -> str:
        """That it is an estimate."""
        return f"elbowroom: on a virtual GPU, {SAID}"

    def measure_next_step(self) -> None:
        """Nothing: no step is measured."""

    def end_step(self) -> None:
        """Nothing: where a step ends is seen without."""


def changes(ledger: Ledger) -> list[Change]:
    """What stands for `within`, wherever a script finds it."""

    @contextmanager
    def within(*_budget: Any, **_knobs: Any) -> Iterator[Unmanaged]:
        ledger.remark("unsupported", SAID)
        yield Unmanaged()

    return [(place, "within", within) for place in map(sys.modules.get, PLACES) if place is not None]
