"""The recorder: watches a running step from outside and writes down what assemble.py turns into a Trace and a Timeline.

It is a dispatch mode (every op with its tensors), an allocator stream (every block), module hooks and an executor's
observer (what was saved, moved and read). Each becomes a note; the note's number is a marker in the allocator stream,
so that all of it has one order.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch.utils.flop_counter import flop_registry

from elbowroom.capture.allocations import AllocatorStream, Item
from elbowroom.capture.modules import ModulePaths
from elbowroom.runtime._torch_compat import TorchDispatchMode, dispatch_mode_on_top, in_backward, schema_of
from elbowroom.runtime.executor import Entry, Happening, Observer
from elbowroom.trace import Category, Phase


class Block(NamedTuple):
    """A storage as an op saw it."""

    address: int
    size_bytes: int
    dtype: str


@dataclass(slots=True)
class OpNote:
    """One dispatched op."""

    name: str
    module: str
    phase: Phase
    reads: list[Block]
    changes: list[Block]
    makes: list[Block] = field(default_factory=list[Block])
    flops: int = 0
    start_ns: int = 0
    end_ns: int = 0


@dataclass(slots=True)
class Note:
    """Something between ops. `what` is a name of `Assembly`'s methods, `entry` and `blocks` its arguments."""

    what: str
    entry: Entry | None = None
    blocks: tuple[Block, ...] = ()
    category: Category = "temporary"
    at_ns: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """All notes of a stretch of a run.

    Attributes:
        notes: by number; an OpNote's duration is that of its marker.
        stream: the allocator's events and the markers; empty where the profiler was not to be had.
        happenings: stalls and transfers.
    """

    notes: list[OpNote | Note]
    stream: list[Item]
    happenings: list[Happening]


@final
class Recorder(TorchDispatchMode):
    """Records from `start` to `stop`. One at a time in a process.

    Args:
        on_change: called with each storage that an op is about to change in place.
        on_root: called with each outermost module before it runs.
    """

    def __init__(
        self, on_change: Callable[[torch.UntypedStorage], None], on_root: Callable[[torch.nn.Module], None]
    ) -> None:
        super().__init__()
        self._on_change = on_change
        self._on_root = on_root
        self._notes: list[OpNote | Note] = []
        self._happenings: list[Happening] = []
        self._stream = AllocatorStream()
        self._paths = ModulePaths(self._root)
        self._streaming = False
        self._paused = 0
        self._in_optimizer = False
        self._watched: dict[int, Callable[[], object]] = {}
        self._placed_count = 0
        self.active = False

    # From outside

    def start(self, root: torch.nn.Module | None = None) -> None:
        """Begin to record. `root` is the outermost module if one is being called right now."""
        self._streaming = self._stream.start()
        self.active = True
        self._existing()
        self._paths.start()
        if root is not None:
            self._paths.enter_root(root)
        self.__enter__()

    def stop(self) -> Recording:
        """End, and what was recorded. The dispatch mode stays, asleep, until `leave`: an op may be under way."""
        self.active = False
        self._paths.stop()
        stream = self._stream.stop() if self._streaming else []
        self._watched.clear()
        return Recording(notes=self._notes, stream=stream, happenings=self._happenings)

    def leave(self) -> bool:
        """Take the dispatch mode off, between two ops; False while one that the user put on top is in the way."""
        if not dispatch_mode_on_top(self):
            return False
        self.__exit__(None, None, None)
        return True

    def observer(self) -> Observer:
        """What to hand to the executor so that this recorder hears of its moves."""
        return Observer(placed=self._placed, stalled=self._happened, moved=self._happened, dropped=self._dropped)

    def paused(self) -> AbstractContextManager[None]:
        """Around the runtime's own work: blocks made in it are not part of the step."""
        return self._pause() if self.active else nullcontext()

    @contextmanager
    def _pause(self) -> Iterator[None]:
        self._note(Note("pause"))
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            self._note(Note("resume"))

    def saved(self, entry: Entry, storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
        """Autograd saved this storage for the first time."""
        self._note(Note("saved", entry, (Block(storage.data_ptr(), storage.nbytes(), _name(dtype)),)))

    def reads_back(self, entry: Entry) -> None:
        """Autograd reads a saved tensor of this entry back."""
        self._note(Note("reads_back", entry))

    def classify(self, category: Category, tensors: Iterable[torch.Tensor]) -> None:
        """Say what the storages of these tensors are for."""
        blocks = tuple(block for tensor in tensors if (block := _block(tensor)) is not None)
        self._note(Note("classify", blocks=blocks, category=category))

    def step_ends(self) -> None:
        """A step of the training ends here."""
        self._note(Note("step_ends"))

    def optimizer_runs(self, running: bool) -> None:
        """Ops from here on belong, or no longer belong, to the optimizer."""
        self._in_optimizer = running

    # From torch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused or not self.active:
            return func(*args, **kwargs)
        note = self._before(func, args, kwargs)
        number = len(self._notes)
        self._notes.append(note)
        with self._stream.mark(number):
            note.start_ns = time.perf_counter_ns()
            result = func(*args, **kwargs)
            note.end_ns = time.perf_counter_ns()
        self._after(func, note, args, kwargs, result)
        return result

    def _before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpNote:
        reads: list[Block] = []
        changes: list[Block] = []
        written = _written_arguments(func)
        for name, tensor in _tensors(func, args, kwargs):
            block = _block(tensor)
            if block is None:
                continue
            (changes if name in written else reads).append(block)
            self._watch(tensor)
            if name in written:
                self._on_change(tensor.untyped_storage())
        if _is_view(func):
            reads = []
        return OpNote(str(func), self._paths.current(), self._phase(), reads, changes)

    def _after(self, func: Any, note: OpNote, args: Any, kwargs: Any, result: Any) -> None:
        seen = {block.address for block in (*note.reads, *note.changes)}
        for tensor in _flat(result):
            block = _block(tensor)
            if block is not None:
                if block.address not in seen and not _is_view(func):
                    note.makes.append(block)
                self._watch(tensor)
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            note.flops = int(count(*args, **kwargs, out_val=result))

    def _phase(self) -> Phase:
        if self._in_optimizer:
            return "optimizer"
        if in_backward():
            return "backward"
        return "forward" if torch.is_grad_enabled() else "other"

    # Notes

    def _note(self, note: Note) -> None:
        if not self.active:
            return
        note.at_ns = time.perf_counter_ns()
        number = len(self._notes)
        self._notes.append(note)
        with self._stream.mark(number):
            pass

    def _existing(self) -> None:
        """Everything that Python can reach before the first op."""
        tensors = reachable_tensors()
        blocks = {block.address: block for each in tensors if (block := _block(each)) is not None}
        self._note(Note("exists", blocks=tuple(blocks.values())))
        for each in tensors:
            if _block(each) is not None:
                self._watch(each)

    def _root(self, module: torch.nn.Module) -> None:
        self._on_root(module)
        self.classify("parameter", module.parameters())
        self.classify("buffer", module.buffers())

    def _watch(self, tensor: torch.Tensor) -> None:
        """Note the death of a storage; the stream has no address for blocks from before it, nor for foreign memory."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        known = self._watched.get(address)
        if known is not None and known() is storage:
            return
        block = Block(address, storage.nbytes(), _name(tensor.dtype))

        def died(_: object) -> None:
            if self.active:
                self._note(Note("died", blocks=(block,)))

        self._watched[address] = weakref.ref(storage, died)

    def _placed(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        block = Block(storage.data_ptr(), storage.nbytes(), "")
        self._note(Note("placed", entry, (block,)))

        def died(_: object) -> None:
            if self.active:
                self._note(Note("placed_died", entry, (block,)))

        self._placed_count -= 1
        self._watched[self._placed_count] = weakref.ref(storage, died)

    def _dropped(self, entry: Entry) -> None:
        self._note(Note("dropped", entry))

    def _happened(self, happening: Happening) -> None:
        self._happenings.append(happening)


def reachable_tensors() -> list[torch.Tensor]:
    """Every tensor Python knows of. By type: `isinstance` would wake up lazy proxies."""
    return [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]


def reachable_parameters() -> list[torch.Tensor]:
    """Every nn.Parameter Python knows of, and what its optimizers update."""
    found = [each for each in gc.get_objects() if issubclass(type(each), (torch.nn.Parameter, torch.optim.Optimizer))]
    optimizers = [each for each in found if isinstance(each, torch.optim.Optimizer)]
    updated = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    return [each for each in found if isinstance(each, torch.nn.Parameter)] + updated


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _block(tensor: torch.Tensor) -> Block | None:
    """Where a tensor's bytes lie; None for those without bytes of their own on this device."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    try:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
    except (RuntimeError, NotImplementedError):  # functional, fake and wrapper tensors have no address
        return None
    return Block(address, storage.nbytes(), _name(tensor.dtype)) if address else None


def _tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[tuple[str, torch.Tensor]]:
    """(argument name, tensor) for every tensor among the arguments, lists included."""
    schema = schema_of(func).arguments
    for position, value in enumerate(args):
        for tensor in _flat(value):
            yield schema[position].name, tensor
    for name, value in kwargs.items():
        for tensor in _flat(value):
            yield name, tensor


def _flat(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _flat(each)


_WRITTEN: dict[Any, frozenset[str]] = {}
_VIEWS: dict[Any, bool] = {}


def _written_arguments(func: Any) -> frozenset[str]:
    found = _WRITTEN.get(func)
    if found is None:
        names = (a.name for a in schema_of(func).arguments if a.alias_info is not None and a.alias_info.is_write)
        found = _WRITTEN[func] = frozenset(names)
    return found


def _is_view(func: Any) -> bool:
    """Whether its result is its argument's storage, read by nobody yet."""
    found = _VIEWS.get(func)
    if found is None:
        returns = schema_of(func).returns
        found = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        _VIEWS[func] = found
    return found
