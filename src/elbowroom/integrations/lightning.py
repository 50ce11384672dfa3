"""Lightning: a callback of its Trainer.

    Trainer(callbacks=[LightningRoom("10GiB")])

Its optimizers get forward and backward as a closure: Note: [Closures] in engine/optimizer_parts.py.
"""

from __future__ import annotations

from typing import Any, Unpack, final

from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports]

from elbowroom.integrations.room_switch import RoomSwitch, WithinOptions
from elbowroom.run.room import Room


@final
class LightningRoom(Callback):
    """Trains within a budget, from the first batch of `fit` to its end, validation and checkpoints included.

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

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open a room: the sanity check is over by now, and what a checkpoint had is loaded."""
        self._switch.open()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the room."""
        self._switch.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the room. Lightning raises the error, with a note if there is more to say."""
        self._switch.close(exception)
