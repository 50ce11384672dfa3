"""Known values: values on the virtual device that came from the host, or are computed from such values alone.

A value belongs to a storage: a real storage on the host has its bytes. A tensor's value is a tensor there with the same
offset, sizes and strides. So views need nothing, and a change in place changes the storage. An op whose inputs are all
known is really computed on the host, within the bounds below. An op with an unknown input that changes a storage makes
it unknown. The host's bytes do not count: the device's allocations stay the same.

A small unknown value is assumed when it is first read, and small ops on it are computed as well. So probabilities sum
to one, positions are in range, and repeated reads agree. docs/values.md has the rules.
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
"""Most bytes of an integer or bool storage that has a value."""
FLOAT_BYTES = 2**22
"""Most bytes of a float storage that has a value; larger ones of the host have no bytes either."""
DRAWN_BYTES = 2**16
"""Most bytes of random floats of the device that are drawn: masks come from these; larger ones are unread weights."""
TOTAL_BYTES = 2**29
"""Most memory of the host for all values together, without the smallest."""
FREE_BYTES = 2**12
"""Most bytes of counts, times and flags that always have values, even beyond `TOTAL_BYTES`."""
ASSUMED_BYTES = 2**19
"""Most bytes of an unknown tensor that is assumed, or computed from assumed ones."""
MULTIPLICATIONS = 2**22
"""Most multiplications of a network's op that is computed; they take less than a millisecond."""
OP_WORK = 2**14
"""Fixed cost of an op, in elements: about 10 microseconds."""
TOTAL_WORK = 2**35
"""Most elements of all computed ops, about half a minute. It is a count, so every computer stops at the same op.

Small ops on certain values go on: times and counts that end loops come from them.
"""

HEAVY = frozenset(("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot", "addbmm"))
HEAVY_PARTS = ("conv", "attention", "rnn", "lstm", "gru", "linalg", "chol", "fft", "cdist", "pool", "grid", "grouped")
"""Names of ops, or parts of names, whose work is more than their elements."""
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
"""Ops whose results count as zeros; the last one, of forward derivatives, gives a tensor without bytes."""
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
"""Ops that overwrite all of a tensor."""


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
"""Ops whose results are comparisons if their inputs are."""


class Assumptions(Protocol):
    """Rules for values that are not known."""

    def result(
        self, values: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any]
    ) -> None:
        """Set values of results that could not be computed, or were computed from assumed values."""
        ...

    def drawn(self, count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
        """Return values in one dimension; equal seeds give equal ones."""
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
        reads: how often the values themselves were read, and not only results of ops on them.
        compares: whether it is the result of comparing unknown numbers.
        real: its bytes; None if they are still to be assumed.
        certain: whether no unknown value had a part in it.
        seed: seed of assumed values.
        watch: its reference.
        number: number of values before it.
    """

    __slots__ = ("certain", "compares", "number", "real", "seed", "watch")
    made = 0

    def __init__(self, real: torch.UntypedStorage | None, certain: bool, seed: int, watch: _ValueWatch) -> None:
        self.real, self.certain, self.seed, self.watch = real, certain, seed, watch
        self.compares = False
        self.number = StorageValue.made
        StorageValue.made += 1


class HostResult(NamedTuple):
    """Result of an op on the host, and whether no unknown value had a part in it."""

    found: Any
    certain: bool


@final
class KnownValues:
    """Values of virtual tensors, by storage.

    Args:
        assumptions: rules for values that are not known.

    Attributes:
        work: elements of the ops that were computed.
        held_bytes: bytes of the values on the host.
        reads: how often Python read values that no tape can track.
        tape: notes computed ops and reads, while a pass is watched.
    """

    current: KnownValues | None = None
    """The values of the virtual device that is on."""

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
        """Return a tensor on the host with the value of this one, on the same bytes; None if it is not known."""
        if not is_virtual(tensor):
            return None if tensor.is_meta else tensor
        entry = self.entry(tensor)
        return None if entry is None or entry.real is None else self._seen(tensor, entry)

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the value as `of` does; a small unknown one is assumed, and stays so. None if it is too large."""
        known = self._read(tensor)
        if self.tape is None or not self.tape.answered(None, self.tape.arguments((tensor,), {}), known):
            self.reads += 1
        return known

    def _read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        known = self.of(tensor)
        return known if known is not None or not _is_small(tensor) else self._assumed(tensor)

    def is_certain(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is known, and not made of assumed values."""
        if not is_virtual(tensor):
            return not tensor.is_meta
        entry = self.entry(tensor)
        return entry is not None and entry.certain

    def compares(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is the result of comparing unknown numbers."""
        entry = self.entry(tensor)
        return entry is not None and entry.compares

    def keep(self, tensor: torch.Tensor, real: torch.Tensor, certain: bool = True) -> bool:
        """Set `real` as the value of a tensor that is alone on its storage; return False if that is out of bounds."""
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
        """Set the bytes of `real` as those of a virtual tensor with the same offset, sizes and strides."""
        if self._may_have(tensor) and real.layout is torch.strided and not real.storage_offset():
            storage = tensor.untyped_storage()
            self._put(storage, StorageValue(real.untyped_storage(), True, 0, _ValueWatch(storage, self._died)))

    def still(self, entry: StorageValue) -> StorageValue | None:
        """Return the entry if it is still the value of its storage; else None."""
        return entry if self._entries.get(entry.watch.key) is entry else None

    def drop(self, tensor: torch.Tensor) -> None:
        """Forget the value of a tensor's storage."""
        if is_virtual(tensor) and tensor.layout is torch.strided:
            self._forget(storage_key(tensor.untyped_storage()))

    @contextmanager
    def used(self) -> Iterator[None]:
        """Make these the values of the device that is on; at the end all are forgotten."""
        before, KnownValues.current = KnownValues.current, self
        try:
            yield
        finally:
            KnownValues.current = before
            self._entries.clear()
            self.held_bytes = 0

    def entry(self, tensor: torch.Tensor) -> StorageValue | None:
        """Return the value of a tensor's storage, if there is one."""
        if tensor.layout is not torch.strided or tensor.is_neg() or tensor.is_complex():
            return None
        return self._entries.get(storage_key(tensor.untyped_storage()))

    def _assumed(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Assume the value of a small tensor: for all of its storage, or if that is large, only this time."""
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
        """Set the values of an op's results, and of the tensors it changes; `path` is its module."""
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
        """Note results that are comparisons."""
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
        """Compute an op that changes nothing on the host; None if its result is neither known nor small."""
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
        """Return whether an op makes integers and masks of assumed ones, as of a router's choices: these stay alike."""
        return all(
            not (each.is_floating_point() or each.is_complex()) and (made or self.of(each) is not None)
            for made, tensors in ((True, results), (False, given))
            for each in tensors
        )

    def _followed(
        self, func: Any, args: Any, kwargs: Any, results: list[torch.Tensor], written: list[torch.Tensor]
    ) -> bool | None:
        """Compute an op; return whether its results are certain, or None if they were not computed."""
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
        """Leave small results open: they are assumed when they are read, alike for the same op of the same module."""
        for place, result in enumerate(results):
            if is_virtual(result) and result.is_floating_point() and _is_small(result) and self._may_have(result):
                seed = crc32(f"{path} {func} {place}".encode())
                storage = result.untyped_storage()
                self._put(storage, StorageValue(None, False, seed, _ValueWatch(storage, self._died)))

    def _certainty(self, given: Iterable[torch.Tensor]) -> bool | None:
        """Return whether all tensors are certain; None if one is unknown and cannot be assumed, as truth values."""
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
        except (RuntimeError, ValueError, TypeError, IndexError):  # its meta kernel reports the error
            return None

    @contextmanager
    def _random(self) -> Iterator[None]:
        """Draw on the device from elbowroom's own generator: that of the host is the user's."""
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
        """Set a tensor's value to zeros."""
        kept = self.keep(tensor, torch.zeros((), dtype=tensor.dtype, device=CPU).expand(tensor.shape))
        entry = self.entry(tensor) if kept and self.tape is not None else None
        if self.tape is not None and entry is not None:
            self.tape.blank(entry)
        return kept

    def _renew(self, target: torch.Tensor) -> bool:
        """Make room for the value of a tensor that is about to be overwritten: as a whole if it is unknown."""
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
    """Use one thread: small ops take longer on several, which have to be woken up."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


@cache
def _name(func: Any) -> str:
    """Return the name of an op without its overload and its mark of working in place."""
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
    """Return whether any tensor is on the host without bytes: draws there use the script's own generator."""
    return any(home_of(each) == CPU for each in tensors)


def _multiplications(name: str, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> int:
    """Bound an op's multiplications: a product of matrices A B = C does sqrt(|A| |B| |C|), in elements."""
    if "conv" in name and len(given) > 1:
        weight = given[2] if "backward" in name else given[1]
        out = given[0] if "backward" in name else made[0]
        return out.numel() * weight.numel() // max(1, weight.shape[0])
    elements = sum(each.numel() for each in (*given, *made)) // 3
    return elements * isqrt(elements)


def _is_small(tensor: torch.Tensor) -> bool:
    return _bytes(tensor) <= ASSUMED_BYTES


def _is_open(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's values are assumed before an op is computed; truth values are not."""
    return tensor.layout is torch.strided and tensor.dtype is not torch.bool and _is_small(tensor)


def _are_numbers(found: Any) -> bool:
    """Return whether the results of an op have no NaN: the maximum of numbers and a NaN is NaN."""
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
