"""Room switch: opens a room where a library's training begins, and closes it where that ends."""

from __future__ import annotations

import atexit
import os
from contextlib import AbstractContextManager
from typing import Unpack, cast, final

import torch

from elbowroom.errors import UsageError
from elbowroom.plan import Plan
from elbowroom.run import within
from elbowroom.run.options import Knobs, asked
from elbowroom.run.room import Room
from elbowroom.trace import Trace
from elbowroom.units import parse_budget


class WithinOptions(Knobs, total=False):
    """Arguments of `elbowroom.within`, but for the budget; described there."""

    plan: Plan | None
    trace: Trace | None
    spill_dir: str | os.PathLike[str] | None
    min_size: int | str | None
    measure: bool
    device: str | torch.device | None


OWN = frozenset(WithinOptions.__annotations__) - frozenset(Knobs.__annotations__)
"""Arguments of `elbowroom.within` that are no knobs."""


_on: list[RoomSwitch] = []
"""The switch whose room is open. The garbage collector could close a room in the middle of somebody's backward."""


@atexit.register
def _end() -> None:
    """Close a room that an error left open, as the process ends."""
    while _on:
        _on[-1].close(RuntimeError("the training ended with an error"))


@final
class RoomSwitch:
    """Opens and closes one room after the other, for a callback.

    Args:
        budget: see `elbowroom.within`.
        options: its other arguments.

    Attributes:
        room: the room of the training that goes on, or else of the last one; None before the first.

    Raises:
        UsageError: an argument is not allowed. So a callback is refused where it is made.
    """

    def __init__(self, budget: str | int | None, options: WithinOptions) -> None:
        knobs = cast(Knobs, {name: value for name, value in options.items() if name not in OWN})
        parse_budget("auto" if budget is None else budget)
        asked(options.get("min_size"), knobs, has_plan=options.get("plan") is not None)
        self.room: Room | None = None
        self._budget = budget
        self._options = options
        self._inside: AbstractContextManager[Room] | None = None

    def open(self) -> None:
        """Open a room. One that an error left open is closed before.

        Raises:
            UsageError: another callback has a room open.
        """
        self.close(RuntimeError("the training before ended with an error"))
        if _on:
            raise UsageError(
                "within: given a callback while the room of another one is open; allowed is one room at a time in a "
                "process; if an error ended that training, call close() of its callback"
            )
        inside = within(self._budget, **self._options)
        self.room, self._inside = inside.__enter__(), inside
        _on.append(self)

    def close(self, error: BaseException | None = None) -> None:
        """Close the room, if one is open.

        Args:
            error: what ended the training. It goes on as it is, as the library has to clean up after it: what
                `elbowroom.within` would raise in its place becomes a note of it.
        """
        inside, self._inside = self._inside, None
        if inside is None:
            return
        _on.remove(self)
        if error is None:
            inside.__exit__(None, None, None)
            return
        try:
            inside.__exit__(type(error), error, error.__traceback__)
        except BaseException as found:  # noqa: BLE001 - the library raises the error that it met
            if found is not error:
                error.add_note(f"elbowroom: {type(found).__name__}: {found}")

    def end_step(self) -> None:
        """End a step of the training here, if a room is open."""
        if self._inside is not None and self.room is not None:
            self.room.end_step()


class RoomCallback:
    """Base of the callbacks: a switch, and what every callback offers. It stands before the library's own base.

    Args:
        budget: see `elbowroom.within`.
        options: its other arguments.

    Raises:
        UsageError: an argument is not allowed.
    """

    def __init__(self, budget: str | int | None = None, **options: Unpack[WithinOptions]) -> None:
        super().__init__()
        self.switch_ = RoomSwitch(budget, options)  # a name that ends so is no parameter of a search over grids

    @property
    def room(self) -> Room | None:
        """The room of the training that goes on, or else of the last one."""
        return self.switch_.room

    def close(self) -> None:
        """Close a room that an error of the training left open."""
        self.switch_.close(RuntimeError("the training ended with an error"))
