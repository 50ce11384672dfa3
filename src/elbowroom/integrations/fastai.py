"""fastai: a callback of its Learner.

    Learner(data, model, cbs=FastaiRoom("10GiB"))

fastai has optimizers of its own, so the callback says where a step ends. Their states stay on the device.

A Learner has no callback for errors. If one ends `fit`, the room stays open until the next `fit` with this callback,
or until `close()`. `with elbowroom.within(...)` around `fit` closes it at once.
"""

from __future__ import annotations

from typing import Unpack, final

from fastai.callback.core import Callback  # pyright: ignore[reportMissingImports]

from elbowroom.integrations.room_switch import RoomSwitch, WithinOptions
from elbowroom.run.room import Room


@final
class FastaiRoom(Callback):
    """Trains within a budget, from the beginning of `fit` to its end, validation included.

    Args:
        budget: see `elbowroom.within`.
        options: its other arguments.

    Raises:
        UsageError: an argument is not allowed.
    """

    def __init__(self, budget: str | int | None = None, **options: Unpack[WithinOptions]) -> None:
        super().__init__()
        self.switch = RoomSwitch(budget, options)

    @property
    def room(self) -> Room | None:
        """The room of the training that goes on, or else of the last one."""
        return self.switch.room

    def before_fit(self) -> None:
        """Open a room."""
        self.switch.open()

    def after_step(self) -> None:
        """End a step."""
        self.switch.end_step()

    def after_fit(self) -> None:
        """Close the room."""
        self.switch.close()

    def close(self) -> None:
        """Close a room that an error of `fit` left open."""
        self.switch.close(RuntimeError("the training ended with an error"))
