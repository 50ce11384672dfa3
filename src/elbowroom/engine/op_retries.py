"""Op retries: an op that got no memory runs again, once something that idles has left the device.

Note: [Run again]
An op asks for the memory of its results and its scratch, and then computes. If the allocator refuses, the op has
computed nothing, so it may run again. An op that writes to its arguments may have written some of them: it fails as
ever. So does an op that was registered after this was first used. An op that draws random numbers gets the generator's
state from before its first try.

Ops are seen as where calls are recorded: Note: [Where calls are seen] in run/recompute/call_recorder.py. So torch takes
the same paths as without. What autograd saved for the first try stays until the op has run. So the next try finds it
saved already, as its plan expects. Each op takes some microseconds longer. So ops are watched only in steps that may
hold more than planned, and after them until the next step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, final

import torch

from elbowroom.engine.executor import Executor
from elbowroom.engine.saved_tensors import Handle
from elbowroom.torch_compat.op_calls import is_seeded, watcher_of_results


@final
class OpRetries:
    """Runs ops again that got no memory.

    Args:
        executor: makes room on its device.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._thread = 0
        self._held: list[Handle] = []

    @property
    def on(self) -> bool:
        """Whether ops are watched."""
        return self._thread != 0

    def turn(self, *, on: bool) -> None:
        """Begin or end to watch the ops of this thread, and of the backward passes that it starts."""
        here = threading.get_ident()
        if on is self.on or (self.on and here != self._thread):
            return
        watcher = watcher_of_results()
        watcher.seen = self._called if on else _called
        watcher.turn(on=on)
        self._held.clear()
        self._thread = here if on else 0

    def handled(self, handle: Handle) -> None:
        """Hold what autograd saves until the op that it is saved for has run."""
        self._held.append(handle)

    def _called(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._tried(op, args, kwargs)
        finally:
            self._held.clear()

    def _tried(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with watcher_of_results().unwatched():
            device = self._executor.device
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return op(*args, **kwargs)
            if is_seeded(op):
                return self._executor.with_room(_from_one_state(device, op, args, kwargs))
            return self._executor.with_room(lambda: op(*args, **kwargs))


def _called(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op as ever: another thread may still be watched when this is turned off."""
    with watcher_of_results().unwatched():
        return op(*args, **kwargs)


def _from_one_state(device: torch.device, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """Return the call of an op that draws, each time with what the generator has now."""
    generator = kwargs.get("generator")
    if generator is None:
        cuda = device.type == "cuda"
        generator = torch.cuda.default_generators[device.index or 0] if cuda else torch.default_generator
    state = generator.get_state()

    def call() -> Any:
        generator.set_state(state)
        return op(*args, **kwargs)

    return call
