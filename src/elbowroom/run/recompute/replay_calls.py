"""Replay: makes the calls of a program again, with bit-equal results.

The calls run as they did inside autograd's own kernels: without autograd, autocast and modes, under the same settings.
Grad mode and `requires_grad` are as they were, because kernels look at these when they choose how to compute. Random
ops draw from the states that the step's generator had there. The generator's own state is restored afterwards.
Temporary results are freed after their last use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from elbowroom.engine.storages import tensors_of
from elbowroom.run.recompute.call_recorder import (
    CallStorage,
    OpCall,
    View,
    flags_now,
    generator_state,
    set_generator_state,
)
from elbowroom.run.recompute.own_calls import Own
from elbowroom.run.recompute.recompute_programs import Program
from elbowroom.torch_compat.core import set_storage
from elbowroom.torch_compat.op_calls import replaying

Storages = dict[CallStorage, torch.UntypedStorage]


def replay(
    program: Program,
    entry: Callable[[int], torch.UntypedStorage],
    states: Mapping[OpCall, torch.Tensor],
    device: torch.device,
    made: Storages,
    began: Callable[[int], None],
    own: Mapping[OpCall, Own] | None = None,
) -> None:
    """Make the calls of a program.

    Args:
        program: the calls.
        entry: returns the n-th saved storage, on the device.
        states: call -> the generator's state from which this step drew there.
        device: the device to run on.
        made: filled with what the program rebuilds.
        began: called with the number of each call before it is made.
        own: for calls that get other arguments than the recorded ones, these: see own_calls.py.
    """
    with _as_recorded(program, device):
        for at, call in enumerate(program.calls):
            began(at)
            if call in states:
                set_generator_state(device, states[call])
            with torch.set_grad_enabled(call.with_grad):
                given = (_Form if call.of_form else _Given)(program, entry, device, made)
                args, kwargs = (own or {}).get(call) or (call.args, call.kwargs)
                result = call.op(*given.value(args), **given.named(kwargs))
                for place, tensor in enumerate(tensors_of(result)):
                    if place in call.results:
                        made[call.results[place]] = tensor.untyped_storage()
                del given, result
            for source in program.dies[at]:
                made.pop(source, None)


class _Given:
    """Makes the arguments of a call from what was recorded of them."""

    def __init__(
        self,
        program: Program,
        entry: Callable[[int], torch.UntypedStorage],
        device: torch.device,
        made: Storages,
    ) -> None:
        self._program = program
        self._entry = entry
        self.device = device
        self._made = made

    def named(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the recorded keyword arguments."""
        return self.value(dict(kept))

    def value(self, kept: Any) -> Any:
        """Return the value of one recorded argument."""
        if isinstance(kept, View):
            return self.tensor(kept)
        if isinstance(kept, dict):
            return {name: self.value(each) for name, each in kept.items()}  # pyright: ignore[reportUnknownVariableType]
        if isinstance(kept, (list, tuple)):
            return type(kept)(self.value(each) for each in kept)  # pyright: ignore[reportUnknownVariableType]
        return kept

    def tensor(self, view: View) -> torch.Tensor:
        """Return a tensor on the storage of the recorded one, with its layout."""
        tensor = torch.empty(0, dtype=view.dtype, device=self.device)
        set_storage(tensor, self._storage(view.source), view.offset, view.shape, view.stride)
        return tensor.requires_grad_() if view.requires_grad else tensor

    def _storage(self, source: CallStorage) -> torch.UntypedStorage:
        found = self._made.get(source)
        if found is None:
            found = self._entry(source.saved) if source.saved is not None else _owned(source)
            if source in self._program.copied:
                found = self._made[source] = found.clone()
        return found


class _Form(_Given):
    """Makes arguments of a call that needs only their shapes and types. A dropped storage need not come back for it."""

    def named(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments with the device, as tensors on "meta" do not show it."""
        given = super().named(kept)
        return given if given.get("device") is not None else {**given, "device": self.device}

    def tensor(self, view: View) -> torch.Tensor:
        """Return a tensor of the same shape, strides and type, without bytes."""
        return torch.empty_strided(view.shape, view.stride, dtype=view.dtype, device="meta")


def _owned(source: CallStorage) -> torch.UntypedStorage:
    tensor = None if source.owner is None else source.owner()
    assert tensor is not None, "the owners of a program are looked at before it runs"
    return tensor.untyped_storage()


@contextmanager
def _as_recorded(program: Program, device: torch.device) -> Iterator[None]:
    """Set the recorded settings, and restore the present ones at the end."""
    with ExitStack() as stack:
        if program.draws:
            stack.callback(set_generator_state, device, generator_state(device))
        before = flags_now()
        if before != program.flags:
            stack.callback(_set_flags, before)
            _set_flags(program.flags)
        for context in replaying():
            stack.enter_context(context)
        yield


def _set_flags(flags: tuple[Any, ...]) -> None:
    """Set the settings that `flags_now` reads."""
    precision, deterministic, of_cudnn, of_matmul, with_mkldnn, threads = flags
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
    cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = of_cudnn
    matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction = of_matmul
    torch.backends.mkldnn.enabled = with_mkldnn  # pyright: ignore[reportAttributeAccessIssue]
    torch.set_num_threads(threads)
