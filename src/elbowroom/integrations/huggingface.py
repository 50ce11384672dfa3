"""Hugging Face: a callback of transformers' Trainer, and of each trainer that is made from it, such as those of TRL.

    Trainer(model, args, train_dataset=data, callbacks=[TrainerRoom("10GiB")])

A Trainer has no callback for errors. If one ends `train()`, the room stays open until the next `train()` with this
callback, or until `close()`. `with elbowroom.within(...)` around `train()` closes it at once.
"""

from __future__ import annotations

from typing import Any, final

from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

from elbowroom.integrations.room_switch import RoomCallback


@final
class TrainerRoom(RoomCallback, TrainerCallback):
    """Trains within a budget, from the beginning of `train()` to its end, evaluations and checkpoints included.

    Its arguments are those of `elbowroom.within`.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open a room: the model is on its device by now, and what a checkpoint had is loaded."""
        self.switch_.open()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the room."""
        self.switch_.close()
