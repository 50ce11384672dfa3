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
from elbowroom.integrations.room_switch import RoomCallback, WithinOptions


@final
class KerasRoom(RoomCallback, callbacks.Callback):
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
        super().__init__(budget, **options)

    def on_train_begin(self, logs: Any = None) -> None:
        """Open a room."""
        self.switch_.open()

    def on_train_batch_end(self, batch: Any, logs: Any = None) -> None:
        """End a step."""
        self.switch_.end_step()

    def on_train_end(self, logs: Any = None) -> None:
        """Close the room."""
        self.switch_.close()
