"""Repeats: forward passes without gradients that are like the last one: their effects are noted again, and no op runs.

Note: [When a pass is repeated]
A pass is one call of an outermost module without gradients. No module of it is in training mode. So no dropout is
drawn and no statistics change. Two passes with arguments of the same form must leave the same ops, allocations and
frees. From the third on these are noted again, with new storages. The results are new tensors of the same form.
A pass runs as usual if a repeat would lose an effect, or if it could differ the next time. That is so if one of
these is true:
(1) Python read a value that is not known, or one that has changed (guards.py);
(2) random numbers of the host were drawn;
(3) a storage from outside was written or freed;
(4) a storage other than the results stays alive on the device;
(5) an attribute of a module changed, or a module has hooks;
(6) an argument or result is more than tensors of the device, numbers and texts in tuples, lists and dicts.
Other effects of Python code, such as a list of its own that grows, are not seen.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Self, final

import torch

from elbowroom.capture.durations.op_line import OpLine
from elbowroom.capture.virtual.host_values.guards import Guard, Tape, UntrackedValue
from elbowroom.capture.virtual.host_values.known_values import StorageValue
from elbowroom.capture.virtual.ledger import BLOCK_BYTES, StorageLine
from elbowroom.capture.virtual.ops import casting
from elbowroom.capture.virtual.tensor import CUDA, META, home_of, is_virtual, virtual
from elbowroom.torch_compat.core import buffers_of, has_hooks, no_dispatch, parameters_of
from elbowroom.trace import Category, RemarkKind

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import VirtualMode

Place = tuple[str, int]
"""A storage as a pass sees it: ("own", its number in the pass), ("given", the argument's), ("outside", its number)."""
KINDS = 8
"""Most passes of one form that are remembered because they read different values."""
_PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device)


class Unfit(Exception):
    """The pass cannot be repeated."""


class PassResult(NamedTuple):
    """A tensor that a pass returns: the storage of the pass, and its form."""

    own: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class Kept(NamedTuple):
    """A parameter's copy in the precision of autocast, which stays until its context ends."""

    parameter: weakref.ref[torch.Tensor]
    form: PassResult


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedPass:
    """Effects of one pass, apart from the numbers of its ops and storages."""

    ops: tuple[tuple[OpLine, tuple[Place, ...], tuple[Place, ...]], ...]
    storages: tuple[tuple[int, Category, str], ...]
    events: tuple[tuple[int, int, int], ...]
    bounds: tuple[tuple[int, tuple[int, int]], ...]
    remarks: tuple[tuple[tuple[RemarkKind, str], int], ...]
    outside: frozenset[int]
    output: Any
    kept: tuple[Kept, ...]
    answers: tuple[Any, ...]
    source_lines: tuple[int | None, ...] = dataclasses.field(compare=False)


@dataclasses.dataclass(slots=True)
class SeenPass:
    """A pass that was seen.

    Attributes:
        times: how often it was seen in a row; passes that only read other values do not break the row.
    """

    done: RecordedPass
    guard: Guard
    times: int = 1


class PassArguments(NamedTuple):
    """The storages of arguments, by number, and their values where these are known."""

    numbers: list[int]
    values: list[StorageValue | None]


@final
class Repeats:
    """Passes that were seen, by module and by the form of their arguments.

    Args:
        mode: mode of the virtual device.
        begins: called with the module of a pass before it is repeated.

    Attributes:
        repeated: number of repeated passes.
    """

    def __init__(self, mode: VirtualMode, begins: Callable[[torch.nn.Module], None]) -> None:
        self._mode = mode
        self._begins = begins
        self._inside = False
        self._seen: dict[int, tuple[weakref.ref[torch.nn.Module], dict[Hashable, list[SeenPass]]]] = {}
        self.repeated = 0

    def changes(self) -> list[tuple[Any, str, Any]]:
        """Return the patches of Python."""
        call: Any = torch.nn.Module.__call__

        @functools.wraps(call)
        def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._inside or torch.is_grad_enabled() or threading.current_thread() is not threading.main_thread():
                return call(module, *args, **kwargs)
            self._inside = True
            try:
                return self._passed(call, module, args, kwargs)
            finally:
                self._inside = False

        return [(torch.nn.Module, "__call__", called)]

    def _passed(self, call: Any, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Repeat or run a pass of an outermost module."""
        try:
            given = PassArguments([], [])
            key = self._key(module, args, kwargs, given)
        except Unfit:
            return call(module, *args, **kwargs)
        seen = self._seen_of(module).setdefault(key, [])
        known = next((each for each in seen if each.times > 1 and self._fits(each, given)), None)
        if known is not None:
            self._begins(module)
            self.repeated += 1
            return _Replay(self._mode, known.done, given.numbers).output()
        with _Watched(self._mode, module, given) as watched:
            output = call(module, *args, **kwargs)
            self._note(seen, watched, output)
        return output

    def _fits(self, known: SeenPass, given: PassArguments) -> bool:
        """Return whether a pass would do the same as a known one."""
        live = self._mode.ledger.are_live(known.done.outside)
        return live and known.guard.holds(self._mode.values, given.values)

    def _note(self, seen: list[SeenPass], watched: _Watched, output: Any) -> None:
        """Note a pass that ran; if it read the same values but did something else, it is not repeated any more."""
        try:
            done, guard = watched.made(output)
        except (Unfit, UntrackedValue):
            seen.clear()
            return
        same = next((each for each in seen if each.done == done), None)
        if same is not None:
            same.times += 1
            return
        seen[:] = [each for each in seen if each.done.answers != done.answers][-KINDS + 1 :]
        seen.append(SeenPass(done, guard))

    def _seen_of(self, module: torch.nn.Module) -> dict[Hashable, list[SeenPass]]:
        """Return a module's passes, by identity: metrics are modules whose hash follows their state."""
        number = id(module)
        if number not in self._seen:
            self._seen[number] = weakref.ref(module, lambda _: self._seen.pop(number, None)), {}
        return self._seen[number][1]

    def _key(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any], given: PassArguments) -> Hashable:
        """Return the key that passes with the same effects share; `given` gets the storages of the arguments.

        Raises:
            Unfit: passes may differ in something that no key has.
        """
        if any(each.training or has_hooks(each) for each in module.modules()):
            raise Unfit
        of_arguments = self._form((*args, kwargs), given)
        owned = tuple(map(id, (*parameters_of(module), *buffers_of(module))))
        return of_arguments, owned, len(casting.cached()), _settings()

    def _form(self, value: Any, given: PassArguments) -> Hashable:
        if type(value) in _PLAIN:
            return type(value), value
        if type(value) in (tuple, list):
            return type(value), tuple(self._form(each, given) for each in value)
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return type(value), tuple((name, self._form(each, given)) for name, each in value.items())
        if type(value) is not torch.Tensor or not is_virtual(value) or home_of(value) != CUDA:
            raise Unfit
        number = self._mode.ledger.number_of(value)
        if number is None or value.requires_grad:
            raise Unfit
        if number not in given.numbers:
            given.numbers.append(number)
            given.values.append(self._mode.values.entry(value))
        return value.shape, value.stride(), value.storage_offset(), value.dtype, given.numbers.index(number)


@final
class _Watched:
    """One pass that runs: the state of the ledger before it, and its effects at the end."""

    def __init__(self, mode: VirtualMode, module: torch.nn.Module, given: PassArguments) -> None:
        ledger = mode.ledger
        self._mode, self._module, self._given, self._values = mode, module, given.numbers, given.values
        self._tape = Tape(mode.values, StorageValue.made)
        self._ops, self._events, self._storages = len(ledger.ops), len(ledger.events), len(ledger.storages)
        self._remarks = dict(ledger.remarks)
        self._cached = set(casting.cached())
        self._state = self._states()

    def __enter__(self) -> Self:
        self._mode.values.tape = self._tape
        return self

    def __exit__(self, *problem: object) -> None:
        self._mode.values.tape = None

    def _states(self) -> tuple[Any, ...]:
        """Return the state that a pass must not change."""
        ledger = self._mode.ledger
        return (
            len(ledger.saves),
            len(ledger.parts),
            len(ledger.empties),
            len(ledger.asked),
            self._mode.values.reads,
            _attributes(self._module),
            _random_states(),
        )

    def made(self, output: Any) -> tuple[RecordedPass, Guard]:
        """Return the pass, and the guard that shows whether another pass would do the same.

        Raises:
            Unfit: it cannot be repeated.
            UntrackedValue: it read a value that depends on one that is not tracked.
        """
        ledger, first = self._mode.ledger, self._storages
        if self._states() != self._state:
            raise Unfit
        lines = ledger.ops[self._ops :]
        if any(number < first for line in lines for number in line.writes):
            raise Unfit
        kept = tuple(self._kept(*each) for key, each in casting.cached().items() if key not in self._cached)
        left: set[int] = {each.form.own for each in kept}
        shown = self._shown(output, left)
        if left != self._alive():
            raise Unfit
        guard = self._tape.guard(self._values)
        ops = tuple((line, self._places(line.reads), self._places(line.writes)) for line in lines)
        done = RecordedPass(
            ops=tuple(
                (line._replace(reads=(), writes=(), source_line=None), reads, writes) for line, reads, writes in ops
            ),
            storages=tuple((each.size_bytes, each.category, each.dtype) for each in ledger.storages[first:]),
            events=tuple((op - self._ops, number - first, size) for op, number, size in ledger.events[self._events :]),
            bounds=tuple((number - first, each) for number, each in ledger.bounds.items() if number >= first),
            remarks=self._new_remarks(),
            outside=frozenset(number for _, reads, _ in ops for kind, number in reads if kind == "outside"),
            output=shown,
            kept=kept,
            answers=guard.answers,
            source_lines=tuple(line.source_line for line in lines),
        )
        return done, guard

    def _alive(self) -> set[int]:
        """Return the storages of the pass that are live at its end."""
        alive: set[int] = set()
        for _, number, size_bytes in self._mode.ledger.events[self._events :]:
            if number < self._storages:
                raise Unfit
            (alive.add if size_bytes > 0 else alive.discard)(number - self._storages)
        return alive

    def _places(self, numbers: Iterable[int]) -> tuple[Place, ...]:
        return tuple(map(self._place, numbers))

    def _place(self, number: int) -> Place:
        if number >= self._storages:
            return "own", number - self._storages
        return ("given", self._given.index(number)) if number in self._given else ("outside", number)

    def _new_remarks(self) -> tuple[tuple[tuple[RemarkKind, str], int], ...]:
        now, before = self._mode.ledger.remarks, self._remarks
        return tuple((key, now[key] - before.get(key, 0)) for key in now if now[key] != before.get(key, 0))

    def _kept(self, parameter: weakref.ref[torch.Tensor], cast: torch.Tensor) -> Kept:
        return Kept(parameter, self._form(cast))

    def _shown(self, value: Any, left: set[int]) -> Any:
        """Return a result with forms in place of tensors, whose storages are added to `left`."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            if self._mode.values.is_certain(value):
                raise Unfit
            form = self._form(value)
            left.add(form.own)
            return form
        if type(value) in (tuple, list):
            return type(value)([self._shown(each, left) for each in value])
        if type(value) is dict or (isinstance(value, dict) and dataclasses.is_dataclass(value)):
            return _Named(type(value), {name: self._shown(each, left) for name, each in value.items()})
        raise Unfit

    def _form(self, tensor: torch.Tensor) -> PassResult:
        if type(tensor) is not torch.Tensor or not is_virtual(tensor):
            raise Unfit
        number = self._mode.ledger.number_of(tensor)
        if number is None or number < self._storages or tensor.dtype.is_complex:
            raise Unfit
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return PassResult(number - self._storages, shape, stride, int(tensor.storage_offset()), tensor.dtype)


class _Named(NamedTuple):
    """A result that is a dict, or a dataclass that is one too."""

    kind: Any
    values: dict[str, Any]


@final
class _Replay:
    """One more note of a recorded pass."""

    def __init__(self, mode: VirtualMode, known: RecordedPass, given: list[int]) -> None:
        self._mode, self._known, self._given = mode, known, given
        self._first = len(mode.ledger.storages)
        self._storages: dict[int, torch.Tensor] = {}

    def output(self) -> Any:
        """Note the pass; return new results."""
        if self._mode.saves is not None:
            self._mode.saves.tick()
        self._note()
        for parameter, form in self._known.kept:
            held = parameter()
            if held is not None:
                casting.keep(held, self._tensor(form))
        return self._built(self._known.output)

    def _note(self) -> None:
        ledger, known, base = self._mode.ledger, self._known, len(self._mode.ledger.ops)
        for (line, reads, writes), source_line in zip(known.ops, known.source_lines, strict=True):
            numbers = {"reads": self._numbers(reads), "writes": self._numbers(writes)}
            ledger.ops.append(line._replace(**numbers, source_line=source_line))
        ledger.storages += [StorageLine(*each) for each in known.storages]
        for op, own, size_bytes in known.events:
            ledger.events.append((base + op, self._first + own, size_bytes))
            ledger.allocated_bytes += abs(size_bytes) // -BLOCK_BYTES * -BLOCK_BYTES * (1 if size_bytes > 0 else -1)
            ledger.peak_bytes = max(ledger.peak_bytes, ledger.allocated_bytes)
        for own, bounds in known.bounds:
            ledger.bounds[self._first + own] = bounds
        for key, count in known.remarks:
            ledger.remarks[key] = ledger.remarks.get(key, 0) + count

    def _numbers(self, places: tuple[Place, ...]) -> tuple[int, ...]:
        return tuple(map(self._number, places))

    def _number(self, place: Place) -> int:
        kind, number = place
        return self._first + number if kind == "own" else self._given[number] if kind == "given" else number

    def _built(self, shown: Any) -> Any:
        if isinstance(shown, PassResult):
            return self._tensor(shown)
        if isinstance(shown, _Named):
            return shown.kind(**{name: self._built(each) for name, each in shown.values.items()})
        if type(shown) in (tuple, list):
            return type(shown)([self._built(each) for each in shown])
        return shown

    def _tensor(self, form: PassResult) -> torch.Tensor:
        """Make a new tensor on the storage that the ledger has noted for it."""
        with no_dispatch():
            whole = self._storages.get(form.own)
            if whole is None:
                size_bytes = self._known.storages[form.own][0]
                whole = torch.empty(size_bytes, dtype=torch.uint8, device=META)
                self._storages[form.own] = whole
                self._mode.ledger.adopt(whole.untyped_storage(), self._first + form.own)
            made = torch.empty(0, dtype=form.dtype, device=META)
            made.set_(whole.untyped_storage(), form.offset, form.shape, form.stride)  # pyright: ignore[reportArgumentType]
        return virtual(made, CUDA)


def _attributes(module: torch.nn.Module) -> tuple[Any, ...]:
    """Return the attributes of a model's modules: the objects, and the lengths of those that grow."""
    held: list[Any] = []
    for each in module.modules():
        values = [*vars(each).values(), *each.parameters(recurse=False), *each.buffers(recurse=False)]
        held += [(id(value), len(value) if isinstance(value, list | dict | set) else 0) for value in values]
    return tuple(held)


def _random_states() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state()[1].tobytes() if numpy is not None else b""
    return torch.default_generator.get_state().numpy().tobytes(), random.getstate(), of_numpy


def _settings() -> Hashable:
    """Return the settings of the process that change what ops do."""
    cudnn: Any = torch.backends.cudnn
    return (
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(casting.KIND),
        torch.get_autocast_dtype(casting.KIND),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
    )
