"""Plans that are made beside the training.

Note: [Beside the training]
A plan is made where a step has ended, and mostly takes less time than the step. Where one takes longer than
`PATIENCE_S`, a thread goes on with it and the training goes on as it did: steps of a kind that has no plan are swapped
whole, which holds what an observed step holds, and are not recorded; others follow the plan that they have. The first
step of the kind that begins once the plan is made follows it; an error that planning ended in is raised there. The
thread reads records that nobody changes, and calls nothing of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any, final

from elbowroom.runtime.known import Known

PATIENCE_S = 2.0
"""How long a training waits for a plan."""

Then = Callable[[Callable[[], Any]], Known | None]
"""Learns from what was found, which calling its argument returns or raises."""


@final
class Beside:
    """Makes plans, each for the steps of one signature."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, tuple[Future[Any], Then, Thread]] = {}

    def under_way(self, key: Hashable) -> bool:
        """Whether a plan for steps of this signature is being made."""
        return key in self._under_way

    def make(self, key: Hashable, work: Callable[[], Any], then: Then) -> Known | None:
        """Make a plan.

        Args:
            key: the signature of its steps.
            work: makes it, in a thread of its own.
            then: learns from it, in the thread that called this or `arrived`.

        Returns:
            What `then` does; None where the plan is not made yet.
        """
        future: Future[Any] = Future()
        thread = Thread(target=_work, args=(future, work), name="elbowroom planning", daemon=True)
        thread.start()
        self._under_way[key] = future, then, thread
        wait([future], PATIENCE_S)
        return self.arrived(key)

    def arrived(self, key: Hashable) -> Known | None:
        """Learn from the plan for steps of this signature, if one is made by now."""
        future, then, thread = self._under_way.get(key, (None, None, None))
        if future is None or then is None or thread is None or not future.done():
            return None
        del self._under_way[key]
        thread.join()
        return then(future.result)

    def close(self) -> None:
        """Wait until nothing is made any more; what is found then is not missed."""
        for _, _, thread in self._under_way.values():
            thread.join()
        self._under_way.clear()


def _work(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
        future.set_exception(error)
