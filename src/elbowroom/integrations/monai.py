"""MONAI: a handler of its trainers and bundles, and of any engine of ignite that trains.

    SupervisedTrainer(..., train_handlers=[MonaiRoom("10GiB"), ...])

In the file of a bundle: `{"_target_": "elbowroom.integrations.monai.MonaiRoom", "budget": "10GiB"}`.
"""

from __future__ import annotations

from typing import Any, Unpack, final

from ignite.engine import Events  # pyright: ignore[reportMissingImports]

from elbowroom.integrations.room_switch import RoomSwitch, WithinOptions
from elbowroom.run.room import Room


@final
class MonaiRoom:
    """Trains within a budget, from the start of an engine's run to its end, handlers for validation included.

    An error goes on to the handlers that were attached before this one. If there are none it is raised, as without it.

    Args:
        budget: see `elbowroom.within`.
        options: its other arguments.

    Raises:
        UsageError: an argument is not allowed.
    """

    def __init__(self, budget: str | int | None = None, **options: Unpack[WithinOptions]) -> None:
        self._switch = RoomSwitch(budget, options)

    @property
    def room(self) -> Room | None:
        """The room of the training that goes on, or else of the last one."""
        return self._switch.room

    def attach(self, engine: Any) -> None:
        """Open a room where a run of the engine starts, and close it where that ends."""
        engine.add_event_handler(Events.STARTED, lambda _: self._switch.open())
        engine.add_event_handler(Events.COMPLETED, lambda _: self._switch.close())
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._failed)

    def _failed(self, _: Any, error: BaseException) -> None:
        self._switch.close(error)
        raise error

    def close(self) -> None:
        """Close a room that an error left open, as a handler that was attached before raised it."""
        self._switch.close(RuntimeError("the training ended with an error"))
