"""Values that are known on the virtual device: what came from the host, and what is made of it alone.

A value belongs to a storage: a real storage of the same bytes on the host stands for it. A tensor's value is a tensor
there with the same offset, sizes and strides; so views need nothing, and a change in place changes the storage.
An op whose inputs are all known is computed for real on the host, within the bounds below. An op that changes a storage
and has an unknown input makes it unknown. The host's bytes count nothing: what the device allocates is as ever.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, final

import torch

from elbowroom.capture.virtual.effects import changed, effects_of
from elbowroom.capture.virtual.tensor import CPU, is_virtual
from elbowroom.runtime._torch_compat import set_storage, storage_key, without_torch_function

aten: Any = torch.ops.aten
WHOLE_BYTES = 2**24
"""Integer and bool storages up to this size have values."""
FLOAT_BYTES = 2**20
"""Float storages up to this size have values; larger ones of the host have no bytes either."""
DRAWN_BYTES = 2**16
"""Random floats up to this size are drawn: masks come from them, and weights that nobody reads."""
TOTAL_BYTES = 2**29
"""All values together take no more memory of the host."""
TOTAL_NS = 60 * 10**9
"""Computing values takes no more time."""

NEVER = frozenset(("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot", "addbmm"))
NEVER_PARTS = ("conv", "attention", "rnn", "lstm", "gru", "linalg", "fft", "cdist", "pool", "grid", "grouped_mm")
"""Names of ops, and parts of them, that are never computed: what networks are made of."""
EMPTY = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}
OVERWRITES = {
    aten.copy_.default,
    aten.fill_.Scalar,
    aten.fill_.Tensor,
    aten.zero_.default,
    aten.random_.default,
    aten.random_.to,
    aten.random_.__getattr__("from"),
    aten.uniform_.default,
    aten.normal_.default,
    aten.bernoulli_.float,
    aten.bernoulli_.Tensor,
    aten.exponential_.default,
}
"""Ops that change all of a tensor, whatever was there."""


Assume = Callable[["KnownValues", Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]], None]


@final
class _Watch(weakref.ref[torch.UntypedStorage]):
    """Reference to the storage of a virtual tensor that knows its key."""

    __slots__ = ("key",)
    key: int


@final
class _Entry:
    """The value of one storage; not `certain` where anything that is not known had a part in it."""

    __slots__ = ("certain", "real", "watch")

    def __init__(self, real: torch.UntypedStorage, certain: bool, watch: _Watch) -> None:
        self.real, self.certain, self.watch = real, certain, watch


class Outcome(NamedTuple):
    """What an op gave on the host, and whether nothing that is not known had a part in it."""

    found: Any
    certain: bool


@final
class KnownValues:
    """Values of virtual tensors, by storage.

    Args:
        assume: may give values to what an op with unknown inputs made or changed.

    Attributes:
        spent_ns: how long computing them took.
        held_bytes: what they take on the host.
    """

    current: KnownValues | None = None
    """Those of the virtual device that is on."""

    def __init__(self, assume: Assume) -> None:
        self._assume = assume
        self._entries: dict[int, _Entry] = {}
        self._cannot: set[Any] = set()
        self._numbers = torch.Generator("cpu").manual_seed(0).get_state()
        self.spent_ns = 0
        self.held_bytes = 0

    # What is known

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor on the host with the value of this one, on the same bytes; None where it is not known."""
        if not is_virtual(tensor):
            return None if tensor.is_meta else tensor
        entry = self._entry(tensor)
        return None if entry is None else self._seen(tensor, entry)

    def is_certain(self, tensor: torch.Tensor) -> bool:
        """Whether it is known, and not made of anything assumed."""
        if not is_virtual(tensor):
            return not tensor.is_meta
        entry = self._entry(tensor)
        return entry is not None and entry.certain

    def keep(self, tensor: torch.Tensor, real: torch.Tensor, certain: bool = True) -> bool:
        """Let `real` be the value of a tensor that is alone on its storage; False where that is out of bounds."""
        if not is_virtual(tensor) or not self._may_have(tensor) or tensor.shape != real.shape:
            return False
        storage = tensor.untyped_storage()
        size_bytes = storage.nbytes()
        if not self._fits(real, tensor, size_bytes):
            placed = torch.zeros(size_bytes // tensor.element_size(), dtype=tensor.dtype, device=CPU)
            placed.as_strided(tensor.shape, tensor.stride(), int(tensor.storage_offset())).copy_(real)
            real = placed
        self._put(storage, real.untyped_storage(), certain)
        return True

    def alias(self, tensor: torch.Tensor, real: torch.Tensor) -> None:
        """Let the bytes of `real` be those of a virtual tensor with the same offset, sizes and strides."""
        if self._may_have(tensor) and real.layout is torch.strided and not real.storage_offset():
            self._put(tensor.untyped_storage(), real.untyped_storage(), True)

    def drop(self, tensor: torch.Tensor) -> None:
        """The value of its storage is not known any more."""
        if is_virtual(tensor) and tensor.layout is torch.strided:
            self._forget(storage_key(tensor.untyped_storage()))

    @contextmanager
    def used(self) -> Iterator[None]:
        """While they are those of the device that is on; at the end everything is forgotten."""
        before, KnownValues.current = KnownValues.current, self
        try:
            yield
        finally:
            KnownValues.current = before
            self._entries.clear()
            self.held_bytes = 0

    def _entry(self, tensor: torch.Tensor) -> _Entry | None:
        if tensor.layout is not torch.strided or tensor.is_neg() or tensor.is_complex():
            return None
        return self._entries.get(storage_key(tensor.untyped_storage()))

    def _seen(self, tensor: torch.Tensor, entry: _Entry) -> torch.Tensor | None:
        made = torch.empty(0, dtype=tensor.dtype, device=CPU)
        try:
            set_storage(made, entry.real, int(tensor.storage_offset()), tensor.shape, tensor.stride())
        except RuntimeError:  # the virtual storage grew, or is read as another type
            self._forget(entry.watch.key)
            return None
        return made

    def _may_have(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
            return False
        size_bytes = tensor.untyped_storage().nbytes()
        most = FLOAT_BYTES if tensor.is_floating_point() else WHOLE_BYTES
        return size_bytes < most and self.held_bytes + size_bytes <= TOTAL_BYTES and self.spent_ns < TOTAL_NS

    def _fits(self, real: torch.Tensor, tensor: torch.Tensor, size_bytes: int) -> bool:
        return (
            real.dtype is tensor.dtype
            and real.stride() == tensor.stride()
            and not real.storage_offset()
            and not tensor.storage_offset()
            and real.untyped_storage().nbytes() == size_bytes
        )

    def _put(self, storage: torch.UntypedStorage, real: torch.UntypedStorage, certain: bool) -> None:
        key = storage_key(storage)
        self._forget(key)
        watch = _Watch(storage, self._died)
        watch.key = key
        self._entries[key] = _Entry(real, certain, watch)
        self.held_bytes += real.nbytes()

    def _died(self, watch: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(watch, _Watch)
        entry = self._entries.get(watch.key)
        if entry is not None and entry.watch is watch:
            self._forget(watch.key)

    def _forget(self, key: int) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.held_bytes -= entry.real.nbytes()

    # What ops do to it

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        """Give the results of an op their values, and change those of what it changes."""
        effects = effects_of(func)
        if effects.views:
            return
        written = [each for each in changed(effects, args, kwargs) if is_virtual(each)]
        results = list(_flat((made,)))
        if not self._followed(func, args, kwargs, results, written):
            for tensor in written:
                self.drop(tensor)
            self._assume(self, func, args, kwargs, results)

    def computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome | None:
        """What an op that changes nothing gives on the host; None where that is not known."""
        if func in self._cannot or self.spent_ns >= TOTAL_NS:
            return None
        certain = self._certainty((*args, *kwargs.values()))
        return None if certain is None else self._run(func, args, kwargs, certain)

    def _followed(
        self, func: Any, args: Any, kwargs: Any, results: list[torch.Tensor], written: list[torch.Tensor]
    ) -> bool:
        if not written and not all(map(self._may_have, results)):
            return False
        if func in EMPTY:
            return self._emptied(results)
        if not self._is_cheap(func, (*results, *written)):
            return False
        if func in OVERWRITES and not self._renew(args[0]):
            return False
        outcome = self.computed(func, args, kwargs)
        if outcome is None:
            return False
        keys = {storage_key(tensor.untyped_storage()) for tensor in written}
        for key in keys & self._entries.keys():
            self._entries[key].certain &= outcome.certain
        for result, real in zip(results, _flat((outcome.found,)), strict=False):
            if storage_key(result.untyped_storage()) not in keys:
                self.keep(result, real, outcome.certain)
        return True

    def _certainty(self, values: Iterable[Any]) -> bool | None:
        """Whether all tensors are certain; None where one is not known."""
        certain = True
        for tensor in _flat(values):
            if is_virtual(tensor):
                entry = self._entry(tensor)
                if entry is None:
                    return None
                certain = certain and entry.certain
            elif tensor.is_meta:
                return None
        return certain

    def _run(self, func: Any, args: Any, kwargs: Any, certain: bool) -> Outcome | None:
        begin = time.perf_counter_ns()
        draws = torch.Tag.nondeterministic_seeded in func.tags
        try:
            with without_torch_function(), self._random() if draws else nullcontext():
                return Outcome(func(*map(self._real, args), **self._keywords(kwargs)), certain)
        except NotImplementedError:
            self._cannot.add(func)
            return None
        except (RuntimeError, ValueError, TypeError, IndexError):  # its meta kernel says what is wrong
            return None
        finally:
            self.spent_ns += time.perf_counter_ns() - begin

    @contextmanager
    def _random(self) -> Iterator[None]:
        """Draw from numbers of our own: those of the host are the user's."""
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(self._numbers)
        try:
            yield
        finally:
            self._numbers = torch.default_generator.get_state()
            torch.default_generator.set_state(before)

    def _emptied(self, results: list[Any]) -> bool:
        for result in results:
            if is_virtual(result):
                self.keep(result, torch.zeros((), dtype=result.dtype, device=CPU).expand(result.shape))
        return True

    def _renew(self, target: torch.Tensor) -> bool:
        """Make place for the value of a tensor that is about to be overwritten as a whole."""
        if not is_virtual(target) or self._entry(target) is not None:
            return True
        whole = target.numel() * target.element_size() == target.untyped_storage().nbytes()
        return whole and self.keep(target, torch.zeros((), dtype=target.dtype, device=CPU).expand(target.shape))

    def _is_cheap(self, func: Any, made: Iterable[torch.Tensor]) -> bool:
        name: str = func.__name__.partition(".")[0].rstrip("_")
        if name in NEVER or any(part in name for part in NEVER_PARTS):
            return False
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return True
        return all(not each.is_floating_point() or _bytes(each) <= DRAWN_BYTES for each in made)

    def _real(self, value: Any) -> Any:
        if is_virtual(value):
            return self.of(value)
        if isinstance(value, list | tuple):
            return type(value)(map(self._real, value)) if type(value) in (list, tuple) else value
        return CPU if isinstance(value, torch.device) else value

    def _keywords(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {name: self._real(value) for name, value in kwargs.items() if name != "pin_memory"}


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flat(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _flat(value)
