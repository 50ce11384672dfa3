"""Skorch: a callback of its nets.

    NeuralNetClassifier(Module, callbacks=[SkorchRoom("10GiB")])

Its optimizers get forward and backward as a closure: Note: [Closures] in engine/optimizer_parts.py.

A net has no callback for errors. If one ends `fit`, the room stays open until the next `fit` with this
callback, or until `close()`. `with elbowroom.within(...)` around `fit` closes it at once.
"""

from __future__ import annotations

from typing import Any, Unpack, final

from skorch.callbacks import Callback  # pyright: ignore[reportMissingImports]

from elbowroom.integrations.room_switch import RoomSwitch, WithinOptions
from elbowroom.run.room import Room


@final
class SkorchRoom(Callback):
    """Trains within a budget, from the beginning of `fit` or `partial_fit` to its end.

    Args:
        budget: see `elbowroom.within`.
        options: its other arguments.

    Raises:
        UsageError: an argument is not allowed.
    """

    def __init__(self, budget: str | int | None = None, **options: Unpack[WithinOptions]) -> None:
        self.switch_ = RoomSwitch(budget, options)  # a name that ends so is no parameter of a search over grids

    @property
    def room(self) -> Room | None:
        """The room of the training that goes on, or else of the last one."""
        return self.switch_.room

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **_: Any) -> None:
        """Open a room."""
        self.switch_.open()

    def on_train_end(self, net: Any, X: Any = None, y: Any = None, **_: Any) -> None:
        """Close the room."""
        self.switch_.close()

    def close(self) -> None:
        """Close a room that an error of `fit` left open."""
        self.switch_.close(RuntimeError("the training ended with an error"))
