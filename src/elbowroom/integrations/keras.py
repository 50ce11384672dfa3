"""Keras 3 on torch: a callback of `Model.fit`.

    model.fit(x, y, callbacks=[KerasRoom("10GiB")])

Keras has optimizers of its own, so the callback says where a step ends. Their states stay on the device. A functional
model holds what each layer returns until its forward ends, so less can leave in forward than in a subclass of Model.

`fit` has no callback for errors. If one ends it, the room stays open until the next `fit` with this
callback, or until `close()`. `with elbowroom.within(...)` around `fit` closes it at once.
"""

from __future__ import annotations

from typing import Any, Unpack, final

from keras import backend, callbacks  # pyright: ignore[reportMissingImports]

from elbowroom.errors import UsageError
from elbowroom.integrations.room_switch import RoomSwitch, WithinOptions
from elbowroom.run.room import Room


@final
class KerasRoom(callbacks.Callback):
    """Trains within a budget, from the beginning of `fit` to its end, validation and checkpoints included.

    Args:
        budget: see `elbowroom.within`.
        options: its other arguments.

    Raises:
        UsageError: an argument is not allowed, or Keras runs on another backend than torch.
    """

    def __init__(self, budget: str | int | None = None, **options: Unpack[WithinOptions]) -> None:
        if backend.backend() != "torch":
            raise UsageError(
                f"KerasRoom: given Keras on {backend.backend()}; allowed is torch; set KERAS_BACKEND=torch before "
                "keras is imported"
            )
        super().__init__()
        self._switch = RoomSwitch(budget, options)

    @property
    def room(self) -> Room | None:
        """The room of the training that goes on, or else of the last one."""
        return self._switch.room

    def on_train_begin(self, logs: Any = None) -> None:
        """Open a room."""
        self._switch.open()

    def on_train_batch_end(self, batch: Any, logs: Any = None) -> None:
        """End a step."""
        self._switch.end_step()

    def on_train_end(self, logs: Any = None) -> None:
        """Close the room."""
        self._switch.close()

    def close(self) -> None:
        """Close a room that an error of `fit` left open."""
        self._switch.close(RuntimeError("the training ended with an error"))
