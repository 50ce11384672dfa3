"""Saved-tensor hooks: how elbowroom sees every tensor that autograd saves and reads back.

`torch.autograd.graph.saved_tensors_hooks` hands every tensor that autograd saves to `pack` and asks `unpack` for it in
backward. Some tensors pass through unchanged: small ones, those that are not strided, those on another device than the
room's, and those that may never move. Any other becomes a `Handle` on an executor entry. A tensor that wraps others
becomes several (tensor_subclasses.py). See Note: [Versions] in executor.py.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import torch
from torch.autograd.graph import saved_tensors_hooks

from elbowroom.engine.entries import Entry
from elbowroom.engine.executor import ON_DEVICE, Executor
from elbowroom.engine.storages import PLAIN_TYPES, RAW_STORAGE, is_plain
from elbowroom.engine.tensor_subclasses import Wrapped, taken_apart
from elbowroom.torch_compat.core import hooks_allowed, never_compiled, no_dispatch, top_hooks, version_of
from elbowroom.torch_compat.op_calls import modes_on
from elbowroom.torch_compat.subclasses import (
    adds_no_dispatch,
    as_plain,
    base_of,
    made_by_a_transform,
    transform_now,
    transforms_allowed,
)

META = torch.device("meta")
"""Device of tensors without bytes."""


class Director(ABC):
    """Policy that decides at each tick. There are two: that of a run, and that of a capture.

    Attributes:
        watched: whether the ops of the step are recorded, so that our own ops must run `aside`.
        observes: whether `handled` is called for each handle.
    """

    watched: bool = False
    observes: bool = False

    @abstractmethod
    def first_save(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> Entry | None:
        """Return the entry of a storage at its first save, swapped out if wanted; None: it takes no part."""

    @abstractmethod
    def aside(self) -> AbstractContextManager[None]:
        """Return a context for the engine's own work, which is not part of the step."""

    @abstractmethod
    def handled(self, handle: Handle) -> None:
        """Note a new handle. Called if it `observes`."""

    def stays(self, tensor: torch.Tensor) -> None:  # noqa: B027 - for directors that count them
        """Note a large tensor that stays: it is on another device, or of a subclass that cannot be rebuilt."""

    @abstractmethod
    def before_read(self, entry: Entry) -> None:
        """Act before a saved tensor on this entry is read back."""


Passed = tuple[torch.Tensor, int]
"""A saved tensor that stays where it is, and its version at the save."""


@final
class Handle:
    """One saved tensor on an entry.

    Attributes:
        entry: the entry of its storage.
        counter: a tensor that shares the saved one's version counter. If the entry is kept, it is the saved tensor
            itself. If the entry is swapped or dropped, it has no bytes.
        version: value of the counter at the save.
        layout: (dtype, shape, stride in elements, offset in elements) to rebuild the tensor; None if `counter` is it.
    """

    __slots__ = ("__weakref__", "counter", "entry", "executor", "layout", "version")

    def __init__(self, executor: Executor, entry: Entry, tensor: torch.Tensor) -> None:
        self.executor = executor
        self.entry = entry
        self.version = version_of(tensor)
        self.layout: tuple[torch.dtype, torch.Size, tuple[int, ...], int] | None = None
        if entry.slot is None and entry.place is ON_DEVICE:
            self.counter = _without_graph(tensor)
        else:
            self._let_go(tensor)

    def let_go(self) -> None:
        """Hold no bytes any more, as the entry is swapped or dropped."""
        self._let_go(self.counter)

    def _let_go(self, tensor: torch.Tensor) -> None:
        dtype = tensor.dtype
        self.layout = (dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()))
        self.counter = tensor.detach()
        self.counter.data = self.executor.blanks[dtype]

    @never_compiled
    def __del__(self) -> None:
        self.executor.handle_died(self.entry)


@final
class Hooks:
    """Pair of saved-tensor hooks, for one director.

    Args:
        executor: moves the storages.
        director: decides at each tick.
        min_size_bytes: smaller storages pass through.

    Attributes:
        out: whether the hooks are removed, so that autograd does not call them.
        read: whether a saved tensor was read back since this was last unset.
    """

    def __init__(self, executor: Executor, director: Director, min_size_bytes: int) -> None:
        self._executor = executor
        self._device = executor.device
        self._director = director
        self._min_size_bytes = max(min_size_bytes, 1)
        self._pair = saved_tensors_hooks(self.pack, self.unpack)
        self._transforms = transforms_allowed(self._pair.pack_hook)
        self._below: tuple[Any, Any] | None = None
        self._thread = 0
        self._forked = False
        self.out = True
        self.read = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Context in which autograd of this thread calls the hooks, unless the user installs others inside."""
        with self._pair, self._transforms:
            yield

    def open(self) -> None:
        """Enter the context of `installed`."""
        self._thread = threading.get_ident()
        self._pair.__enter__()
        self._transforms.__enter__()
        self.out = False

    def close(self) -> None:
        """Leave the context of `installed`."""
        self._transforms.__exit__(None, None, None)
        if not self.out:
            self._pair.__exit__(None, None, None)

    def leave_behind(self) -> None:
        """Let all that is saved from now on stay, in a process that was forked."""
        self._forked = True

    def take_out(self) -> bool:
        """Remove the hooks for a while, until `put_back`. Returns whether they were removed.

        They stay under hooks of the user, and in another thread.
        """
        top = top_hooks()
        if self.out or top is None or top[0] is not self._pair.pack_hook or self._thread != threading.get_ident():
            return False
        self._pair.__exit__(None, None, None)
        self._below = top_hooks()
        self.out = True
        return True

    def put_back(self) -> None:
        """Install the hooks again after `take_out`.

        Hooks of the user that came in between prevent it: leaving their context would remove ours in their place.
        """
        if self.out and top_hooks() == self._below and hooks_allowed() and self._thread == threading.get_ident():
            self._pair.__enter__()
            self.out = False

    @never_compiled
    def pack(self, tensor: torch.Tensor) -> Packed:
        """Return what autograd keeps in place of a saved tensor."""
        if self._forked:
            return _passed(tensor)
        if type(tensor) not in PLAIN_TYPES:
            return self._pack_subclass(tensor)
        if tensor.device != self._device or not is_plain(tensor):
            if self._is_elsewhere(tensor):
                self._director.stays(tensor)
            return _passed(tensor)
        storage = RAW_STORAGE(tensor)
        if storage.nbytes() < self._min_size_bytes:
            return _passed(tensor)
        if self._director.watched or modes_on():
            with self._director.aside(), no_dispatch():
                return self._packed(storage, tensor)
        return self._packed(storage, tensor)

    def _is_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor would be a candidate if it were on the room's device."""
        if tensor.device in (self._device, META) or not is_plain(tensor):
            return False
        is_large = tensor.untyped_storage().nbytes() >= self._min_size_bytes
        base = base_of(tensor)
        return is_large and not isinstance(tensor if base is None else base, torch.nn.Parameter)

    def _packed(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> Passed | Handle:
        executor, director = self._executor, self._director
        entry = executor.find(storage)
        if entry is None:
            entry = director.first_save(storage, tensor)
            if entry is None:
                return _passed(tensor)
        else:
            executor.handle_made(entry)
            if entry.leaves and (entry.version != version_of(tensor) or entry.changed()):
                executor.keep(entry)
        handle = Handle(executor, entry, tensor)
        if director.observes:
            director.handled(handle)
        return handle

    def _pack_subclass(self, tensor: torch.Tensor) -> Packed:
        if adds_no_dispatch(type(tensor)):
            return self.pack(as_plain(tensor))
        apart = taken_apart(tensor)
        if apart is None:
            if tensor.numel() * tensor.element_size() >= self._min_size_bytes:
                self._director.stays(tensor)
            return _passed(tensor)
        parts = {name: self.pack(part) for name, part in apart[0].items()}
        wrapped = Wrapped(tensor, parts, apart[1])
        handles = list(_handles(wrapped))
        for handle in handles:
            if wrapped.version and handle.entry.leaves and handle.entry.handles > 1:
                self._executor.keep(handle.entry)  # it may have been changed since the others were saved
            handle.entry.watched += ((wrapped.counter, wrapped.version),)
        return wrapped if handles else _passed(tensor)

    @never_compiled
    def unpack(self, packed: Packed) -> torch.Tensor:
        """Return the saved tensor, bit for bit. Raises RuntimeError if it was changed in place, as autograd does."""
        self.read = True
        if type(packed) is Handle:
            if self._director.watched or modes_on():
                with self._director.aside(), no_dispatch():
                    return self._unpacked(packed)
            return self._unpacked(packed)
        if isinstance(packed, Wrapped):
            if version_of(packed.counter) != packed.version:
                found = packed.counter
                raise _changed_in_place(found.dtype, found.shape, version_of(found), packed.version)
            parts = {name: self.unpack(part) for name, part in packed.parts.items()}
            with torch.no_grad():
                return packed.rebuild(parts)
        tensor, version = packed
        if version_of(tensor) != version:
            raise _changed_in_place(tensor.dtype, tensor.shape, version_of(tensor), version)
        return tensor

    def _unpacked(self, handle: Handle) -> torch.Tensor:
        entry = handle.entry
        self._director.before_read(entry)
        counter = handle.counter  # read after before_read(), which may free what an observed step has just written
        if version_of(counter) != handle.version:
            dtype, shape = handle.layout[:2] if handle.layout else (counter.dtype, counter.shape)
            raise _changed_in_place(dtype, shape, version_of(counter), handle.version)
        if handle.layout is None:
            entry.reads += 1
            return counter
        return _rebuild(handle, self._executor.read(entry))


def _passed(tensor: torch.Tensor) -> Passed:
    return _without_graph(tensor), version_of(tensor)


Packed = Passed | Handle | Wrapped


def _handles(packed: Packed) -> Iterator[Handle]:
    if isinstance(packed, Handle):
        yield packed
    elif isinstance(packed, Wrapped):
        for part in packed.parts.values():
            yield from _handles(part)


def _without_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same tensor without its place in the graph, which autograd restores when it unpacks.

    An output that an op saves refers to the op's node, and the node to what is packed. No garbage collector sees this
    cycle. So a graph without backward would never be freed. A view that was made without gradients, as DTensor makes
    one of each output, is a leaf. It holds the tensor that it is a view of, and so that one's place in the graph.
    """
    base = base_of(tensor)
    if tensor.is_leaf and (base is None or base.is_leaf):
        return tensor
    if not modes_on() or type(tensor) not in PLAIN_TYPES or made_by_a_transform(tensor) or transform_now() is not None:
        return tensor.detach()  # not below dispatch: a tensor that stands for others would lose them there
    with no_dispatch():
        return tensor.detach()


def _rebuild(handle: Handle, storage: torch.UntypedStorage) -> torch.Tensor:
    assert handle.layout is not None
    dtype, shape, stride, offset = handle.layout
    tensor = handle.counter.detach()
    whole: Any = handle.executor.blanks[dtype].detach()
    tensor.data = whole.set_(storage, offset, shape, stride)
    return tensor


def _changed_in_place(dtype: torch.dtype, shape: torch.Size, found: int, saved: int) -> RuntimeError:
    """Return autograd's own error, in its words, so that code that catches or explains it works here too."""
    kind = torch.empty(0, dtype=dtype).type()
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{kind} {list(shape)}] is at version {found}; expected version {saved} instead. Hint: enable anomaly "
        "detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True)."
    )
