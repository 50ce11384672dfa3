"""Guards: the known values that a pass read, with the ops that lead to each, to be checked again later.

The values that Python reads decide its path. If a pass read only certain values, the ops on the host that made
them are kept, with their results. Before such a pass is repeated, these ops run on the values of the new arguments. It
is repeated if each result is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch

from elbowroom.capture.virtual.tensor import CPU, is_virtual
from elbowroom.torch_compat.core import set_storage, without_torch_function
from elbowroom.torch_compat.device_modules import without_modes

if TYPE_CHECKING:
    from elbowroom.capture.virtual.host_values.known_values import KnownValues, StorageValue

ANSWER_BYTES = 2**16
"""Most bytes of a result that is compared."""
CONSTANT_BYTES = 2**12
"""Most bytes of a tensor of the host that is kept as it was."""


class UntrackedValue(Exception):
    """A value depends on one that is not tracked."""


class Ref(NamedTuple):
    """A tensor: the value that it views, and how."""

    entry: StorageValue
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Line(NamedTuple):
    """An op on the host: the values it makes or changes, and its result if Python read that; without an op, a read."""

    func: Any
    args: Any
    kwargs: Any
    made: tuple[Ref, ...]
    answer: Any


@final
class Tape:
    """The ops on known values in one pass.

    Args:
        values: values of the device.
        first: number of the first value that is new in the pass.
    """

    def __init__(self, values: KnownValues, first: int) -> None:
        self._values = values
        self._first = first
        self._lines: list[Line] = []
        self._blank: set[int] = set()
        self._kept: list[StorageValue] = []

    def blank(self, entry: StorageValue) -> None:
        """Note that a value begins as zeros."""
        self._blank.add(id(entry))
        self._kept.append(entry)

    def arguments(self, args: Any, kwargs: Any) -> Any:
        """Return the arguments as they are before an op; None if one depends on a value that is not tracked."""
        try:
            return self._seen(tuple(args)), {name: self._seen(each) for name, each in kwargs.items() if name != PINS}
        except UntrackedValue:
            return None

    def made(self, func: Any, given: Any, results: Sequence[torch.Tensor]) -> None:
        """Note that an op was computed."""
        if given is None or torch.Tag.nondeterministic_seeded in func.tags:
            return
        try:
            made = tuple(self._seen(each) for each in results if is_virtual(each))
        except UntrackedValue:
            return
        self._lines.append(Line(func, given[0], given[1], made, None))

    def answered(self, func: Any, given: Any, answer: Any) -> bool:
        """Note a read of an op's result, or without an op of a tensor; return whether it can be checked again."""
        shown = _shown(answer)
        if given is None or shown is None:
            return False
        self._lines.append(Line(func, given[0], given[1], (), shown))
        return True

    def _seen(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(map(self._seen, value)) if type(value) is tuple else list(map(self._seen, value))
        if not isinstance(value, torch.Tensor):
            return CPU if isinstance(value, torch.device) else value
        if is_virtual(value):
            entry = self._values.entry(value)
            if entry is None or entry.real is None or not entry.certain:
                raise UntrackedValue
            return Ref(entry, value.dtype, int(value.storage_offset()), tuple(value.shape), tuple(value.stride()))
        if value.nbytes > CONSTANT_BYTES or value.is_meta:
            raise UntrackedValue
        with without_torch_function():
            return value.detach().clone()

    def guard(self, given: Sequence[StorageValue | None]) -> Guard:
        """Make the guard of the reads.

        Args:
            given: the values of the arguments, by position.

        Raises:
            UntrackedValue: a read depends on a value that is not tracked.
        """
        needed: set[int] = set()
        lines: list[Line] = []
        for line in reversed(self._lines):
            if line.answer is not None or any(id(ref.entry) in needed for ref in line.made):
                lines.append(line)
                needed |= {id(ref.entry) for ref in _refs((line.args, line.kwargs))}
        made = {id(ref.entry) for line in lines for ref in line.made} | self._blank
        refs = [ref for line in lines for ref in _refs((line.args, line.kwargs))]
        if any(ref.entry.number >= self._first and id(ref.entry) not in made for ref in refs):
            raise UntrackedValue
        places = {id(entry): place for place, entry in enumerate(given) if entry is not None}
        return Guard(tuple(reversed(lines)), places, frozenset(made & needed & self._blank))


@final
class Guard:
    """Ops that give the values that a pass read.

    Attributes:
        answers: the values that were read.
    """

    def __init__(self, lines: tuple[Line, ...], places: dict[int, int], blank: frozenset[int]) -> None:
        self._lines, self._places, self._blank = lines, places, blank
        self.answers = tuple(line.answer for line in lines if line.answer is not None)

    def holds(self, values: KnownValues, given: Sequence[StorageValue | None]) -> bool:
        """Return whether the reads give the same values for other arguments."""
        try:
            with without_modes():
                run = _Run(values, given, self._places, self._blank)
                return all(run.agrees(line) for line in self._lines)
        except (UntrackedValue, RuntimeError, ValueError, TypeError, IndexError):
            return False


@final
class _Run:
    """One check of a guard: the bytes of each value, by the value that it had in the pass."""

    def __init__(
        self, values: KnownValues, given: Sequence[StorageValue | None], places: dict[int, int], blank: frozenset[int]
    ) -> None:
        self._values, self._given, self._places, self._blank = values, given, places, blank
        self._held: dict[int, torch.UntypedStorage] = {}

    def agrees(self, line: Line) -> bool:
        """Run a line; return whether it gives the same result as in the pass."""
        args, kwargs = self._real(line.args), {name: self._real(each) for name, each in line.kwargs.items()}
        found = args[0] if line.func is None else line.func(*args, **kwargs)
        if line.answer is not None:
            return _shown(found) == line.answer
        for ref, real in zip(line.made, _flat(found), strict=False):
            if id(ref.entry) not in self._held:
                self._held[id(ref.entry)] = _empty(ref.entry)
                self._tensor(ref).copy_(real)
        return True

    def _real(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self._tensor(value)
        return type(value)(map(self._real, value)) if type(value) in (list, tuple) else value

    def _tensor(self, ref: Ref) -> torch.Tensor:
        storage = self._held.get(id(ref.entry))
        if storage is None:
            storage = self._held[id(ref.entry)] = self._storage(ref.entry)
        made = torch.empty(0, dtype=ref.dtype, device=CPU)
        set_storage(made, storage, ref.offset, ref.shape, ref.stride)
        return made

    def _storage(self, entry: StorageValue) -> torch.UntypedStorage:
        if id(entry) in self._blank:
            return _empty(entry)
        place = self._places.get(id(entry))
        now = self._given[place] if place is not None else self._values.still(entry)
        if now is None or now.real is None or not now.certain:
            raise UntrackedValue
        return now.real


PINS = "pin_memory"


def _empty(entry: StorageValue) -> torch.UntypedStorage:
    assert entry.real is not None
    return torch.zeros(entry.real.nbytes(), dtype=torch.uint8, device=CPU).untyped_storage()


def _shown(found: Any) -> Any:
    """Return a result in a form that can be compared; None if it is too large."""
    if isinstance(found, torch.Tensor):
        if found.nbytes > ANSWER_BYTES or found.layout is not torch.strided:
            return None
        with without_torch_function():
            content = found.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return found.dtype, tuple(found.shape), content
    if isinstance(found, list | tuple):
        shown = tuple(map(_shown, found))
        return None if None in shown else shown
    return type(found), found


def _flat(found: Any) -> Iterator[torch.Tensor]:
    for each in found if isinstance(found, list | tuple) else (found,):
        if isinstance(each, torch.Tensor):
            yield each


def _refs(value: Any) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _refs(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _refs(each)
