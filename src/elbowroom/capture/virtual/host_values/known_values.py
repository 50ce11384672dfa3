"""Values that are known on the virtual device: what came from the host, and what is made of it alone.

A value belongs to a storage: a real storage of the same bytes on the host stands for it. A tensor's value is a tensor
there with the same offset, sizes and strides; so views need nothing, and a change in place changes the storage.
An op whose inputs are all known is computed for real on the host, within the bounds below. An op that changes a storage
and has an unknown input makes it unknown. The host's bytes count nothing: what the device allocates is as ever.

What is not known and small is assumed once it is asked for, and small ops on it are computed as well: then
probabilities sum to one, positions are in range, and what is said twice is the same. docs/values.md has the rules.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from math import isqrt
from typing import Any, NamedTuple, Protocol, final
from zlib import crc32

import torch

from elbowroom.capture.virtual.host_values.guards import Tape
from elbowroom.capture.virtual.ops.effects import changed, effects_of
from elbowroom.capture.virtual.tensor import CPU, LARGE_BYTES, home_of, is_virtual
from elbowroom.torch_compat.core import set_storage, storage_key, without_torch_function

aten: Any = torch.ops.aten
WHOLE_BYTES = 2**24
"""Integer and bool storages up to this size have values."""
FLOAT_BYTES = 2**22
"""Float storages up to this size have values; larger ones of the host have no bytes either."""
DRAWN_BYTES = 2**16
"""Random floats of the device up to this size are drawn: masks come from them, and weights that nobody reads."""
TOTAL_BYTES = 2**29
"""All values together take no more memory of the host, but for the smallest."""
FREE_BYTES = 2**12
"""Counts, times and flags up to this size have values whatever the others take."""
ASSUMED_BYTES = 2**19
"""Tensors up to this size are assumed where they are not known, and computed from what is assumed."""
MULTIPLICATIONS = 2**22
"""Ops that networks are made of are computed up to so many, less than a millisecond."""
OP_WORK = 2**14
"""What an op costs beside its elements, in elements: about 10 microseconds."""
TOTAL_WORK = 2**35
"""Elements of all ops that are computed, half a minute; a count, so that every computer stops at the same op.

Small ops on what is certain go on: times and counts that loops end on come from them.
"""

HEAVY = frozenset(("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot", "addbmm"))
HEAVY_PARTS = ("conv", "attention", "rnn", "lstm", "gru", "linalg", "chol", "fft", "cdist", "pool", "grid", "grouped")
"""Names of ops, and parts of them, whose work is more than their elements."""
NEVER = frozenset(("_amp_foreach_non_finite_check_and_unscale",))
"""Ops whose results are always assumed: no gradient overflows, or steps would be skipped."""
EMPTY = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten._efficientzerotensor.default,
}
"""Ops whose results are taken for zeros; the last one, of forward derivatives, gives a tensor without bytes."""
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


COMPARISONS = frozenset(("lt", "le", "gt", "ge"))
OF_COMPARISONS = frozenset(
    (
        "all",
        "any",
        "logical_and",
        "logical_or",
        "logical_not",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "bitwise_not",
    )
)
"""Ops that say of comparisons what these say of numbers."""


class Assumptions(Protocol):
    """What values are given to what is not known."""

    def result(
        self, values: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any]
    ) -> None:
        """Give values to what an op made or changed that could not be computed, or was computed from assumed values."""
        ...

    def drawn(self, count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
        """Values of one dimension; the same for the same seed."""
        ...


@final
class _ValueWatch(weakref.ref[torch.UntypedStorage]):
    """Reference to the storage of a virtual tensor that knows its key."""

    __slots__ = ("key",)
    key: int


@final
class StorageValue:
    """The value of one storage.

    Attributes:
        reads: how often anybody asked for values, and not only for what ops make of them.
        compares: whether it says how numbers compare that are not known.
        real: its bytes; None where they are still to be assumed.
        certain: whether nothing that is not known had a part in it.
        seed: what is assumed depends on it.
        watch: its reference.
        number: how many there were before.
    """

    __slots__ = ("certain", "compares", "number", "real", "seed", "watch")
    made = 0

    def __init__(self, real: torch.UntypedStorage | None, certain: bool, seed: int, watch: _ValueWatch) -> None:
        self.real, self.certain, self.seed, self.watch = real, certain, seed, watch
        self.compares = False
        self.number = StorageValue.made
        StorageValue.made += 1


class HostResult(NamedTuple):
    """What an op gave on the host, and whether nothing that is not known had a part in it."""

    found: Any
    certain: bool


@final
class KnownValues:
    """Values of virtual tensors, by storage.

    Args:
        assumptions: what values are given to what is not known.

    Attributes:
        work: elements of the ops that were computed.
        held_bytes: what they take on the host.
        reads: how often Python asked for what a tape has no part of.
        tape: notes what is computed and asked, while a pass is watched.
    """

    current: KnownValues | None = None
    """Those of the virtual device that is on."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._entries: dict[int, StorageValue] = {}
        self._cannot: set[Any] = set()
        self._numbers = torch.Generator("cpu").manual_seed(0).get_state()
        self.work = 0
        self.reads = 0
        self.tape: Tape | None = None
        self.held_bytes = 0

    # What is known

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor on the host with the value of this one, on the same bytes; None where it is not known."""
        if not is_virtual(tensor):
            return None if tensor.is_meta else tensor
        entry = self.entry(tensor)
        return None if entry is None or entry.real is None else self._seen(tensor, entry)

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """As `of`; a small tensor that is not known is assumed, and stays so. None where it is too large for that."""
        known = self._read(tensor)
        if self.tape is None or not self.tape.answered(None, self.tape.arguments((tensor,), {}), known):
            self.reads += 1
        return known

    def _read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        known = self.of(tensor)
        return known if known is not None or not _is_small(tensor) else self._assumed(tensor)

    def is_certain(self, tensor: torch.Tensor) -> bool:
        """Whether it is known, and not made of anything assumed."""
        if not is_virtual(tensor):
            return not tensor.is_meta
        entry = self.entry(tensor)
        return entry is not None and entry.certain

    def compares(self, tensor: torch.Tensor) -> bool:
        """Whether it says how numbers compare that are not known."""
        entry = self.entry(tensor)
        return entry is not None and entry.compares

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
        self._put(storage, StorageValue(real.untyped_storage(), certain, 0, _ValueWatch(storage, self._died)))
        return True

    def alias(self, tensor: torch.Tensor, real: torch.Tensor) -> None:
        """Let the bytes of `real` be those of a virtual tensor with the same offset, sizes and strides."""
        if self._may_have(tensor) and real.layout is torch.strided and not real.storage_offset():
            storage = tensor.untyped_storage()
            self._put(storage, StorageValue(real.untyped_storage(), True, 0, _ValueWatch(storage, self._died)))

    def still(self, entry: StorageValue) -> StorageValue | None:
        """It, where it is the value of its storage yet."""
        return entry if self._entries.get(entry.watch.key) is entry else None

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

    def entry(self, tensor: torch.Tensor) -> StorageValue | None:
        """The value of its storage, where there is one."""
        if tensor.layout is not torch.strided or tensor.is_neg() or tensor.is_complex():
            return None
        return self._entries.get(storage_key(tensor.untyped_storage()))

    def _assumed(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What is assumed of a small tensor: all of its storage, or if that is large, only this time."""
        if tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        entry = self.entry(tensor)
        seed = crc32(repr(tuple(tensor.shape)).encode()) if entry is None else entry.seed
        if storage.nbytes() > ASSUMED_BYTES or tensor.dtype is torch.bool or not self._may_have(tensor):
            return self._assumptions.drawn(tensor.numel(), tensor.dtype, seed).view(tensor.shape)
        drawn = self._assumptions.drawn(storage.nbytes() // tensor.element_size(), tensor.dtype, seed)
        made = StorageValue(drawn.untyped_storage(), False, seed, _ValueWatch(storage, self._died))
        self._put(storage, made)
        return self._seen(tensor, made)

    def _seen(self, tensor: torch.Tensor, entry: StorageValue) -> torch.Tensor | None:
        made = torch.empty(0, dtype=tensor.dtype, device=CPU)
        assert entry.real is not None
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
        return size_bytes < most and (size_bytes <= FREE_BYTES or self.held_bytes + size_bytes <= TOTAL_BYTES)

    def _fits(self, real: torch.Tensor, tensor: torch.Tensor, size_bytes: int) -> bool:
        return (
            real.dtype is tensor.dtype
            and real.stride() == tensor.stride()
            and not real.storage_offset()
            and not tensor.storage_offset()
            and real.untyped_storage().nbytes() == size_bytes
        )

    def _put(self, storage: torch.UntypedStorage, entry: StorageValue) -> None:
        entry.watch.key = key = storage_key(storage)
        self._forget(key)
        self._entries[key] = entry
        self.held_bytes += 0 if entry.real is None else entry.real.nbytes()

    def _died(self, watch: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(watch, _ValueWatch)
        entry = self._entries.get(watch.key)
        if entry is not None and entry.watch is watch:
            self._forget(watch.key)

    def _forget(self, key: int) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None and entry.real is not None:
            self.held_bytes -= entry.real.nbytes()

    # What ops do to it

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any, path: str = "") -> None:
        """Give the results of an op of the module `path` their values, and change those of what it changes."""
        effects = effects_of(func)
        if effects.views:
            return
        written = [each for each in changed(effects, args, kwargs) if is_virtual(each)]
        results = list(_flat((made,)))
        certain = self._followed(func, args, kwargs, results, written)
        if certain is None:
            for tensor in written:
                self.drop(tensor)
            self._leave_open(func, results, path)
        if not certain:
            self._assumptions.result(self, func, args, kwargs, results)
            self._mark(func, args, results)

    def _mark(self, func: Any, args: tuple[Any, ...], results: Iterable[torch.Tensor]) -> None:
        """Note results that say how numbers compare."""
        name = _name(func)
        if name in COMPARISONS:
            found = args[0].is_floating_point()
        else:
            found = name in OF_COMPARISONS and any(is_virtual(each) and self.compares(each) for each in _flat(args))
        for result in results:
            entry = self.entry(result) if found else None
            if entry is not None:
                entry.compares = True

    def computed(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Iterable[torch.Tensor] = ()
    ) -> HostResult | None:
        """What an op that changes nothing gives on the host; None where that is not known and not small."""
        given = None if self.tape is None else self.tape.arguments(args, kwargs)
        outcome = self._computed(func, args, kwargs, results)
        if self.tape is None or outcome is None or not self.tape.answered(func, given, outcome.found):
            self.reads += 1
        return outcome

    def _computed(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Iterable[torch.Tensor]
    ) -> HostResult | None:
        if func in self._cannot:
            return None
        given = list(_flat((*args, *kwargs.values())))
        certain = self._certainty(given)
        if certain is None or not (certain or all(map(_is_small, results)) or self._is_of_positions(given, results)):
            return None
        work = OP_WORK + sum(each.numel() for each in (*given, *results))
        if self.work >= TOTAL_WORK and not (certain and work < 2 * OP_WORK):
            return None
        self.work += work
        draws = torch.Tag.nondeterministic_seeded in func.tags and not _on_host((*given, *results))
        with without_torch_function(), _one_thread(), self._random() if draws else nullcontext():
            outcome = self._run(func, args, kwargs, certain)
            return outcome if outcome is None or certain or _are_numbers(outcome.found) else None

    def _is_of_positions(self, given: Iterable[torch.Tensor], results: Iterable[torch.Tensor]) -> bool:
        """Whether an op makes integers and masks of such that were assumed, as a router's choices: these stay alike."""
        return all(
            not (each.is_floating_point() or each.is_complex()) and (made or self.of(each) is not None)
            for made, tensors in ((True, results), (False, given))
            for each in tensors
        )

    def _followed(
        self, func: Any, args: Any, kwargs: Any, results: list[torch.Tensor], written: list[torch.Tensor]
    ) -> bool | None:
        """Whether an op's results are certain; None where they were not computed."""
        if not written and not all(map(self._may_have, results)):
            return None
        if func in EMPTY:
            return self._emptied(results)
        if not _is_cheap(func, args, (*results, *written)):
            return None
        if func in OVERWRITES and not self._renew(args[0]):
            return None
        given = None if self.tape is None else self.tape.arguments(args, kwargs)
        outcome = self._computed(func, args, kwargs, (*results, *written))
        if outcome is None:
            return None
        keys = {storage_key(tensor.untyped_storage()) for tensor in written}
        for key in keys & self._entries.keys():
            self._entries[key].certain &= outcome.certain
        for result, real in zip(results, _flat((outcome.found,)), strict=False):
            if storage_key(result.untyped_storage()) not in keys:
                self.keep(result, real, outcome.certain)
        if self.tape is not None:
            self.tape.made(func, given, (*results, *written))
        return outcome.certain

    def _leave_open(self, func: Any, results: Iterable[torch.Tensor], path: str) -> None:
        """Small results are assumed when they are asked for; the same op of the same module gives the same."""
        for place, result in enumerate(results):
            if is_virtual(result) and result.is_floating_point() and _is_small(result) and self._may_have(result):
                seed = crc32(f"{path} {func} {place}".encode())
                storage = result.untyped_storage()
                self._put(storage, StorageValue(None, False, seed, _ValueWatch(storage, self._died)))

    def _certainty(self, given: Iterable[torch.Tensor]) -> bool | None:
        """Whether all tensors are certain; None where one is not known and cannot be assumed, as truth values."""
        certain = True
        for tensor in given:
            if is_virtual(tensor):
                entry = self.entry(tensor)
                known = entry is not None and entry.real is not None
                if not known and not _is_open(tensor):
                    return None
                certain = certain and entry is not None and entry.certain
            elif tensor.is_meta:
                return None
        return certain

    def _run(self, func: Any, args: Any, kwargs: Any, certain: bool) -> HostResult | None:
        try:
            return HostResult(func(*map(self._real, args), **self._keywords(kwargs)), certain)
        except NotImplementedError:
            self._cannot.add(func)
            return None
        except (RuntimeError, ValueError, TypeError, IndexError):  # its meta kernel says what is wrong
            return None

    @contextmanager
    def _random(self) -> Iterator[None]:
        """Draw on the device from numbers of our own: those of the host are the user's."""
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
                self._clear(result)
        return True

    def _clear(self, tensor: torch.Tensor) -> bool:
        """Let its value be zeros."""
        kept = self.keep(tensor, torch.zeros((), dtype=tensor.dtype, device=CPU).expand(tensor.shape))
        entry = self.entry(tensor) if kept and self.tape is not None else None
        if self.tape is not None and entry is not None:
            self.tape.blank(entry)
        return kept

    def _renew(self, target: torch.Tensor) -> bool:
        """Make place for the value of a tensor that is about to be overwritten, as a whole unless it is known."""
        if not is_virtual(target):
            return True
        entry = self.entry(target)
        whole = target.numel() * target.element_size() == target.untyped_storage().nbytes()
        if entry is None or entry.real is None:
            return whole and self._clear(target)
        entry.certain = entry.certain or whole
        return True

    def _real(self, value: Any) -> Any:
        if is_virtual(value):
            return self._read(value)
        if isinstance(value, list | tuple):
            return type(value)(map(self._real, value)) if type(value) in (list, tuple) else value
        return CPU if isinstance(value, torch.device) else value

    def _keywords(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {name: self._real(value) for name, value in kwargs.items() if name != "pin_memory"}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small ops take longer on several threads, where these have to be woken up."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


@cache
def _name(func: Any) -> str:
    """Of an op, without its overload and what says that it works in place."""
    return func.__name__.partition(".")[0].rstrip("_")


def _is_cheap(func: Any, args: Sequence[Any], made: Sequence[torch.Tensor]) -> bool:
    name = _name(func)
    if name in NEVER:
        return False
    if name in HEAVY or any(part in name for part in HEAVY_PARTS):
        return _multiplications(name, list(_flat(args)), made) <= MULTIPLICATIONS
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return True
    most = LARGE_BYTES if _on_host(made) else DRAWN_BYTES
    return all(not each.is_floating_point() or _bytes(each) <= most for each in made)


def _on_host(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether any is on the host without its bytes: what is drawn there is drawn from the script's own numbers."""
    return any(home_of(each) == CPU for each in tensors)


def _multiplications(name: str, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> int:
    """About as many as an op does, at most: a product of matrices A B = C does sqrt(|A| |B| |C|), in elements."""
    if "conv" in name and len(given) > 1:
        weight = given[2] if "backward" in name else given[1]
        out = given[0] if "backward" in name else made[0]
        return out.numel() * weight.numel() // max(1, weight.shape[0])
    elements = sum(each.numel() for each in (*given, *made)) // 3
    return elements * isqrt(elements)


def _is_small(tensor: torch.Tensor) -> bool:
    return _bytes(tensor) <= ASSUMED_BYTES


def _is_open(tensor: torch.Tensor) -> bool:
    """Whether its values are assumed before an op is computed; whether something is true is not."""
    return tensor.layout is torch.strided and tensor.dtype is not torch.bool and _is_small(tensor)


def _are_numbers(found: Any) -> bool:
    """Whether nothing in the results of an op is NaN: the largest of numbers and a NaN is a NaN."""
    floats = [each for each in _flat((found,)) if each.is_floating_point() and each.numel()]
    return not any(math.isnan(aten.max.default(each if each.itemsize > 1 else each.half())) for each in floats)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flat(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _flat(value)
