"""Ray Train: a TorchConfig whose workers train within a budget.

TorchTrainer(train, torch_config=RoomTorchConfig(budget="10GiB"), scaling_config=...)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, final

from ray.train.torch import TorchConfig  # pyright: ignore[reportMissingImports]

from elbowroom.integrations.room_switch import RoomSwitch, WithinOptions


@final
@dataclass
class RoomTorchConfig(TorchConfig):
    """Opens a room around the training function of each worker.

    Attributes:
        budget: see `elbowroom.within`: of each worker. What workers of one computer share is divided among them.
        options: its other arguments.
        ended: called on each worker with its room once the training function has returned.

    Raises:
        UsageError: an argument is not allowed.
    """

    budget: str | int | None = None
    options: WithinOptions = field(default_factory=WithinOptions)
    ended: Callable[[Any], None] | None = None

    def __post_init__(self) -> None:
        RoomSwitch(self.budget, self.options)

    @property
    def train_func_context(self) -> Callable[[], Any]:
        """The context that a worker enters around its training function: Ray's own, and a room in it."""
        outer, budget, options, ended = super().train_func_context, self.budget, self.options, self.ended
        return lambda: _WorkerRoom(outer(), RoomSwitch(budget, options), ended)


@final
class _WorkerRoom:
    """A room around the training function of a worker."""

    def __init__(self, outer: Any, switch: RoomSwitch, ended: Callable[[Any], None] | None) -> None:
        self._outer, self._switch, self._ended = outer, switch, ended

    def __enter__(self) -> None:
        self._outer.__enter__()
        self._switch.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            self._switch.close(error)
            if error is None and self._ended is not None:
                self._ended(self._switch.room)
        finally:
            self._outer.__exit__(kind, error, traceback)
        return False
