"""Skorch: a callback of its nets.

    NeuralNetClassifier(Module, callbacks=[SkorchRoom("10GiB")])

Its optimizers get forward and backward as a closure: Note: [Closures] in engine/optimizer_parts.py.

A net has no callback for errors. If one ends `fit`, the room stays open until the next `fit` with this
callback, or until `close()`. `with elbowroom.within(...)` around `fit` closes it at once.
"""

from __future__ import annotations

from typing import Any, final

from skorch.callbacks import Callback  # pyright: ignore[reportMissingImports]

from elbowroom.integrations.room_switch import RoomCallback


@final
class SkorchRoom(RoomCallback, Callback):
    """Trains within a budget, from the beginning of `fit` or `partial_fit` to its end.

    Its arguments are those of `elbowroom.within`.
    """

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **_: Any) -> None:
        """Open a room."""
        self.switch_.open()

    def on_train_end(self, net: Any, X: Any = None, y: Any = None, **_: Any) -> None:
        """Close the room."""
        self.switch_.close()
