"""The observing director: swaps every candidate at once and waits for it, so the step needs the least it can.

With a saved storage's bytes safe elsewhere, the original lives exactly as long as something besides autograd holds it;
that is how the recorder learns from where on swapping it would free memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from elbowroom.capture.recorder import Recorder, reachable_parameters
from elbowroom.capture.reserved import Reserved
from elbowroom.runtime._torch_compat import version_of
from elbowroom.runtime.executor import Entry, Executor
from elbowroom.runtime.hooks import Director


@final
class Observing(Director):
    """Swaps everything, and tells a recorder if one is on.

    Args:
        executor: moves the storages.
        reserved: what is never moved.

    Attributes:
        count: the next saved storage is the count-th of its step.
    """

    def __init__(self, executor: Executor, reserved: Reserved) -> None:
        self._executor = executor
        self._reserved = reserved
        self.count = 0
        self.recorder: Recorder | None = None

    def record(self, root: torch.nn.Module | None = None) -> Recorder:
        """Start a recorder and tell it of everything from here on."""
        self._reserved.add(reachable_parameters())
        if root is not None:
            self._reserved.add_module(root)
        self.recorder = start_recorder(self._executor, self._reserved, root)
        return self.recorder

    def first_save(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> Entry | None:
        """See Director."""
        if self._reserved.holds(storage):
            return None
        entry = self._executor.add(self.count, storage, version_of(tensor))
        self.count += 1
        if self.recorder is None:
            self._swap_now(entry)
        else:
            self.recorder.saved(entry, storage, tensor.dtype)
            with self.recorder.paused():
                self._swap_now(entry)
        return entry

    def _swap_now(self, entry: Entry) -> None:
        self._executor.swap_out(entry)
        self._executor.settle()

    def before_read(self, entry: Entry) -> None:
        if self.recorder is not None:
            self.recorder.reads_back(entry)

    def fetch(self, entry: Entry) -> torch.UntypedStorage:
        if self.recorder is None:
            return self._executor.read(entry)
        with self.recorder.paused():
            return self._executor.read(entry)


def start_recorder(executor: Executor, reserved: Reserved, root: torch.nn.Module | None) -> Recorder:
    """A running recorder that hears of the executor's moves, and tells it of changes in place."""

    def on_change(storage: torch.UntypedStorage) -> None:
        entry = executor.find(storage)
        if entry is not None and entry.slot is not None:
            executor.keep(entry)

    recorder = Recorder(on_change, reserved.add_module)
    recorder.start(root)
    executor.observer = recorder.observer()
    return recorder


@final
class OptimizerWatch:
    """Tells when any optimizer of the process begins and ends a step.

    Args:
        begins: called with the optimizer before its step.
        ends: called with it after.
    """

    def __init__(self, begins: Callable[[Any], None], ends: Callable[[Any], None]) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._handles = [
            register_optimizer_step_pre_hook(lambda optimizer, _args, _kwargs: begins(optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: ends(optimizer)),
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
    """Note what an optimizer's step has shown: which storages are parameters, gradients and state."""
    if recorder is None:
        return
    recorder.optimizer_runs(False)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    recorder.classify("parameter", parameters)
    recorder.classify("gradient", (p.grad for p in parameters if p.grad is not None))
    state = (value for values in optimizer.state.values() for value in values.values())
    recorder.classify("optimizer_state", (value for value in state if isinstance(value, torch.Tensor)))
