"""Plans that are made in a thread while the training goes on.

Note: [Beside the training]
A plan is made where a step has ended, and mostly takes less time than the step. Where one takes longer than
`PATIENCE_S`, a thread goes on with it and the training goes on as it did: steps of a kind that has no plan are swapped
whole, which holds what an observed step holds, and are not recorded; others follow the plan that they have. The first
step of the kind that begins once the plan is made follows it; an error that planning ended in is raised there.

The thread runs functions of frozen questions (step_planning.py) and returns a value. The training's thread applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Thread
from typing import Any, final

from elbowroom.errors import ElbowroomError, again
from elbowroom.run.step_kinds import StepKind

PATIENCE_S = 2.0
"""How long a training waits for a plan."""

Then = Callable[[Callable[[], Any]], StepKind | None]
"""Learns from what was found, which calling its argument returns or raises."""


@final
class Beside:
    """Makes plans, each for the steps of one signature."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, tuple[_Making, Then]] = {}

    def under_way(self, key: Hashable) -> bool:
        """Whether a plan for steps of this signature is being made."""
        return key in self._under_way

    def make(self, key: Hashable, work: Callable[[], Any], then: Then) -> StepKind | None:
        """Make a plan.

        Args:
            key: the signature of its steps.
            work: makes it, in a thread of its own.
            then: learns from it, in the thread that called this or `arrived`.

        Returns:
            What `then` does; None where the plan is not made yet.
        """
        making = _Making(work)
        self._under_way[key] = making, then
        making.join(PATIENCE_S)
        return self.arrived(key)

    def arrived(self, key: Hashable) -> StepKind | None:
        """Learn from the plan for steps of this signature, if one is made by now."""
        making, then = self._under_way.get(key, (None, None))
        if making is None or then is None or making.is_alive():
            return None
        del self._under_way[key]
        return then(making.taken)

    def close(self) -> None:
        """Wait until nothing is made any more; what is found then is not missed."""
        for making, _ in self._under_way.values():
            making.join()
        self._under_way.clear()


@final
class _Making(Thread):
    """Does some work at once."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name="elbowroom planning", daemon=True)
        self._work = work
        self._found: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._found = self._work()
        except ElbowroomError as error:
            self._error = again(error)
        except BaseException as error:  # noqa: BLE001 - a defect of ours: raised where the plan is taken
            self._error = error

    def taken(self) -> Any:
        """What was found, or raises what the work ended in; once."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # it has the frames of whoever asks, and with them the tensors of a training
        return self._found
