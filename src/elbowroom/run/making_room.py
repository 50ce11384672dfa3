"""Making room: what idles on the device leaves it, as an op or a swap back got no memory.

Note: [Out of memory]
A plan is made for the step that was captured or observed. A step may hold more than that: new shapes, states that grow,
a model that was made since. Then memory runs out in a step that could do with less. So what idles leaves:

1. Storages whose writes are under way, once these have ended.
2. Saved storages that the plan keeps, the first saved one first: backward needs it last. One that other code than
   autograd has stays.
3. Optimizer states, unless their optimizer steps.

Before anything leaves, a limit of the allocator that lies below the budget is raised to it (training.py): the plan goes
on. If nothing leaves any more, the limit is lifted into the margin that an `auto` budget leaves.
"""

from __future__ import annotations

import weakref
from typing import final

from elbowroom.engine.entries import Entry
from elbowroom.engine.executor import ON_DEVICE, Executor
from elbowroom.engine.op_retries import OpRetries
from elbowroom.engine.optimizer_states import OptimizerStates
from elbowroom.engine.saved_tensors import Handle
from elbowroom.errors import TierFull
from elbowroom.run.allocator_limit import AllocatorLimit
from elbowroom.run.learner import SURE_SHARE, Learner
from elbowroom.run.step_kinds import StepKind
from elbowroom.torch_compat.core import holders_of, version_of
from elbowroom.torch_compat.op_calls import counting_versions

SURE_STEPS = 2
"""Steps of a kind after which it is sure what they hold, unless they begin with more or have a limit."""


@final
class MakingRoom:
    """Moves out what idles, and says in which steps ops are watched for that: Note: [Out of memory].

    Args:
        executor: moves saved storages.
        states: the optimizer states.
        limit: the limit of the allocator.
        learner: knows the budget.

    Attributes:
        retries: runs ops again.
    """

    def __init__(self, executor: Executor, states: OptimizerStates, limit: AllocatorLimit, learner: Learner) -> None:
        self._executor = executor
        self._states = states
        self._limit = limit
        self._learner = learner
        self._handles: dict[Entry, list[weakref.ref[Handle]]] = {}
        self.retries = OpRetries(executor)

    def begin_step(self, known: StepKind | None) -> None:
        """Watch the ops of a step of this kind, unless it is sure what it holds."""
        self._handles.clear()
        self.retries.turn(on=self._is_unsure(known))

    def end_step(self, known: StepKind | None) -> None:
        """Watch what runs between two steps, if steps of this kind leave little room for it."""
        self.retries.turn(on=self._is_tight(known))

    def surprised(self) -> None:
        """Watch the rest of a step that is not what its plan expects."""
        self.retries.turn(on=self._executor.residence.refuses)

    def close(self) -> None:
        """Watch nothing any more, and forget what was saved."""
        self.retries.turn(on=False)
        self._handles.clear()

    def _is_unsure(self, known: StepKind | None) -> bool:
        """Return whether a step of this kind may hold more than its plan says, and more than there is."""
        is_tight = self._is_tight(known)
        if known is None or known.shared or known.ran < SURE_STEPS or not is_tight:
            return is_tight
        if known.course.at_limit:  # where blocks lie may change after any number of steps
            return True
        if not known.course.begins_bytes:
            return False
        more_bytes = self._executor.residence.allocated_bytes() - known.course.begins_bytes
        return known.course.peak_bytes + more_bytes > self._learner.limit_bytes

    def _is_tight(self, known: StepKind | None) -> bool:
        """Return whether a step of this kind takes nearly all that there is, as far as that is known."""
        if not self._executor.residence.refuses:
            return False
        if known is None or known.course.at_limit:
            return True
        return known.course.peak_bytes > SURE_SHARE * self._learner.limit_bytes

    def handled(self, handle: Handle) -> None:
        """Note a saved tensor, so that its storage may leave later: behind the work of the stream that saves it."""
        if not self.retries.on:
            return
        self.retries.handled(handle)
        if handle.entry.home is None:
            handle.entry.home = self._executor.stream()
        self._handles.setdefault(handle.entry, []).append(weakref.ref(handle))

    def make(self, asked_bytes: int, *, in_optimizer: bool = False) -> bool:
        """Move out about as much as was asked for. Returns whether anything left.

        Args:
            asked_bytes: what is asked for.
            in_optimizer: whether an optimizer steps, so that states are in use.
        """
        if self._executor.is_writing:
            self._executor.settle()
            return True
        if self._kept_leave(asked_bytes) or (not in_optimizer and self._states.leave_now()):
            return True
        return self._learner.free_bytes > 0 and self._limit.lift()

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
                with counting_versions():  # the op that asks may be one inside another
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
