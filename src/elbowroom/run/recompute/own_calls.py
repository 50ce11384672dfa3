"""Own calls: what a step under a plan with recipes calls itself, compared with what the recorded step called.

Note: [Own arguments]
A recipe is made of the calls of one recorded step. A later step may call the same ops with other numbers: a dropout
rate that is lowered, a factor that grows. So each step that drops storages follows its own calls, in order. The plain
values of a recipe's calls are taken from the step that drops. Their tensors must lie on the storages that the recipe
will read, with the same layout. Where the step calls another op, or reads another tensor, nothing more is dropped. It
is swapped then. Only what no call shows is left to the samples (Note: [Trust, but verify] in recompute_run.py).

No tensor is kept alive. Measured on a CPU, an op takes four microseconds longer, one of a recipe about thirty. After
the last call that a recipe has, nothing is followed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

import torch

from elbowroom.engine.entries import Entry
from elbowroom.engine.storages import is_plain, storage_of, tensors_of
from elbowroom.run.recompute.call_recorder import APART, VALUES, Calls, CallStorage, OpCall, View, views_of
from elbowroom.run.recompute.recompute_programs import Program
from elbowroom.torch_compat.core import schema_of
from elbowroom.torch_compat.op_calls import (
    BackwardApart,
    call_with_autocast,
    casts_first,
    modes_on,
    watcher_of_calls,
)

Ref = Callable[[], torch.UntypedStorage | None]


class Differs(Exception):
    """A call is not the recorded one."""


class Own(NamedTuple):
    """What a step gave to a recorded call: tensors as recorded, plain values as they were."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@final
class OwnCalls:
    """Follows the calls of each step from `start` to `stop`, outside of backward: Note: [Own arguments].

    Args:
        device: the device of all tensors.
        calls: the calls of the recorded step.
        programs: what runs again.

    Attributes:
        own: for each call of a program, what this step gave to it, where that is not what was recorded.
    """

    def __init__(self, device: torch.device, calls: Calls, programs: Iterable[Program]) -> None:
        self._device = device
        self._recorded = [call for group in calls.groups for call in group.calls]
        self._place = {call: at for at, call in enumerate(self._recorded)}
        self._wanted = {call for program in programs for call in program.calls}
        self._end = 1 + max((self._place[call] for call in self._wanted), default=-1)
        self._entries: Sequence[Entry] = ()
        self._apart: BackwardApart | None = None
        self._at = 0
        self.own: dict[OpCall, Own] = {}
        self._made: dict[CallStorage, Ref] = {}
        self._later: dict[int, list[tuple[OpCall, Ref]]] = {}
        self._same = True
        self._other: set[OpCall] = set()

    def begin(self, entries: Sequence[Entry]) -> None:
        """Forget the step before. `entries` are the saved storages of this one; the list grows during the step."""
        self.stop()
        self._entries, self._at = entries, 0
        self.own, self._made, self._later, self._other = {}, {}, {}, set()

    def start(self) -> None:
        """Follow the calls of this thread from now on. Not while a dispatch mode is on."""
        if modes_on() or not self._wanted:
            return
        watcher = watcher_of_calls()
        watcher.seen = self._called
        self._apart = BackwardApart(lambda: watcher.turn(on=False), self._goes_on)
        watcher.turn(on=True)

    def _goes_on(self, before: bool) -> None:
        watcher_of_calls().turn(on=before and self._apart is not None)

    def stop(self) -> None:
        """Follow no more calls of the step. May be called again."""
        if self._apart is not None:
            self._apart.close()
            self._apart = None
            watcher_of_calls().turn(on=False)
            watcher_of_calls().seen = _unseen

    @property
    def now(self) -> int:
        """How many recorded calls the step has made by now."""
        return self._at

    def fits(self, program: Program, n: int) -> bool:
        """Whether this step has made its n-th saved storage by the calls of a program, as far as these have run."""
        maker = program.makes[n].maker
        return maker is not None and self._place[maker] < self._at and self.alike(program, self._at)

    def alike(self, program: Program, until: int) -> bool:
        """Whether those calls of a program that are among the first `until` read what the recipe will read."""
        return not any(call in self._other for call in program.calls if self._place[call] < until)

    def saved(self, n: int, storage: torch.UntypedStorage) -> None:
        """Note that the n-th saved storage of this step is known now: calls have read it before."""
        for call, ref in self._later.pop(n, ()):
            if ref() is not storage:
                self._other.add(call)

    def _called(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._apart is None or schema_of(op).name.replace("::", ".").startswith(APART):
            with watcher_of_calls().unwatched():
                return op(*args, **kwargs)
        if casts_first(op, self._device.type):
            return call_with_autocast(op, self._device.type, args, kwargs)
        with watcher_of_calls().unwatched():
            call = self._next(op)
            if call is None or call not in self._wanted:
                return op(*args, **kwargs)
            self._compare(call, args, kwargs)
            result = op(*args, **kwargs)
            for place, tensor in enumerate(tensors_of(result)):
                if place in call.results and (storage := storage_of(tensor)) is not None:
                    self._made[call.results[place]] = weakref.ref(storage)
            return result

    def _next(self, op: Any) -> OpCall | None:
        """Return the recorded call that is made now; None if the step has left the recorded one, or none is needed."""
        at = self._at
        if at >= self._end or self._recorded[at].op is not op:
            self.stop()
            return None
        self._at = at + 1
        return self._recorded[at]

    def _compare(self, call: OpCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the plain values of a call, and check its tensors."""
        self._same = len(args) == len(call.args) and kwargs.keys() == call.kwargs.keys()
        left_out = [call.args[len(args) :], [kept for name, kept in call.kwargs.items() if name not in kwargs]]
        kept = [*call.args, *[None] * (len(args) - len(call.args))]
        try:
            if torch.is_grad_enabled() != call.with_grad or any(views_of(left_out)):
                raise Differs
            own = Own(
                tuple(self._taken(call, *each) for each in zip(kept, args, strict=False)),
                {name: self._taken(call, call.kwargs.get(name), value) for name, value in kwargs.items()},
            )
        except Differs:
            self._other.add(call)
            return
        if not self._same:
            self.own[call] = own

    def _taken(self, call: OpCall, kept: Any, value: Any) -> Any:
        """Return an argument of this step as it is recorded. `kept` is the recorded one; None if it was left out."""
        if isinstance(value, torch.Tensor):
            self._check(call, kept, value)
            return kept
        if isinstance(value, (list, tuple)):
            values: Sequence[Any] = value  # pyright: ignore[reportUnknownVariableType]
            alike = isinstance(kept, (list, tuple)) and len(kept) == len(values)  # pyright: ignore[reportUnknownArgumentType]
            self._same = self._same and alike
            if not alike and any(views_of(kept)):
                raise Differs
            pairs = zip(kept if alike else [None] * len(values), values, strict=True)
            return type(value)(self._taken(call, *each) for each in pairs)  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(value, VALUES) or any(views_of(kept)):
            raise Differs
        self._same = self._same and _is(kept, value)
        return value

    def _check(self, call: OpCall, kept: Any, tensor: torch.Tensor) -> None:
        """Check that a tensor of this step is the one that a recipe will read."""
        if not isinstance(kept, View) or tensor.device != self._device or not is_plain(tensor):
            raise Differs
        layout = (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())
        if layout != (kept.dtype, kept.shape, kept.stride, kept.offset) or tensor.requires_grad != kept.requires_grad:
            raise Differs
        source, storage = kept.source, storage_of(tensor)
        if call.of_form:
            return
        if storage is None:
            raise Differs
        if source in self._made:
            is_it = self._made[source]() is storage
        elif source.saved is not None and source.saved < len(self._entries):
            is_it = self._entries[source.saved].alive() is storage
        elif source.saved is not None:
            self._later.setdefault(source.saved, []).append((call, weakref.ref(storage)))
            is_it = True
        else:
            owner = source.owner() if source.owner is not None else None
            is_it = owner is not None and owner.untyped_storage() is storage
        if not is_it:
            raise Differs


def _is(kept: Any, value: Any) -> bool:
    """Whether two plain values are the same to an op: 1 and 1.0 are not, nor 0.0 and -0.0."""
    return type(kept) is type(value) and repr(kept) == repr(value)


def _unseen(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op as ever: another thread may still be watched when this ends."""
    with watcher_of_calls().unwatched():
        return op(*args, **kwargs)
