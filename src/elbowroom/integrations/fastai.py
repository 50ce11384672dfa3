"""fastai: a callback of its Learner.

    Learner(data, model, cbs=FastaiRoom("10GiB"))

fastai has optimizers of its own, so the callback says where a step ends. Their states stay on the device.

A Learner has no callback for errors. If one ends `fit`, the room stays open until the next `fit` with this callback,
or until `close()`. `with elbowroom.within(...)` around `fit` closes it at once.
"""

from __future__ import annotations

from typing import final

from fastai.callback.core import Callback  # pyright: ignore[reportMissingImports]

from elbowroom.integrations.room_switch import RoomCallback


@final
class FastaiRoom(RoomCallback, Callback):
    """Trains within a budget, from the beginning of `fit` to its end, validation included.

    Its arguments are those of `elbowroom.within`.
    """

    def before_fit(self) -> None:
        """Open a room."""
        self.switch_.open()

    def after_step(self) -> None:
        """End a step."""
        self.switch_.end_step()

    def after_fit(self) -> None:
        """Close the room."""
        self.switch_.close()
