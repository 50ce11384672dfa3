"""MONAI: a handler of its trainers and bundles, and of any engine of ignite that trains.

    SupervisedTrainer(..., train_handlers=[MonaiRoom("10GiB"), ...])

In the file of a bundle: `{"_target_": "elbowroom.integrations.monai.MonaiRoom", "budget": "10GiB"}`.
"""

from __future__ import annotations

from typing import Any, final

from ignite.engine import Events  # pyright: ignore[reportMissingImports]

from elbowroom.integrations.room_switch import RoomCallback


@final
class MonaiRoom(RoomCallback):
    """Trains within a budget, from the start of an engine's run to its end, handlers for validation included.

    An error goes on to the handlers that were attached before this one. If there are none it is raised, as without it.

    Its arguments are those of `elbowroom.within`.
    """

    def attach(self, engine: Any) -> None:
        """Open a room where a run of the engine starts, and close it where that ends."""
        engine.add_event_handler(Events.STARTED, lambda _: self.switch_.open())
        engine.add_event_handler(Events.COMPLETED, lambda _: self.switch_.close())
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._failed)

    def _failed(self, _: Any, error: BaseException) -> None:
        self.switch_.close(error)
        raise error
