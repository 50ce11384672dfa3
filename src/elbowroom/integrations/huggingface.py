"""Hugging Face: a callback of transformers' Trainer, and of each trainer that is made from it, such as those of TRL.

    Trainer(model, args, train_dataset=data, callbacks=[TrainerRoom("10GiB")])

A Trainer has no callback for errors. If one ends `train()`, the room stays open until the next `train()` with this
callback, or until `close()`. `with elbowroom.within(...)` around `train()` closes it at once.
"""

from __future__ import annotations

from typing import Any, Unpack, final

from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

from elbowroom.integrations.room_switch import RoomSwitch, WithinOptions
from elbowroom.run.room import Room


@final
class TrainerRoom(TrainerCallback):
    """Trains within a budget, from the beginning of `train()` to its end, evaluations and checkpoints included.

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

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open a room: the model is on its device by now, and what a checkpoint had is loaded."""
        self._switch.open()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the room."""
        self._switch.close()

    def close(self) -> None:
        """Close a room that an error of `train()` left open."""
        self._switch.close(RuntimeError("the training ended with an error"))
