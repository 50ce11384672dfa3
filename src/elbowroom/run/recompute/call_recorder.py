"""Recording of calls: what forward called in one step, with all arguments, so that parts of it can run again.

A trace has the names of its ops and no arguments. One step records these: the op, its plain values, and for each tensor
its storage and its layout there. A recording keeps no tensor alive. It knows a storage by what made it: a call, a
parameter or buffer of a module, or something unknown. It also knows which saved storage of the step it is.

Note: [Where calls are seen]
The recorder sees every operator that is not composed of others (OperatorWatcher in op_calls.py). So torch takes the
same paths as without a recorder; with a dispatch mode it would not. If autocast casts the arguments of an op, the
recorder sees the casts first. Then it sees the op with the cast arguments. All calls within one op of a trace are one
group.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, final

import torch

from elbowroom.engine.storages import alive_of, is_plain, storage_of, tensors_of
from elbowroom.torch_compat.core import schema_of, storage_key
from elbowroom.torch_compat.op_calls import (
    BackwardApart,
    before_compiling,
    call_with_autocast,
    casts_first,
    modes_on,
    watcher_of_calls,
)
from elbowroom.torch_compat.operators import reads_bytes

VALUES = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of arguments that are not tensors, and mean the same in any step."""

APART = "profiler."
"""Namespace of ops that do no work, and that traces leave out."""

Owner = weakref.ref[torch.Tensor]


@dataclass(slots=True, eq=False)
class CallStorage:
    """Storage that a call read or made.

    Attributes:
        size_bytes: its size.
        alive: weak reference to it.
        maker: the call that made it; None if that is not known.
        met_in: the call that ran when it was first met: autograd saves a result before the call has returned it.
        owner: the parameter or buffer that it belongs to.
        saved: n, if it is the n-th saved storage of the step.
        node: name of the autograd node of the saved tensor.
        after: how many calls had begun when it was saved.
        used_bytes: how much of it the tensors reach that its maker returned.
    """

    size_bytes: int
    alive: weakref.ref[torch.UntypedStorage]
    maker: OpCall | None = None
    met_in: OpCall | None = None
    owner: Owner | None = None
    saved: int | None = None
    node: str = ""
    after: int = 0
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """Tensor argument: its storage, and its layout there."""

    source: CallStorage
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool


@dataclass(slots=True, eq=False)
class OpCall:
    """One op that ran.

    Attributes:
        op: its overload.
        name: its name, such as "aten.convolution".
        args, kwargs: its arguments; a tensor is a `View`.
        with_grad: whether grad mode was on.
        flags: settings that change numbers, see `flags_now`.
        autocast: the type that autocast was on for; None if it was off. An op may call others, which it casts.
        results: place among the tensors that it returned -> the storage that it made there.
        unfit: why it cannot run again; "" if it can.
    """

    op: Any
    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    with_grad: bool = True
    flags: tuple[Any, ...] = ()
    autocast: torch.dtype | None = None
    results: dict[int, CallStorage] = field(default_factory=dict[int, CallStorage])
    unfit: str = ""

    @property
    def of_form(self) -> bool:
        """Whether it needs only shape and type of its tensor arguments, not their bytes."""
        return not reads_bytes(self.name)

    def used(self) -> list[View]:
        """Return the tensors whose bytes it reads or writes."""
        return [] if self.of_form else list(views_of((self.args, self.kwargs)))


@dataclass(slots=True, eq=False)
class Group:
    """One op of a trace: its name and its calls."""

    name: str
    calls: list[OpCall] = field(default_factory=list[OpCall])


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """All that forward called in one step.

    Attributes:
        groups: the ops, in order.
        saved: n -> the n-th saved storage of the step.
    """

    groups: list[Group]
    saved: dict[int, CallStorage]

    def parts(self) -> list[object]:
        """Return all that a program may hold of these calls: itself, calls, storages, references to their owners."""
        calls = [call for group in self.groups for call in group.calls]
        sources = {id(each): each for each in self.saved.values()}
        for call in calls:
            sources.update((id(each), each) for each in call.results.values())
            sources.update((id(view.source), view.source) for view in views_of((call.args, call.kwargs)))
        owners = [each.owner for each in sources.values() if each.owner is not None]
        return [self, *calls, *sources.values(), *owners]


@final
class CallRecorder:
    """Records calls from `start` to `stop`, outside of backward.

    Args:
        device: tensors of other devices make a call unfit.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._groups: list[Group] = []
        self._saved: dict[int, CallStorage] = {}
        self._sources: dict[int, CallStorage] = {}
        self._owners = _owners()
        self._open: Group | None = None
        self._running: OpCall | None = None
        self._count = 0
        self._apart: BackwardApart | None = None

    def start(self) -> None:
        """Watch this thread from now on. If a dispatch or function mode is on, nothing is recorded."""
        if modes_on():
            return
        watcher = watcher_of_calls()
        watcher.seen = self._called
        before_compiling(None)
        self._apart = BackwardApart(lambda: watcher.turn(on=False), lambda before: watcher.turn(on=before))
        watcher.turn(on=True)

    @staticmethod
    def paused() -> AbstractContextManager[None]:
        """Return a context for the run's own work, which is not part of the step."""
        return watcher_of_calls().unwatched()

    def stop(self) -> Calls:
        """Stop recording, and return the recorded calls. May be called again."""
        if self._apart is not None:
            self._apart.close()
            self._apart = None
            watcher_of_calls().turn(on=False)
            watcher_of_calls().seen = watcher_of_calls().plainly
        return Calls(self._groups, self._saved)

    def saves(self, n: int, storage: torch.UntypedStorage, tensor: torch.Tensor) -> None:
        """Note the n-th saved storage of the step."""
        source = self._saved[n] = self._source(storage)
        source.saved, source.node, source.after = n, node_of(tensor), self._count

    def _called(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = schema_of(op).name.replace("::", ".")
        if name.startswith(APART):
            with watcher_of_calls().unwatched():
                return op(*args, **kwargs)
        outermost = self._open is None
        if outermost:
            self._open = Group(name)
            self._groups.append(self._open)
        try:
            if casts_first(op, self._device.type):
                return call_with_autocast(op, self._device.type, args, kwargs)
            call = self._begun(op, name, args, kwargs)
            with watcher_of_calls().unwatched():
                result = op(*args, **kwargs)
                self._ended(call, result)
            return result
        finally:
            self._running = None
            if outermost:
                self._open = None

    def _begun(self, op: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpCall:
        call = OpCall(op, name, with_grad=torch.is_grad_enabled(), flags=flags_now())
        call.autocast = autocast_now(self._device)
        assert self._open is not None, "a call is part of a group"
        self._open.calls.append(call)
        self._count += 1
        with watcher_of_calls().unwatched():
            call.args = tuple(self._kept(call, each) for each in args)
            call.kwargs = {name: self._kept(call, each) for name, each in kwargs.items()}
        self._running = call
        return call

    def _ended(self, call: OpCall, result: Any) -> None:
        for place, tensor in enumerate(tensors_of(result)):
            storage = storage_of(tensor)
            source = None if storage is None else self._source(storage)
            if source is not None and source.met_in is call and source.maker is None:
                source.maker = call
                call.results[place] = source
            if source is not None and source.maker is call:
                source.used_bytes = max(source.used_bytes, _end_bytes(tensor))

    def _kept(self, call: OpCall, value: Any) -> Any:
        """Return what is recorded of an argument: a `View` in place of a tensor."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._kept(call, each) for each in value)  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, torch.Tensor):
            storage = storage_of(value)
            if storage is None or value.device != self._device or not is_plain(value):
                call.unfit = "has a tensor of another device or of a kind that cannot be laid out again"
                return None
            place = (value.dtype, tuple(value.shape), tuple(value.stride()), int(value.storage_offset()))
            return View(self._source(storage), *place, value.requires_grad)
        if not isinstance(value, VALUES):
            call.unfit = f"has an argument of type {type(value).__name__}"
            return None
        return value

    def _known(self, storage: torch.UntypedStorage) -> CallStorage | None:
        found = self._sources.get(storage_key(storage))
        return found if found is not None and found.alive() is storage else None

    def _source(self, storage: torch.UntypedStorage) -> CallStorage:
        found = self._known(storage)
        if found is None:
            key = storage_key(storage)
            owner = self._owners.get(key)
            owned = owner is not None and (tensor := owner()) is not None and tensor.untyped_storage() is storage
            found = CallStorage(storage.nbytes(), weakref.ref(storage), None, self._running, owner if owned else None)
            self._sources[key] = found
        return found


def _end_bytes(tensor: torch.Tensor) -> int:
    """Return where the last element of a tensor ends in its storage."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(tensor.storage_offset()) + last + 1) * tensor.element_size()


def flags_now() -> tuple[Any, ...]:
    """Return the settings of this process that change the numbers of kernels."""
    cudnn, matmul, mkldnn = torch.backends.cudnn, torch.backends.cuda.matmul, torch.backends.mkldnn
    return (
        torch.get_float32_matmul_precision(),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        (cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic),
        (matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction),
        mkldnn.enabled,
        torch.get_num_threads(),
    )


def autocast_now(device: torch.device) -> torch.dtype | None:
    """Return the type that autocast is on for; None if it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def generator_state(device: torch.device) -> torch.Tensor:
    """Return the state of a device's default generator."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_generator_state(device: torch.device, state: torch.Tensor) -> None:
    """Set the state of a device's default generator."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def node_of(tensor: torch.Tensor) -> str:
    """Return the name of the autograd node that made a tensor; "" if none did."""
    return "" if tensor.grad_fn is None else tensor.grad_fn.name()


def views_of(value: Any) -> Iterator[View]:
    """Yield the tensors in recorded arguments, in order."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, dict):
        for each in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from views_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            yield from views_of(each)


def _owners() -> dict[int, Owner]:
    """Return storage key -> parameter or buffer, of all modules that Python knows of."""
    found: dict[int, Owner] = {}
    for module in alive_of(torch.nn.Module):
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            storage = storage_of(tensor)
            if storage is not None:
                found[storage_key(storage)] = weakref.ref(tensor)
    return found
