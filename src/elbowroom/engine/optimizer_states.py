"""Optimizer states on lower tiers: each leaves after the part of the optimizer's step that used it.

Note: [States away]
A state that is away keeps its tensors and its storage. The storage has no bytes until they are back, and reading it
would crash. So no code may reach it unnoticed. While a room is open, `Optimizer.state` is a property. Each read outside
a part brings all states of that optimizer back first: by pickle, deepcopy, or a look at one tensor. A state dict alone
gets them on the host (state_dicts.py). A state that other code still refers to when its part ends stays on the device.
It leaves again once that reference is gone, when a later step begins or its part ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, chain
from typing import Any, final

import torch

from elbowroom.engine.away_parts import AwayParts, Left
from elbowroom.engine.conductor import Conductor, StepPlan
from elbowroom.engine.entries import StateEntry
from elbowroom.engine.executor import Executor
from elbowroom.engine.gradients import Gradients
from elbowroom.engine.optimizer_hooks import Stepping
from elbowroom.engine.optimizer_parts import Found, InTurn, Portion, is_resizable, mapping_of, movable, whole
from elbowroom.engine.parameters import Parameters
from elbowroom.engine.state_dicts import Packed, has_hooks, put_lent, with_lent, without
from elbowroom.engine.states_loading import StatesLoading
from elbowroom.engine.storages import dtype_name, is_plain, storage_of
from elbowroom.errors import TierError, TierFull
from elbowroom.notices import Once, warn, warn_once
from elbowroom.torch_compat.core import storage_key
from elbowroom.units import NONE, format_bytes

MOST_ROOMY = 7
"""Plans, but for the last, that are known to have room for the states and gradients of other optimizers."""
MOST_KINDS = 15
"""Kinds of steps, but for the last, of which the optimizers are remembered."""
EndedPart = tuple[weakref.ref[torch.optim.Optimizer], Portion, int]
"""The optimizer, the parameters of the part, and the identity of the mapping with the states."""


@final
class OptimizerStates:
    """States of all optimizers, on the device and away, and the optimizers' steps in parts.

    Args:
        executor: moves their bytes.
        conductor: knows the plan of the step.
        min_size_bytes: smaller states stay on the device.
        begins: called with an optimizer where its step begins: see `Stepping`.

    Attributes:
        in_parts: whether the steps of optimizers are carried out in parts now.
        optimizers: number of optimizers that have stepped so far.
        gradients: the gradients of all parameters.
        parameters: the parameters themselves.
    """

    def __init__(
        self,
        executor: Executor,
        conductor: Conductor,
        min_size_bytes: int,
        begins: Callable[[torch.optim.Optimizer], None],
    ) -> None:
        self.in_parts, self.optimizers = False, 0
        self.gradients = Gradients(executor, conductor, min_size_bytes)
        self.parameters = Parameters(executor, conductor, min_size_bytes, self.gradients)
        self._executor = executor
        self._conductor = conductor
        self._begins = begins
        self._min_size_bytes = max(1, min_size_bytes)
        self._away = AwayParts(executor)
        self._owners: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._parts: list[EndedPart] = []
        self._ended: list[EndedPart] = []
        self._of_steps: list[list[EndedPart]] = []
        self._of_kinds: dict[Hashable, list[EndedPart]] = {}
        self._kind: Hashable = None
        self._placed_for: StepPlan | None = None
        self._part = 0
        self._in_turn = InTurn(self._begin_part, self._end_part, self._step_whole)
        self._packing = False
        self._once = Once()
        self._stepping: Stepping | None = None
        self._loading: StatesLoading | None = None
        self._met: list[tuple[weakref.ref[torch.optim.Optimizer], Hashable]] = []
        self._roomy: list[StepPlan] = []

    def open(self) -> None:
        """Install the hooks: wrap the steps of all optimizers that are met from now on."""
        self._stepping = Stepping(self._begins, self.step, self.bring_back, self.packed)

    def open_parameters(self) -> None:
        """Let parameters move. Loaded states leave as they come then, like parameters: Note: [Loading]."""
        self.parameters.open()
        if self._loading is None and self.parameters.limit_bytes is not None:
            self._loading = StatesLoading(self._loaded)

    def meets(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Wrap the step function of an optimizer that is called with these arguments, the optimizer first."""
        if self._stepping is not None:
            self._stepping.meets(optimizer, args, kwargs)
            others = [each for each in self._met if each[0]() not in (None, optimizer)]
            if all(each[0]() is not optimizer for each in self._met):
                self.optimizers += 1
                self._roomy.clear()
            self._met = [*others, (weakref.ref(optimizer, self._forget), self._executor.stream())]

    def _forget(self, _: object) -> None:
        """Let go of the parameters of optimizers that are gone: the parts of their steps hold them."""
        self._met = [each for each in self._met if each[0]() is not None]
        self._parts, self._ended = self._of_alive(self._parts), self._of_alive(self._ended)
        self._of_steps = [each for each in self._of_steps if self._of_alive(each)]
        self._of_kinds = {kind: each for kind, each in self._of_kinds.items() if self._of_alive(each)}

    @staticmethod
    def _of_alive(parts: list[EndedPart]) -> list[EndedPart]:
        """Return the parts of a step, none if an optimizer of them is gone. Called as Python ends, without globals."""
        return parts if all(ref() is not None for ref, _, _ in parts) else []

    def rest(self) -> None:
        """Take all hooks out of the optimizers, until `wake`. No state and no parameter is away then."""
        self.bring_back(None)
        self.parameters.rest()
        if self._stepping is not None:
            self._stepping.close()
            self._stepping = None

    def wake(self) -> None:
        """Install the hooks again."""
        if self._stepping is None:
            self.open()

    def leave_behind(self) -> None:
        """Step as ever in a process that was forked. Reading a state that is away is an error there."""
        self.in_parts = self.gradients.wanted = self.parameters.wanted = False
        if self._stepping is not None:
            self._stepping.unwrap()

    # Steps of optimizers

    def turn_to(self, kind: Hashable) -> None:
        """End the step before. A step of a kind comes, which is known by what is seen before it."""
        self._step_ended()
        self.gradients.turn_to(kind)
        self._kind = kind

    def plan_begins(self, known: StepPlan, spare_bytes: int | None = None) -> None:
        """Place the states for the plan of a step that is about to begin: move out or bring back as it expects.

        This comes before the writes of the step are counted, as its plan does not count these moves.

        Args:
            known: the plan.
            spare_bytes: what the plan leaves free of the budget: states and gradients of other optimizers that take
                more leave. None if they may not.
        """
        if known is not self._placed_for:
            self._parts = self._parts_of(known)
        elif self._of_steps:
            self._parts = self._of_steps[0]
        self.parameters.plan_begins(known)
        self.gradients.plan_begins(known)
        with self._conductor.aside():
            if not known.in_parts:
                if len(self._met) == 1:  # of several, each brings its own back as it steps
                    self.bring_back(None)
            elif known is not self._placed_for or self._changed():
                self._place(known)
        self._placed_for = known
        if spare_bytes is not None and len(self._met) > 1 and not any(each is known for each in self._roomy):
            self._others_leave(known, spare_bytes)

    def _others_leave(self, known: StepPlan, spare_bytes: int) -> None:
        """Let gradients and states of other optimizers leave, as far as a plan has no room for them.

        What was there as its step was recorded is in its trace. See Note: [Gradients of others] in gradients.py.
        """
        own = {id(optimizer) for ref, *_ in self._parts if (optimizer := ref()) is not None}
        met = ((optimizer, stream) for ref, stream in self._met if (optimizer := ref()) is not None)
        others = [each for each, stream in met if id(each) not in own and stream == self._executor.stream()]
        here = list(self._here(others))
        gradients = self.gradients.of_others(known) if self.gradients.may_leave else {}
        room_bytes = spare_bytes + known.schedule.idle_bytes
        sizes = [*gradients.values(), *(found.size_bytes for _, found in here)]  # most gradients need not come back
        held_before = accumulate(reversed(sizes), initial=0)
        stay = sum(held + size <= room_bytes for held, size in zip(held_before, reversed(sizes), strict=False))
        leaving = len(sizes) - stay
        if not leaving and not self._owners and not self.gradients.some_away:
            self._roomy = [*self._roomy[-MOST_ROOMY:], known]  # nothing is away that could come back
        if not leaving:
            return
        with self._conductor.aside(), suppress(TierFull):
            self.gradients.let_leave(list(gradients)[:leaving], known)
            for optimizer, found in here[: max(0, leaving - len(gradients))]:
                self._leave(optimizer, found, NONE)
            self._executor.settle()

    def begin_step(self) -> None:
        """Begin a step of the training."""
        known, self._part = self._conductor.known(), 0
        self.gradients.begin_step(known)
        self.parameters.begin_step()
        if known is not None:
            with self._conductor.aside():
                self._conductor.act(known.schedule.on_begin)
        elif not self.in_parts:
            self.bring_back(None)
            self._placed_for = None
        recorder = self._conductor.recorder()
        if recorder is not None and len(self._met) > 1:  # with one, nothing leaves for its steps
            states = self._here(ref() for ref, _ in self._met) if self.in_parts else ()
            recorder.others(found.storage for _, found in chain(self.gradients.here(), states))

    def _here(
        self, optimizers: Iterable[torch.optim.Optimizer | None]
    ) -> Iterator[tuple[torch.optim.Optimizer, Found]]:
        """Yield the states of some optimizers that are on the device and may leave."""
        for optimizer in optimizers:
            states = [] if optimizer is None else self._movable(optimizer, whole(optimizer))
            for found in states:
                if optimizer is not None and not found.held and storage_key(found.storage) not in self._owners:
                    yield optimizer, found

    def end_step(self) -> None:
        """End a step of the training: the last optimizer has stepped."""
        self.gradients.end_step()
        known = self._conductor.known()
        if known is not None and known.schedule.on_end is not None:
            with self._conductor.aside():
                self._conductor.act(known.schedule.on_end)

    def step(self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Carry out an optimizer's step. `step` is the function of its class that does it; the rest are arguments."""
        found = self._in_turn.step(optimizer, step, args, kwargs, self._min_size_bytes if self.in_parts else None)
        self._away.show()
        return found

    def _step_whole(self, optimizer: torch.optim.Optimizer) -> None:
        self.gradients.bring_back(whole(optimizer).parameters())
        self.bring_back(optimizer)

    def _begin_part(self, optimizer: torch.optim.Optimizer, portion: Portion) -> None:
        recorder = self._conductor.recorder()
        if recorder is not None:
            recorder.part_begins()
        with self._conductor.aside():
            self._tick(ends=False)
            self.gradients.part_begins(optimizer, portion)
            for found in self._movable(optimizer, portion):
                self._arrive(found.storage)

    def _end_part(self, optimizer: torch.optim.Optimizer, portion: Portion) -> None:
        recorder, states = self._conductor.recorder(), self._movable(optimizer, portion)
        if recorder is not None:
            recorder.part_ends([(each.storage, each.dtype) for each in states])
        gradients = self.gradients.of_part(portion)
        self.gradients.note(gradients)
        with self._conductor.aside():
            known = self._conductor.known()
            if known is not None and not (
                _fits(known, self._part, states) and self.gradients.part_ends(gradients, self._part, known)
            ):
                what = f"part {self._part} of the optimizer's step has other states than its plan expects"
                self._conductor.surprised_by(what)
                known = None
            if known is None:
                self.gradients.part_ends(gradients, self._part, None)
                self._leave_all(optimizer, states)
            else:
                for found, slot in zip(states, known.schedule.parts[self._part], strict=True):
                    if slot.n is not None:
                        self._leave(optimizer, found, slot.n)
            self._tick(ends=True)
        self._ended.append((weakref.ref(optimizer), portion, id(mapping_of(optimizer))))
        self._part += 1

    def _tick(self, *, ends: bool) -> None:
        known = self._conductor.known()
        if known is not None:
            self._conductor.act(known.schedule.on_part.get((self._part, ends)))

    def _movable(self, optimizer: torch.optim.Optimizer, portion: Portion) -> list[Found]:
        away = {key: self._away.entries[key].size_bytes for key in self._owners}
        return movable(optimizer, portion, self._executor.device, away, self._min_size_bytes)

    # Between steps

    def _step_ended(self) -> None:
        """Keep the parts of the step that has ended, as the last ones of its optimizers."""
        if self._ended:
            refs = [ref for ref, _, _ in self._ended]
            others = [each for each in self._of_steps if [ref for ref, _, _ in each] != refs]
            self._of_kinds.pop(self._kind, None)
            self._of_kinds = dict([*self._of_kinds.items()][-MOST_KINDS:]) | {self._kind: self._ended}
            self._of_steps, self._ended = [self._ended, *others], []

    def _parts_of(self, known: StepPlan) -> list[EndedPart]:
        """Return the parts of the last step like those of a plan: optimizers may step in turn. Else of the last one.

        Those of the last step of this kind come first: two nets may have states of the same sizes.
        """
        if len(self._of_steps) > 1:
            same = self._of_kinds.get(self._kind, [])
            if same and self._of_alive(same) and self._are_of(same, known):
                return same
            return next((each for each in self._of_steps if self._are_of(each, known)), self._of_steps[0])
        return self._of_steps[0] if self._of_steps else []

    def _are_of(self, parts: list[EndedPart], known: StepPlan) -> bool:
        states = (self._movable(optimizer, portion) for ref, portion, _ in parts if (optimizer := ref()) is not None)
        return len(parts) == len(known.schedule.parts) and all(_fits(known, n, each) for n, each in enumerate(states))

    def _changed(self) -> bool:
        """Whether states were brought back, or replaced, since the parts of the last step ended."""
        schedule = self._placed_for.schedule if self._placed_for is not None else None
        carried = () if schedule is None else [s.n for part in schedule.parts for s in part if s.n in schedule.carried]
        if any(n not in self._away.of_window for n in carried):
            return True
        return any(
            (optimizer := ref()) is not None and id(mapping_of(optimizer)) != mapping for ref, _, mapping in self._parts
        )

    def _place(self, known: StepPlan) -> None:
        """Move out the states that a plan expects away when a step begins, and bring back all others."""
        self._away.of_window.clear()
        for part, (ref, portion, _) in enumerate(self._parts):
            optimizer = ref()
            states = [] if optimizer is None else self._movable(optimizer, portion)
            if optimizer is None or not _fits(known, part, states):
                continue
            for found, slot in zip(states, known.schedule.parts[part], strict=True):
                entry = self._away.entries.get(storage_key(found.storage))
                if slot.n is None or slot.n not in known.schedule.carried:
                    self._arrive(found.storage)
                elif entry is not None:
                    entry.n, self._away.of_window[slot.n] = slot.n, entry
                else:
                    self._leave(optimizer, found, slot.n)
        self._executor.settle()

    def leave_now(self) -> bool:
        """Move out all states that may leave: those that no part of an optimizer's step uses now.

        The next step places them for its plan. Another stream than that of their optimizer's last step may run ahead of
        it: there they stay. Returns whether any left.
        """
        if self._in_turn.inside or self._packing:
            return False
        before = len(self._owners)
        with self._conductor.aside():
            for ref, stream in self._met:
                optimizer = ref()
                if optimizer is not None and stream == self._executor.stream():
                    here = self._movable(optimizer, whole(optimizer))
                    self._leave_all(optimizer, [each for each in here if storage_key(each.storage) not in self._owners])
        self._placed_for = None
        return len(self._owners) > before

    def _leave_all(self, optimizer: torch.optim.Optimizer, states: list[Found]) -> None:
        """Move all states of a part out, as far as there is room, and wait for the writes. For observed steps."""
        with suppress(TierFull):  # a plan may not need to move them at all
            for found in states:
                self._leave(optimizer, found, NONE)
        self._executor.settle()

    def _leave(self, optimizer: torch.optim.Optimizer, found: Found, n: int) -> None:
        """Start to move a state out, unless other code could use it unnoticed."""
        if found.held:
            self._warn(found.size_bytes)
            return
        key = storage_key(found.storage)
        self._away.leave(key, found, n, self._conductor.known())
        self._owners[key] = weakref.ref(optimizer)

    def _arrive(self, storage: torch.UntypedStorage) -> None:
        """Bring a state back to the device."""
        key = storage_key(storage)
        self._away.arrive(key)
        self._owners.pop(key, None)

    def entry_of(self, n: int) -> StateEntry | None:
        """Return the state, gradient or parameter that is away in a window, if it is."""
        return self._away.of_window.get(n) or self.gradients.entry_of(n) or self.parameters.entry_of(n)

    def _loaded(self, optimizer: torch.optim.Optimizer, state: torch.Tensor) -> None:
        """Let a state leave that an optimizer has just loaded."""
        if self._in_turn.inside or self._packing or not self.parameters.on:
            return
        storage = storage_of(state) if is_plain(state) and state.device == self._executor.device else None
        if storage is not None and storage.nbytes() >= self._min_size_bytes and is_resizable(storage):
            with self._conductor.aside():
                self._leave_all(optimizer, [Found(storage, state.dtype, storage.nbytes(), held=False)])

    def bring_back(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Bring back all states of an optimizer, or of all optimizers. Does nothing inside a step in parts."""
        loads = self._loading is not None and self._loading.on
        if self._in_turn.inside or self._packing or loads or not self._owners:
            return
        with self._conductor.aside():
            for _, storage in self._away_of(optimizer):
                self._arrive(storage)

    def _away_of(self, optimizer: torch.optim.Optimizer | None) -> list[tuple[Hashable, torch.UntypedStorage]]:
        """Return what is away of an optimizer, or of all, by its key. Forgets what is gone."""
        found: list[tuple[Hashable, torch.UntypedStorage]] = []
        for key, ref in list(self._owners.items()):
            storage = self._away.entries[key].alive()
            if storage is None:
                del self._away.entries[key], self._owners[key]
            elif optimizer is None or ref() is optimizer:
                found.append((key, storage))
        return found

    def packed(self, optimizer: torch.optim.Optimizer, pack: Callable[[torch.optim.Optimizer], Packed]) -> Packed:
        """Return the state dict of an optimizer. `pack` is torch's own function. See Note: [State dicts]."""
        if self._in_turn.inside or self._packing or has_hooks(optimizer):
            return pack(optimizer)
        lent: dict[Hashable, torch.UntypedStorage] = {}
        with self._conductor.aside():
            self._executor.settle()
            for key, storage in self._away_of(optimizer):
                memory = self._away.lend(key)
                if memory is None:
                    self._arrive(storage)
                else:
                    lent[key] = memory
        if not lent:
            return pack(optimizer)
        self._packing = True
        try:
            return with_lent(pack(optimizer), lent)
        finally:
            self._packing = False

    def close(self, *, goes_on: bool = True) -> None:
        """Bring every state and gradient back, and close the executor.

        A state that the device has no room for stays on the host: its optimizer has it there from now on. If there is
        no room on the host either, its optimizer has it no more.

        Args:
            goes_on: whether the process may train on, so that this is worth a warning, or an error.

        Raises:
            TierError: the bytes of some are lost; all others are back.
            RuntimeError: there is no room for some, and the process may train on.
        """
        if self._stepping is not None:
            self._stepping.close()
        if self._loading is not None:
            self._loading.close()
        left: Left = {}
        most_bytes = self.parameters.limit_bytes
        of_parameters = self.parameters.close()
        of_gradients, of_states = self.gradients.close(most_bytes), self._away.close(left, most_bytes)
        if left:
            self._stay_away(left, warns=goes_on)
        if not goes_on and not isinstance(of_states, TierError):
            of_states = None  # `_stay_away` has warned
        self._in_turn.inside = False
        self._owners.clear()
        self._parts, self._ended, self._of_steps, self._placed_for = [], [], [], None
        self._executor.close()
        if problem := of_parameters or of_gradients or of_states:
            raise problem

    def _stay_away(self, left: Left, *, warns: bool) -> None:
        """Give the optimizers tensors on the host in place of those whose storages could not come back, or none."""
        lent = {key: memory for key, memory in left.items() if memory is not None}
        lost = len(left) - len(lent)
        for optimizer in {id(found): found for ref in self._owners.values() if (found := ref()) is not None}.values():
            without(mapping_of(optimizer), left.keys() - lent.keys())
            put_lent(mapping_of(optimizer), lent)
        if warns and lent:
            size_bytes = sum(each.nbytes() for each in lent.values())
            where = (
                "are mapped from a file now: memory has no room for them. A state dict has them"
                if self._executor.device.type == "cpu"
                else "stay on the host: the device has no room for them. A state dict has them. To train on without "
                "elbowroom, free memory and load that state dict"
            )
            warn(f"elbowroom: {format_bytes(size_bytes)} of optimizer states {where}")
        if lost:
            warn(
                f"elbowroom: {lost} optimizer states did not come back as the run ended, as no memory was left: their "
                "optimizers have them no more. Save a state dict in the script, or give the process more memory"
            )

    def _warn(self, size_bytes: int) -> None:
        warn_once(
            self._once,
            "state",
            f"elbowroom: an optimizer state of {format_bytes(size_bytes)} stays on the device, as code outside its "
            "optimizer refers to it (a state dict that is still alive, a tensor in a list): the step may need more "
            "than its budget. Take a copy of states that are to be kept",
        )


def _fits(known: StepPlan, part: int, states: list[Found]) -> bool:
    """Tell whether a part has the states that a plan expects."""
    parts = known.schedule.parts
    expected = parts[part] if part < len(parts) else ()
    found = [(each.size_bytes, dtype_name(each.dtype)) for each in states]
    return part < len(parts) and found == [(slot.size_bytes, slot.dtype) for slot in expected]
