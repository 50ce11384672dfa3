"""Op retries: an op that got no memory runs again, once something that idles has left the device.

Note: [Run again]
An op asks for the memory of its results and its scratch, and then computes. If the allocator refuses, the op has
computed nothing, so it may run again. An op that writes to its arguments may have written some of them: it fails as
ever. So does an op that was registered after this was first used. An op that draws random numbers gets the generator's
state from before its first try.

Ops are seen as where calls are recorded: Note: [Where calls are seen] in run/recompute/call_recorder.py. So torch takes
the same paths as without. What autograd saved for the first try is dropped with it. Each op takes some microseconds
longer. So ops are watched only in steps of which it is not sure what they hold, and after them until the next step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, final

import torch

from elbowroom.torch_compat.op_calls import is_seeded, watcher_of_results

MOST_RETRIES = 64
"""Of one op. Each frees what it asked for, or the last of a kind; free memory in pieces may need several."""


@final
class OpRetries:
    """Runs ops again that got no memory.

    Args:
        device: the device whose memory is short.
        asked_bytes: returns the bytes that an op asked for, if its error says that it did not get them; else None.
        make_room: frees about that size in bytes. Returns whether it freed any.
    """

    def __init__(
        self,
        device: torch.device,
        asked_bytes: Callable[[BaseException], int | None],
        make_room: Callable[[int], bool],
    ) -> None:
        self._device = device
        self._asked_bytes = asked_bytes
        self._make_room = make_room
        self._thread = 0

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
        self._thread = here if on else 0

    def _called(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with watcher_of_results().unwatched():
            state = _state(self._device, kwargs) if _is_seeded(op) else None
            for _ in range(MOST_RETRIES):
                try:
                    return op(*args, **kwargs)
                except RuntimeError as problem:
                    asked_bytes = self._asked_bytes(problem)
                    if asked_bytes is None or _captures(self._device) or not self._make_room(asked_bytes):
                        raise
                if state is not None:
                    state[0].set_state(state[1])
            return op(*args, **kwargs)


def _called(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op as ever: another thread may still be watched when this is turned off."""
    with watcher_of_results().unwatched():
        return op(*args, **kwargs)


_is_seeded = cache(is_seeded)


def _state(device: torch.device, kwargs: dict[str, Any]) -> tuple[torch.Generator, torch.Tensor] | None:
    """Return the generator that an op draws from, and its state. None while a graph captures, which forbids it."""
    if _captures(device):
        return None
    generator = kwargs.get("generator")
    if generator is None:
        cuda = device.type == "cuda"
        generator = torch.cuda.default_generators[device.index or 0] if cuda else torch.default_generator
    return generator, generator.get_state()


def _captures(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
