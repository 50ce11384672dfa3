"""Planning in a thread while the training goes on.

Note: [Planning thread]
A plan is made when a step has ended. It mostly takes less time than the step. If it takes longer than `PATIENCE_S`,
a thread goes on with it, and the training goes on as before. Steps of a kind without a plan are then swapped whole and
not recorded: they hold what an observed step holds. Steps of other kinds follow the plan that they have. The plan is
applied where the next step of any kind begins, and an error of the planning is raised there.

The thread runs functions of frozen questions (step_planning.py) and returns a value. The training's thread applies it.

Nobody waits for a plan once the training is over, or was interrupted: large steps are planned for minutes. Planners
have no place of their own where they could end. So SystemExit is raised in the thread where it runs Python next, which
threads end with in silence. The run waits for that, as a thread in native code must not outlive the interpreter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from threading import Thread
from typing import Any, final

from elbowroom.errors import ElbowroomError, again
from elbowroom.run.step_kinds import StepKind

PATIENCE_S = 2.0
"""Seconds that a training waits for a plan."""
ENDS_S = 1.0
"""Seconds that a thread has to end in before that is raised again: an `except` may have caught it."""
THREAD_NAME = "elbowroom planning"

Then = Callable[[Callable[[], Any]], StepKind | None]
"""Applies the result of planning: a call of its argument returns the result, or raises its error."""


@final
class BackgroundPlanner:
    """Makes plans, each for the steps of one signature.

    Args:
        apart: does work in a child below a hard limit, and is given what the answer shares with the training: then
            the training waits for each plan. None without such a limit.
    """

    def __init__(self, apart: Callable[[Callable[[], Any], Sequence[object]], Any] | None = None) -> None:
        self._apart = apart
        self._under_way: dict[Hashable, tuple[_Making, Then]] = {}

    def under_way(self, key: Hashable) -> bool:
        """Whether a plan for steps of this signature is being made."""
        return key in self._under_way

    def make(self, key: Hashable, work: Callable[[], Any], then: Then, shared: Sequence[object]) -> StepKind | None:
        """Make a plan.

        Args:
            key: the signature of its steps.
            work: makes it, in a thread of its own.
            then: applies it, in the thread that called this or `arrived`.
            shared: what the answer holds of the training.

        Returns:
            The result of `then`; None if the plan is not made yet.
        """
        if self._apart is not None:
            return then(partial(self._apart, work, shared))
        making = _Making(work)
        self._under_way[key] = making, then
        making.join(PATIENCE_S)
        return self.arrived(key)

    def all_arrived(self) -> None:
        """Apply all plans that are made by now: steps of their signatures may never come again."""
        for key in list(self._under_way):
            self.arrived(key)

    def arrived(self, key: Hashable) -> StepKind | None:
        """Apply the plan for steps of this signature, if one is made by now."""
        making, then = self._under_way.get(key, (None, None))
        if making is None or then is None or making.is_alive():
            return None
        del self._under_way[key]
        return then(making.taken)

    def close(self) -> None:
        """Drop the plans under way, and end their threads."""
        for making, _ in self._under_way.values():
            making.end()
        self._under_way.clear()


@final
class _Making(Thread):
    """Thread that starts its work at once, and keeps the result."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(name=THREAD_NAME, daemon=True)
        self._work = work
        self._found: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._found = self._work()
        except SystemExit:
            pass  # of `end`
        except ElbowroomError as error:
            self._error = again(error)
        except BaseException as error:  # noqa: BLE001 - a defect of ours: raised where the plan is taken
            self._error = error

    def end(self) -> None:
        """End the work where it is, and wait for that."""
        while self.is_alive():
            ended = ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ended)
            self.join(ENDS_S)

    def taken(self) -> Any:
        """Return the result of the work, or raise its error. May be called once."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds the caller's frames, and with them the tensors of a training
        return self._found
