"""Observing director: it swaps every candidate as soon as only autograd holds it, and waits until it is written.

So the step needs little memory. The written bytes are final, even if code changed them before. And the recorder learns
from which position on swapping a storage frees memory: where it did. Once it is known that no storage is written after
its save, each may leave at its save. Then the step needs the least memory that it can: Note: [Frugal] in run/frugal.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch

from elbowroom.capture.recording.never_moved import StorageSet
from elbowroom.capture.recording.recorder import Recorder
from elbowroom.capture.recording.user_profile import UserProfile
from elbowroom.engine.entries import Entry
from elbowroom.engine.executor import Executor
from elbowroom.engine.gradient_hooks import GRAD
from elbowroom.engine.saved_tensors import Director, Handle
from elbowroom.engine.storages import reachable
from elbowroom.torch_compat.core import holders_of, in_backward, never_compiled, next_node_number, version_of

NOTHING = nullcontext()


@final
class Observing(Director):
    """Director that swaps everything, and reports to a recorder if one is on.

    Args:
        executor: moves the storages.
        reserved: storages that are never moved.

    Attributes:
        count: number of the next saved storage in its step.
        at_save: whether each storage leaves at its save.
        spare_bytes: bytes of saves that may still stay in a step that is not recorded.
        spared_bytes: bytes of those that have stayed.
        profile: the user's own profile.
        held: entries that others than autograd may still hold, with their handles.
    """

    observes = True

    def __init__(self, executor: Executor, reserved: StorageSet) -> None:
        self._executor = executor
        self._reserved = reserved
        self.held: dict[Entry, list[weakref.ref[Handle]]] = {}
        self._nodes: dict[Entry, int] = {}
        self.count = 0
        self.at_save = False
        self.spare_bytes = self.spared_bytes = 0
        self.recorder: Recorder | None = None
        self.profile = UserProfile()

    def record(self, root: torch.nn.Module | None = None) -> Recorder | None:
        """Start a recorder and report everything to it from here on; None if torch's profiler is in use."""
        tensors, parameters = reachable()
        self._reserved.add(parameters)
        if root is not None:
            self._reserved.add_module(root)
        self.recorder = self.record_moves(root, tensors)
        return self.recorder

    def record_moves(
        self, root: torch.nn.Module | None = None, tensors: Sequence[torch.Tensor] | None = None
    ) -> Recorder | None:
        """Start a recorder of the executor's moves; None if torch's profiler is in use.

        Args:
            root: the outermost module that is being called, if any.
            tensors: all tensors that Python can reach, if they were collected already.
        """
        executor = self._executor
        recorder = Recorder(self._reserved.add_module, executor.device, executor.tier.streams)
        if not (self.profile.make_way(between_ops=root is not None) and recorder.start(root, tensors)):
            return None
        executor.tier.timed = True
        executor.observer = recorder.observer()
        return recorder

    def first_save(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> Entry | None:
        """See Director. The storage leaves at a later tick, unless it leaves `at_save`."""
        if self._reserved.holds(storage, tensor):
            return None
        self.tick()
        entry = self._executor.add(self.count, storage, version_of(tensor))
        self._executor.may_leave(entry)
        self.count += 1
        if self.recorder is not None:
            self.recorder.saved(entry, storage, tensor.dtype)
        elif entry.size_bytes <= self.spare_bytes:
            self.spare_bytes -= entry.size_bytes
            self.spared_bytes += entry.size_bytes
            return entry
        if self.at_save:
            self._leaves(entry)
        else:
            self.held[entry] = []
            self._nodes[entry] = next_node_number()
        return entry

    def _leaves(self, entry: Entry) -> None:
        """Write a storage whose bytes are final. Code that still uses it keeps it until it lets it go."""
        try:
            with self.aside():
                self._executor.swap_out(entry)
                self._executor.settle()
        except BaseException:  # autograd makes no handle then, whose death would free the entry
            self._executor.handle_died(entry)
            raise

    def handled(self, handle: Handle) -> None:
        """See Director."""
        made = self.held.get(handle.entry)
        if made != [] and self.recorder is not None:
            self.recorder.saved_again()
        if made is not None:
            made.append(weakref.ref(handle))

    def tick(self) -> None:
        """Write the storages that only autograd holds.

        Saves of the running op wait one tick: an op may save a buffer first and fill it afterwards, as rrelu_with_noise
        does with its noise. The saves of one op lie between the same two autograd nodes.
        """
        if not self.held:
            return
        node = None if in_backward() else next_node_number()
        for entry, made in list(self.held.items()):
            if self._nodes[entry] == node:
                continue
            handles = [handle for ref in made if (handle := ref()) is not None]
            if not handles:
                del self.held[entry], self._nodes[entry]
            elif holders_of(storage := handles[0].counter.untyped_storage()) <= len(handles) + 1:
                del self.held[entry], self._nodes[entry], storage
                with self.aside():
                    self._write(entry, handles)

    def _write(self, entry: Entry, handles: list[Handle]) -> None:
        self._executor.swap_out(entry)
        for handle in handles:
            handle.let_go()
        self._executor.settle()

    def before_read(self, entry: Entry) -> None:
        """See Director."""
        self.tick()
        if self.recorder is not None:
            self.recorder.reads_back(entry)

    @property
    def watched(self) -> bool:
        """See Director."""
        return self.recorder is not None

    def aside(self) -> AbstractContextManager[None]:
        """See Director."""
        return NOTHING if self.recorder is None else self.recorder.paused()


@final
class OptimizerWatch:
    """Watch that reports when any optimizer of the process begins and ends a step.

    Args:
        begins: called with the optimizer, the arguments of its step and the keyword arguments, before its step.
        ends: called with it after.
    """

    def __init__(self, begins: Callable[[Any, Any, Any], None], ends: Callable[[Any], None]) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._handles = [
            register_optimizer_step_pre_hook(never_compiled(begins)),
            register_optimizer_step_post_hook(never_compiled(lambda optimizer, _args, _kwargs: ends(optimizer))),
        ]

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()


def optimizer_began(recorder: Recorder | None) -> None:
    """Note that ops from here on are the optimizer's."""
    if recorder is not None:
        recorder.optimizer_runs(True)


def optimizer_ended(recorder: Recorder | None, optimizer: torch.optim.Optimizer) -> None:
    """Note which storages are parameters, gradients and state, after an optimizer's step."""
    if recorder is None:
        return
    recorder.optimizer_runs(False)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    recorder.classify("parameter", parameters)
    # `p.grad` would bring back gradients that are away; see engine/gradients.py.
    recorder.classify("gradient", (gradient for p in parameters if (gradient := GRAD.__get__(p)) is not None))
    # `optimizer.state` would bring back states that are away; see engine/optimizer_states.py.
    mappings = (values for values in vars(optimizer).get("state", {}).values() if isinstance(values, dict))
    state = (value for values in mappings for value in values.values())
    recorder.classify("optimizer_state", (value for value in state if isinstance(value, torch.Tensor)))
