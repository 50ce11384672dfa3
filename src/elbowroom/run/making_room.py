"""Making room: what idles on the device leaves it, as an op or a swap back got no memory.

Note: [Out of memory]
A plan is made for the step that was captured or observed. A step may hold more than that: new shapes, states that grow,
a model that was made since. Then memory runs out in a step that could do with less. So what idles leaves:

1. Storages whose writes are under way, once these have ended.
2. Saved storages that the plan keeps, the first saved one first: backward needs it last. One that other code than
   autograd has stays.
3. Optimizer states, unless their optimizer steps.

If nothing leaves any more, a limit of the allocator is lifted that lies below an `auto` budget's margin (training.py).
The rest of the step is swapped whole, and the next such step is observed. So the next plan counts what was missing.
"""

from __future__ import annotations

import weakref
from typing import final

from elbowroom.engine.entries import Entry
from elbowroom.engine.executor import ON_DEVICE, Executor
from elbowroom.engine.optimizer_states import OptimizerStates
from elbowroom.engine.saved_tensors import Handle
from elbowroom.errors import TierFull
from elbowroom.torch_compat.core import holders_of, version_of


@final
class MakingRoom:
    """Moves out what idles: Note: [Out of memory].

    Args:
        executor: moves saved storages.
        states: the optimizer states.
    """

    def __init__(self, executor: Executor, states: OptimizerStates) -> None:
        self._executor = executor
        self._states = states
        self._handles: dict[Entry, list[weakref.ref[Handle]]] = {}

    def begin_step(self) -> None:
        """Forget the saved storages of the step before."""
        self._handles.clear()

    def handled(self, handle: Handle) -> None:
        """Note a saved tensor, so that its storage may leave later."""
        self._handles.setdefault(handle.entry, []).append(weakref.ref(handle))

    def make(self, asked_bytes: int, *, in_optimizer: bool = False) -> bool:
        """Move out about as much as was asked for. Returns whether anything left.

        Args:
            asked_bytes: what is asked for.
            in_optimizer: whether an optimizer steps, so that states are in use.
        """
        if self._executor.writes:
            self._executor.settle()
            return True
        return self._kept_leave(asked_bytes) or (not in_optimizer and self._states.leave_now())

    def _kept_leave(self, asked_bytes: int) -> bool:
        left_bytes = 0
        for entry in list(self._handles):
            if left_bytes >= asked_bytes:
                break
            handles = [handle for each in self._handles[entry] if (handle := each()) is not None]
            if not handles or entry.leaves:
                del self._handles[entry]
            elif _idles(entry, handles):
                try:
                    self._executor.swap_out(entry)
                except TierFull:
                    break
                for handle in handles:
                    handle.let_go()
                left_bytes += entry.size_bytes
        self._executor.settle()
        return left_bytes > 0


def _idles(entry: Entry, handles: list[Handle]) -> bool:
    """Whether autograd alone has an entry's storage, unchanged and on the device, by these handles."""
    if entry.place is not ON_DEVICE or entry.handles != len(handles) or entry.changed():
        return False
    if any(version_of(each.counter) != each.version for each in handles):
        return False
    return holders_of(handles[0].counter.untyped_storage()) <= len(handles) + 1
