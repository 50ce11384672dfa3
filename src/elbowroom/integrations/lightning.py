"""Lightning: a callback of its Trainer.

    Trainer(callbacks=[LightningRoom("10GiB")])

Its optimizers get forward and backward as a closure: Note: [Closures] in engine/optimizer_parts.py.
"""

from __future__ import annotations

from typing import Any, final

from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports]

from elbowroom.integrations.room_switch import RoomCallback


@final
class LightningRoom(RoomCallback, Callback):
    """Trains within a budget, from the first batch of `fit` to its end, validation and checkpoints included.

    Its arguments are those of `elbowroom.within`.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open a room: the sanity check is over by now, and what a checkpoint had is loaded."""
        self.switch_.open()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the room."""
        self.switch_.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the room. Lightning raises the error, with a note if there is more to say."""
        self.switch_.close(exception)
