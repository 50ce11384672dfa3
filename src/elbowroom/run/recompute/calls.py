"""Calls: what forward called in one step, with all arguments, so that parts of it can run again.

A trace has the names of its ops and no arguments. They are recorded once, in one step: the op, plain values as they
are, and of each tensor on which storage it lies and how. Nothing that is recorded keeps a tensor alive. A storage is
known as what made it: a call, a parameter or buffer of a module, or nothing that is known; and as the n-th saved one.

Note: [Where calls are seen]
The recorder stands before every operator that is not composed of others (Watcher in op_calls.py), so that
torch takes the ways that it takes without one; a dispatch mode would not do. An op that autocast casts the arguments of
is seen as the casts and the op with what came of them. All that happens in one op of a trace is one group.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, final

import torch

from elbowroom.engine.storages import alive_of, is_plain, storage_of, tensors_of
from elbowroom.torch_compat.core import schema_of, storage_key
from elbowroom.torch_compat.op_calls import (
    BackwardApart,
    OperatorWatcher,
    call_with_autocast,
    casts_first,
    modes_on,
)
from elbowroom.torch_compat.operators import operator, reads_bytes

VALUES = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Arguments that are no tensors and mean the same whenever they are given."""

APART = "profiler."
"""Namespace of ops that do no work and are in no trace."""

Owner = weakref.ref[torch.Tensor]


@dataclass(slots=True, eq=False)
class CallStorage:
    """A storage that a call read or made.

    Attributes:
        size_bytes: its bytes.
        alive: weak reference to it.
        maker: the call that made it, None where that is not known.
        met_in: the call that ran when it was first met: autograd saves a result before the call has returned it.
        owner: the parameter or buffer that it belongs to.
        saved: it is the n-th saved storage of the step.
        node: name of the autograd node of the tensor that was saved of it.
    """

    size_bytes: int
    alive: weakref.ref[torch.UntypedStorage]
    maker: OpCall | None = None
    met_in: OpCall | None = None
    owner: Owner | None = None
    saved: int | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A tensor argument: how it lies on its storage."""

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
        op: which overload.
        name: such as "aten.convolution".
        args, kwargs: as given; a tensor is a `View`.
        with_grad: whether grad mode was on.
        flags: settings that change numbers, see `flags_now`.
        results: by place among the tensors that it returned, the storage that it made there.
        unfit: why it cannot run again, "" where it can.
    """

    op: Any
    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    with_grad: bool = True
    flags: tuple[Any, ...] = ()
    results: dict[int, CallStorage] = field(default_factory=dict[int, CallStorage])
    unfit: str = ""

    @property
    def of_form(self) -> bool:
        """Whether it takes only shape and type of its tensor arguments: their bytes need not be there."""
        return not reads_bytes(self.name)

    def used(self) -> list[View]:
        """The tensors whose bytes it reads or writes."""
        return [] if self.of_form else list(views_of((self.args, self.kwargs)))


@dataclass(slots=True, eq=False)
class Group:
    """One op of a trace: its name and the calls that it is."""

    name: str
    calls: list[OpCall] = field(default_factory=list[OpCall])


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """All that forward called in one step.

    Attributes:
        groups: in order.
        saved: by n, the n-th saved storage of the step.
    """

    groups: list[Group]
    saved: dict[int, CallStorage]


@final
class CallRecorder:
    """Records from `start` to `stop`, outside of backward.

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
        self._apart: BackwardApart | None = None

    def start(self) -> None:
        """Watch this thread from now on; where modes see calls of their own, nothing is recorded."""
        if modes_on():
            return
        watcher = _watcher()
        watcher.seen = self._called
        self._apart = BackwardApart(lambda: watcher.turn(on=False), lambda before: watcher.turn(on=before))
        watcher.turn(on=True)

    @staticmethod
    def paused() -> AbstractContextManager[None]:
        """Around the runtime's own work, which is not part of the step."""
        return _watcher().unwatched()

    def stop(self) -> Calls:
        """End, and what was recorded. May be called again."""
        if self._apart is not None:
            self._apart.close()
            self._apart = None
            _watcher().turn(on=False)
            _watcher().seen = None
        return Calls(self._groups, self._saved)

    def saves(self, n: int, storage: torch.UntypedStorage, tensor: torch.Tensor) -> None:
        """The n-th saved storage of the step is this one."""
        source = self._saved[n] = self._source(storage)
        source.saved, source.node = n, node_of(tensor)

    def _called(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = schema_of(op).name.replace("::", ".")
        if name.startswith(APART):
            with _watcher().unwatched():
                return op(*args, **kwargs)
        outermost = self._open is None
        if outermost:
            self._open = Group(name)
            self._groups.append(self._open)
        try:
            if casts_first(op, self._device.type):
                return call_with_autocast(op, self._device.type, args, kwargs)
            call = self._begun(op, name, args, kwargs)
            with _watcher().unwatched():
                result = op(*args, **kwargs)
                self._ended(call, result)
            return result
        finally:
            self._running = None
            if outermost:
                self._open = None

    def _begun(self, op: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpCall:
        call = OpCall(op, name, with_grad=torch.is_grad_enabled(), flags=flags_now())
        assert self._open is not None, "a call is part of a group"
        self._open.calls.append(call)
        with _watcher().unwatched():
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

    def _kept(self, call: OpCall, value: Any) -> Any:
        """An argument without the tensor that it is."""
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


def flags_now() -> tuple[Any, ...]:
    """Settings of this process that change the numbers of kernels."""
    cudnn, matmul, mkldnn = torch.backends.cudnn, torch.backends.cuda.matmul, torch.backends.mkldnn
    return (
        torch.get_float32_matmul_precision(),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        (cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic),
        (matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction),
        mkldnn.enabled,
        torch.get_num_threads(),
    )


def node_of(tensor: torch.Tensor) -> str:
    """Name of the autograd node that made a tensor, "" where none did."""
    return "" if tensor.grad_fn is None else tensor.grad_fn.name()


def views_of(value: Any) -> Iterator[View]:
    """The tensors in recorded arguments, in order."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, dict):
        for each in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from views_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            yield from views_of(each)


def _owners() -> dict[int, Owner]:
    """By storage, the parameter or buffer that it belongs to, of all modules that Python knows of."""
    found: dict[int, Owner] = {}
    for module in alive_of(torch.nn.Module):
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            storage = storage_of(tensor)
            if storage is not None:
                found[storage_key(storage)] = weakref.ref(tensor)
    return found


@cache
def _watcher() -> OperatorWatcher:
    """The one of this process."""
    return OperatorWatcher(lambda schema: operator(schema.name, len(schema.arguments)) is None)
