"""Own calls: what a step under a plan with recipes calls itself, compared with what the recorded step called.

Note: [Own arguments]
A recipe is made of the calls of one recorded step. A later step may call the same ops with other numbers: a dropout
rate that is lowered, a factor that grows. So each step that drops storages follows its own calls, in order. The plain
values of a recipe's calls are taken from the step that drops. Their tensors must lie on the storages that the recipe
will read, with the same shape. Strides and offsets are taken from the step too. So is the generator's state before
each call that draws. Where the step calls another op, or reads another tensor, nothing more is dropped. It is swapped
then. So is a storage that is not what its recipe's call has made, or is saved after more calls or fewer. Only what no
call shows is left to the samples (Note: [Trust, but verify] in recompute_run.py). Where such a change stays, a step is
observed anew (`refused` in learner.py).

No tensor is kept alive. Measured on a CPU, an op takes four microseconds longer, one of a recipe about thirty. After
the last call that a recipe has, nothing is followed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

import torch

from elbowroom.engine.entries import Entry
from elbowroom.engine.storages import is_plain, storage_of, tensors_of
from elbowroom.run.recompute.call_recorder import (
    APART,
    VALUES,
    Calls,
    CallStorage,
    OpCall,
    View,
    autocast_now,
    flags_now,
    generator_state,
    views_of,
)
from elbowroom.run.recompute.recompute_programs import Program, changed, updates_statistics, written
from elbowroom.step.recipes.tables import STATISTICS
from elbowroom.torch_compat.core import schema_of
from elbowroom.torch_compat.op_calls import (
    BackwardApart,
    before_compiling,
    call_with_autocast,
    casts_first,
    modes_on,
    watcher_of_calls,
)

Ref = Callable[[], torch.UntypedStorage | None]


class Differs(Exception):
    """A call is not the recorded one."""


class Own(NamedTuple):
    """What a step gave to a recorded call: tensors on the recorded storages, plain values as they were."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@final
class StepCalls:
    """What was found in the calls of one step.

    Args:
        entries: its saved storages; the list grows during the step.
        place: call -> its place in the recorded step.

    Attributes:
        made: how many calls it has made.
        left: whether it made another call than the recorded one.
        own: for each call of a program, what this step gave to it, where that is not what was recorded.
        states: for each call of a program that draws, the generator's state before it.
        other: calls that read other tensors than the recorded ones.
        later: n -> calls that read a storage which is to be the n-th saved one, and that storage.
        wrong: saved storages that are not what the recorded call made.
        results: what the calls of programs made.
        sources: the same, by `id` of the storage.
    """

    def __init__(self, entries: Sequence[Entry], place: Mapping[OpCall, int]) -> None:
        self.entries = entries
        self._place = place
        self.made = 0
        self.left = False
        self.own: dict[OpCall, Own] = {}
        self.states: dict[OpCall, torch.Tensor] = {}
        self.other: set[OpCall] = set()
        self.later: dict[int, list[tuple[OpCall, Ref]]] = {}
        self.wrong: set[int] = set()
        self.results: dict[CallStorage, Ref] = {}
        self.sources: dict[int, CallStorage] = {}

    def alike(self, program: Program, until: int) -> bool:
        """Whether those calls of a program that are among the first `until` read what the recipe will read."""
        ran = {call for call in program.calls if self._place[call] < until}
        return self.other.isdisjoint(ran) and self.wrong.isdisjoint(program.entries)

    def is_known(self, program: Program) -> bool:
        """Whether all that the calls of a program have read is saved by now."""
        return not any(call in program.calls for calls in self.later.values() for call, _ in calls)

    def saved(self, n: int, source: CallStorage | None, storage: torch.UntypedStorage) -> None:
        """Note the n-th saved storage, and the one that was it in the recorded step."""
        for call, ref in self.later.pop(n, ()):
            if ref() is not storage:
                self.other.add(call)
        if source in self.results and self.results[source]() is not storage:
            self.wrong.add(n)


@final
class OwnCalls:
    """Follows the calls of each step from `start` to `stop`, outside of backward: Note: [Own arguments].

    Args:
        device: the device of all tensors.
        calls: the calls of the recorded step.
        programs: what runs again.

    Attributes:
        step: what was found in the step that runs now.
    """

    def __init__(self, device: torch.device, calls: Calls, programs: Sequence[Program]) -> None:
        self._device = device
        self._saved = calls.saved
        self._recorded = [call for group in calls.groups for call in group.calls]
        self._place = {call: at for at, call in enumerate(self._recorded)}
        self._wanted = {call for program in programs for call in program.calls}
        self._draws = {call for program in programs for call in program.draws}
        ends = [1 + self._place[call] for call in self._wanted]
        self._end = max([*ends, *(made.after for program in programs for made in program.makes.values())], default=0)
        self._writes = {call: [view.source for view in written(call)] for call in self._recorded[: self._end]}
        self._apart: BackwardApart | None = None
        self._same = self._followed = True
        self.step = StepCalls((), self._place)

    def begin(self, entries: Sequence[Entry]) -> None:
        """Forget the step before. `entries` are the saved storages of this one; the list grows during the step."""
        self.stop()
        self._followed = False
        self.step = StepCalls(entries, self._place)

    def start(self) -> None:
        """Follow the calls of this thread from now on. Not while a dispatch mode is on."""
        if modes_on() or not self._wanted:
            return
        watcher = watcher_of_calls()
        watcher.seen = self._called
        self._apart = BackwardApart(lambda: watcher.turn(on=False), self._goes_on)
        self._followed = True
        before_compiling(self.leave)
        watcher.turn(on=True)

    def _goes_on(self, before: bool) -> None:
        watcher_of_calls().turn(on=before and self._apart is not None)

    def stop(self) -> None:
        """Follow no more calls of the step. May be called again: contexts of torch restore the thread's keys."""
        watcher = watcher_of_calls()
        if self._apart is not None:
            self._apart.close()
            self._apart = None
            watcher.seen = watcher.plainly
        if self._followed:
            watcher.turn(on=False)

    def leave(self) -> None:
        """Follow no more calls, and drop nothing more: the step is not the recorded one."""
        self.step.left = True
        self.stop()

    def fits(self, program: Program, n: int, storage: torch.UntypedStorage) -> bool:
        """Whether this step has made its n-th saved storage by the calls of a program."""
        step, source = self.step, program.makes[n]
        if step.left or source.maker is None or step.made != source.after:
            return False
        made = step.results.get(source)
        # autograd saves a result before the call has returned it
        is_it = self._place[source.maker] == step.made - 1 if made is None else made() is storage
        return is_it and step.alike(program, step.made)

    def saved(self, n: int, storage: torch.UntypedStorage) -> None:
        """Note the n-th saved storage of this step."""
        self.step.saved(n, self._saved.get(n), storage)

    def _called(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._apart is None or schema_of(op).name.replace("::", ".").startswith(APART):
            return watcher_of_calls().plainly(op, args, kwargs)
        if casts_first(op, self._device.type):
            return call_with_autocast(op, self._device.type, args, kwargs)
        with watcher_of_calls().unwatched():
            call = self._next(op)
            if call is None:
                return op(*args, **kwargs)
            wanted = call in self._wanted
            if wanted:
                self._compare(call, args, kwargs)
            if call in self._draws:
                self.step.states[call] = generator_state(self._device)
            if self._writes[call] and self._writes_to_others(call, args, kwargs):
                self.leave()
            result = op(*args, **kwargs)
            for place, tensor in enumerate(tensors_of(result) if wanted else ()):
                if place in call.results and (storage := storage_of(tensor)) is not None:
                    self.step.results[call.results[place]] = weakref.ref(storage)
                    self.step.sources[id(storage)] = call.results[place]
            return result

    def _next(self, op: Any) -> OpCall | None:
        """Return the recorded call that is made now; None if the step has left the recorded one, or none is needed."""
        at = self.step.made
        if at >= self._end:
            self.stop()
            return None
        if self._recorded[at].op is not op:
            self.leave()
            return None
        self.step.made = at + 1
        return self._recorded[at]

    def _writes_to_others(self, call: OpCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call changes other results of programs than the recorded call did.

        A call of one program may change what another one makes.
        """
        results, sources = self.step.results, self.step.sources
        found = [storage_of(tensor) for tensor in tensors_of(changed(call.op, args, kwargs))]
        met = [(sources[id(each)], each) for each in found if id(each) in sources]
        now = [source for source, storage in met if results[source]() is storage]
        return now != [source for source in self._writes[call] if source in results]

    def _compare(self, call: OpCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the plain values of a call, and check its tensors."""
        self._same = len(args) == len(call.args) and kwargs.keys() == call.kwargs.keys()
        left_out = [call.args[len(args) :], [kept for name, kept in call.kwargs.items() if name not in kwargs]]
        kept = [*call.args, *[None] * (len(args) - len(call.args))]
        try:
            now = torch.is_grad_enabled(), flags_now(), autocast_now(self._device)
            if now != (call.with_grad, call.flags, call.autocast) or any(views_of(left_out)):
                raise Differs
            own = Own(
                tuple(self._taken(call, *each) for each in zip(kept, args, strict=False)),
                {name: self._taken(call, call.kwargs.get(name), value) for name, value in kwargs.items()},
            )
            if call.name in STATISTICS and _updates(call.op, own) != _updates(call.op, Own(call.args, call.kwargs)):
                raise Differs
        except Differs:
            self.step.other.add(call)
            return
        if not self._same:
            self.step.own[call] = own

    def _taken(self, call: OpCall, kept: Any, value: Any) -> Any:
        """Return an argument of this step as it is recorded. `kept` is the recorded one; None if it was left out."""
        if isinstance(value, torch.Tensor):
            return self._placed(call, kept, value)
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

    def _placed(self, call: OpCall, kept: Any, tensor: torch.Tensor) -> View:
        """Return where a tensor of this step lies in what a recipe will read."""
        if not isinstance(kept, View) or tensor.device != self._device or not is_plain(tensor):
            raise Differs
        if (tensor.dtype, tuple(tensor.shape), tensor.requires_grad) != (kept.dtype, kept.shape, kept.requires_grad):
            raise Differs
        source, storage = kept.source, storage_of(tensor)
        if not call.of_form and (storage is None or not self._is_read(call, source, storage)):
            raise Differs
        stride, offset = tuple(tensor.stride()), int(tensor.storage_offset())
        if (stride, offset) == (kept.stride, kept.offset):
            return kept
        self._same = False
        return replace(kept, stride=stride, offset=offset)

    def _is_read(self, call: OpCall, source: CallStorage, storage: torch.UntypedStorage) -> bool:
        """Whether a recipe will read this storage in place of a recorded one."""
        entries, results = self.step.entries, self.step.results
        if source in results:
            return results[source]() is storage
        if source.saved is None:
            owner = source.owner() if source.owner is not None else None
            return owner is not None and owner.untyped_storage() is storage
        if source.saved < len(entries):
            return entries[source.saved].alive() is storage
        self.step.later.setdefault(source.saved, []).append((call, weakref.ref(storage)))
        return True


def _updates(op: Any, own: Own) -> bool:
    return updates_statistics(op, own.args, own.kwargs)


def _is(kept: Any, value: Any) -> bool:
    """Whether two plain values are the same to an op: 1 and 1.0 are not, nor 0.0 and -0.0."""
    return type(kept) is type(value) and repr(kept) == repr(value)
