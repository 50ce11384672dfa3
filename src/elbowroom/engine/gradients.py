"""Gradients on lower tiers: each leaves once backward has written it, and is back before its next use.

After its part of the optimizer's step it leaves again, until `zero_grad` frees it.

Note: [Gradients away]
A gradient is used next by another accumulation, or by the part of an optimizer's step that updates its parameter. Both
have it brought back first: at the planned tick, or at the latest just before. Any other code gets it from
`parameter.grad`, which brings it back too (gradient_hooks.py). An observed step remembers such a gradient: it stays on
the device from then on. So does one that shares its storage, or that something refers to when it has just been written.
Bits cannot change: what comes back is what left. Under torch.distributed gradients stay, as its reducers read them in
C++.

Note: [Gradients after their part]
Nothing uses a gradient between its part and `zero_grad`, which frees it without a look at its bytes (zeroing.py). What
else asks for it gets it back, and it stays there in plans that are made from then on. The tier has its bytes still if
the part did not change them: then it leaves without a copy. Only steps of torch.optim are trusted to count what they
change in versions. Fused ones do not where they unscale gradients: these are written again.

Note: [Gradients of others]
Where optimizers step in turn, as in adversarial nets, a step begins with gradients of other nets. It may add to them,
as the generator's step does to those of the discriminator. Then each has a window from its last accumulation in one
step to its first in the next. What a step neither uses nor frees is in no trace if it was away where that was recorded.
It stays away in the planned steps of that kind, or leaves before them, unless the budget has room for it. The order in
which a step like this one wrote gradients the last time says which are its own. With one optimizer nothing leaves for
this, so what a step does not use is in its trace.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from contextlib import suppress
from typing import final

import torch
from torch import nn

from elbowroom.engine.away_parts import AwayParts, Left
from elbowroom.engine.conductor import Conductor, StepPlan
from elbowroom.engine.entries import StateEntry
from elbowroom.engine.executor import Executor
from elbowroom.engine.gradient_hooks import GRAD, Accumulating
from elbowroom.engine.handed_out import HandedOut, is_for_torch
from elbowroom.engine.lent_gradients import LentGradients
from elbowroom.engine.optimizer_parts import Found, Portion
from elbowroom.engine.storages import dtype_name, reachable_parameters, storage_of
from elbowroom.engine.zeroing import Zeroing
from elbowroom.errors import TierError, TierFull
from elbowroom.notices import Once, warn, warn_once
from elbowroom.step.schedule import StateSlot
from elbowroom.torch_compat.core import is_distributed, version_of
from elbowroom.units import NONE, format_bytes

Remembered = dict[int, weakref.ref[torch.Tensor]]
"""Identity of a parameter -> the parameter, if it still exists."""
OfPart = list[tuple[nn.Parameter, Found]]
"""Parameters of a part, each with its gradient."""
MOST_ORDERS = 15
"""Kinds of steps, but for the last, of which the order of gradients is remembered."""
WrittenOne = tuple[weakref.ref[nn.Parameter], tuple[int, str]]
"""A parameter whose gradient a step has written, and the (size_bytes, dtype) of that."""


@final
class Gradients:
    """Gradients of all parameters, on the device and away.

    Args:
        executor: moves their bytes.
        conductor: knows the plan of the step.
        min_size_bytes: smaller gradients stay on the device.

    Attributes:
        wanted: whether gradients leave in steps that are observed, so that plans may move them.
        may_leave: whether gradients may move at all.
        handed: those that torch's own code has got without their bytes.
        lent: those that other code has got whole, and that leave again.
        hands_out: tells whether code may get one so now, as operators are seen: Note: [Handed out] and [Lent]. None
            for never.
    """

    def __init__(self, executor: Executor, conductor: Conductor, min_size_bytes: int) -> None:
        self.wanted = self.may_leave = False
        self._executor = executor
        self._conductor = conductor
        self._around = Accumulating(
            self._begins, self._ends, self._asked, self._replaced, executor.device, min_size_bytes
        )
        self._away = AwayParts(executor)
        self.handed = HandedOut(self._away, executor, conductor)
        self.lent = LentGradients(self._away, executor, conductor, self._found_of)
        self.hands_out: Callable[[], bool] | None = None
        self._stay: Remembered = {}
        self._stay_later: Remembered = {}
        self._of_step: set[int] = set()
        self._ended: set[int] = set()
        self._order: list[WrittenOne] = []
        self._orders: dict[Hashable, list[WrittenOne]] = {}
        self._kind: Hashable = None
        self._clean: dict[int, int] = {}
        self._zeroing = Zeroing()
        self._written = self._steps = 0
        self._in_part = self._is_over = False
        self._asked_later: set[int] = set()
        self._placed_for: StepPlan | None = None
        self._once = Once()

    @property
    def some_away(self) -> bool:
        """Whether any gradient is away."""
        return bool(self._away.entries)

    def plan_begins(self, known: StepPlan) -> None:
        """Move out the gradients of the step before that a new plan expects away.

        This comes before the writes of the step are counted, as its plan does not count these moves.
        """
        if known is not self._placed_for and _carries(known):
            own, away, lasting = self._own(known), self._carried(known), known.schedule.lasting
            ends = (slot for j, slot in enumerate(known.schedule.gradients) if j not in lasting)
            released = _some_carried(known, (*known.schedule.released, ends))
            with self._conductor.aside():
                for key in self._around:
                    if key in away or (key not in own and not own) or (released and own.get(key) not in lasting):
                        self._leaves(key, known)
                self._executor.settle()
        self._placed_for = known

    def _leaves(self, key: Hashable, known: StepPlan | None) -> None:
        """Let a gradient leave between two steps, if it is there and nothing else refers to it."""
        found = self._found_of(key)
        if found is not None and not found.held and key not in self._away.entries:
            self._away.changed(key)
            self._away.leave(key, found, NONE, known)

    def of_others(self, known: StepPlan) -> dict[Hashable, int]:
        """Return the bytes of the gradients on the device that a step neither writes nor frees, as far as known."""
        own = self._own(known)
        if not own:
            return {}
        if not self._around.installed:
            self._around.install(p for p in reachable_parameters() if not _is_in(self._stay, p))
        return {key: found.size_bytes for key, found in self.here(but=own)}

    def here(self, but: Container[Hashable] = ()) -> Iterator[tuple[Hashable, Found]]:
        """Yield the gradients on the device that may leave between two steps, but for those with some keys."""
        for key in self._around:
            found = None if key in but or self._remains(key) else self._found_of(key)
            if found is not None and not found.held:
                yield key, found

    def _remains(self, key: Hashable) -> bool:
        """Whether a gradient is away, or code has asked for it after its optimizer's step."""
        parameter = self._around.of(key)
        return key in self._away.entries or (parameter is not None and _is_in(self._stay_later, parameter))

    def let_leave(self, keys: Iterable[Hashable], known: StepPlan) -> None:
        """Let gradients leave between two steps, and wait for the writes."""
        with self._conductor.aside(), suppress(TierFull):
            for key in keys:
                self._leaves(key, known)
        self._executor.settle()

    def begin_step(self, known: StepPlan | None) -> None:
        """Begin a step of the training."""
        self._written = 0
        self._is_over = False
        self._steps += 1
        if known is None:
            self._placed_for = None
        self._of_step.clear()
        self._ended.clear()
        self.handed.forget_gone()
        self.lent.clear()
        moved = known is not None and bool(known.schedule.gradients)
        recorded = self.wanted and (known is None or self._conductor.recorder() is not None)
        if not (moved or recorded) or is_distributed():
            self._come(known)
            if not self._away.entries:
                self._around.install(())
                self._zeroing.close()
                return
        if recorded or not self._around.installed:
            self._around.install(p for p in reachable_parameters() if not _is_in(self._stay, p))
        self._zeroing.open()
        self._carry(known)

    def turn_to(self, kind: Hashable) -> None:
        """Keep the order in which the step before wrote gradients, for later steps like it. A step of a kind comes."""
        if self._order:
            self._orders.pop(self._kind, None)
            kept = [(k, order) for k, order in self._orders.items() if all(ref() is not None for ref, _ in order)]
            self._orders = dict(kept[-MOST_ORDERS:]) | {self._kind: self._order}
            self._order = []
        self._kind = kind

    def end_step(self) -> None:
        """End a step: the last optimizer has stepped."""
        self._is_over = True

    def _own(self, known: StepPlan) -> dict[Hashable, int]:
        """Return the gradients that a step like a plan's wrote, each with its last accumulation; empty if unknown."""
        wanted = known.schedule.accumulated
        orders = (order for kind, order in self._orders.items() if kind != self._kind)
        for order in (self._orders.get(self._kind, []), *orders):
            if tuple(kind for _, kind in order) == wanted:
                return {id(p): j for j, (ref, _) in enumerate(order) if (p := ref()) is not None}
        return {}

    def _carried(self, known: StepPlan) -> dict[Hashable, int]:
        """Return the gradients that a plan has away from one step to the first accumulation of the next: windows."""
        slots, carried = known.schedule.gradients, known.schedule.carried
        lasting = known.schedule.lasting if slots else ()
        pairs = ((key, slots[j].n) for key, j in self._own(known).items() if j in lasting)
        return {key: n for key, n in pairs if n is not None and n in carried}

    def _come(self, known: StepPlan | None) -> None:
        """Bring back the gradients that a plan's step writes and expects there; all if that is not known."""
        own = {} if known is None else self._own(known)
        if not own or is_distributed():
            self.bring_back()
            return
        with self._conductor.aside():
            for key in [key for key in self._away.entries if key in own]:
                self._away.arrive(key)

    def _carry(self, known: StepPlan | None) -> None:
        """Keep the gradients of the step before away, if this step expects them there; else bring them back."""
        for key in [key for key, entry in self._away.entries.items() if entry.alive() is None]:
            del self._away.entries[key]  # `zero_grad` has freed them
        if known is not None and not _carries(known):
            self._come(known)
        with self._conductor.aside():
            for key in [key for key in self._away.entries if self._around.of(key) is None]:
                self._away.arrive(key)
        self._away.of_window.clear()
        recorder = self._conductor.recorder()
        for key, entry in self._away.entries.items():
            entry.n = NONE
            if recorder is not None and (gradient := self._gradient_of(key)) is not None:
                recorder.absent(entry, gradient.dtype)
        if recorder is not None:
            here = (key for key in self._around if key not in self._away.entries)
            recorder.classify("gradient", (each for key in here if (each := self._gradient_of(key)) is not None))
        if known is not None and _carries(known):
            self._place(known)

    def _place(self, known: StepPlan) -> None:
        """Give gradients that are away the windows of the plan, and bring back those that lie there in the plan."""
        carried = self._carried(known)
        for key, j in self._own(known).items():
            entry = self._away.entries.get(key)
            if entry is not None and key in carried:
                entry.n = carried[key]
                self._away.of_window[entry.n] = entry
            elif entry is not None and j in known.schedule.lasting:
                with self._conductor.aside():
                    self._away.arrive(key)

    def _found_of(self, key: Hashable) -> Found | None:
        parameter = self._around.of(key)
        return None if parameter is None else self._around.found(parameter)

    def _gradient_of(self, key: Hashable) -> torch.Tensor | None:
        parameter = self._around.of(key)
        return None if parameter is None else GRAD.__get__(parameter)

    def _begins(self, parameter: nn.Parameter) -> None:
        recorder = self._conductor.recorder()
        if recorder is not None:
            recorder.part_begins()
        self.lent.clear()  # the step goes on: they leave as planned
        with self._conductor.aside():
            self._tick(ends=False)
            self._away.arrive(id(parameter))
            self._away.changed(id(parameter))

    def _ends(self, parameter: nn.Parameter, found: Found | None) -> None:
        known, recorder = self._conductor.known(), self._conductor.recorder()
        if found is None or (known is not None and recorder is None and not known.schedule.gradients):
            return  # this one came back, or the hooks are there for gradients of others
        if found.held and (known is None or not self._is_next(known, found)):
            self._stay[id(parameter)] = weakref.ref(parameter)
            return
        self._of_step.add(id(parameter))
        self._order.append((weakref.ref(parameter), (found.size_bytes, dtype_name(found.dtype))))
        self._ended.discard(id(parameter))
        self._away.changed(id(parameter))
        if recorder is not None:
            recorder.part_ends([(found.storage, found.dtype)], "gradient")
        with self._conductor.aside():
            if known is None:
                with suppress(TierFull):  # a plan may not need to move it at all
                    self._away.leave(id(parameter), found, NONE, None)
                self._executor.settle()
            else:
                self._follow(known, parameter, found)
        self._written += 1

    def _slot(self, known: StepPlan) -> StateSlot | None:
        slots = known.schedule.gradients
        return slots[self._written] if self._written < len(slots) else None

    def _is_next(self, known: StepPlan, found: Found) -> bool:
        """Whether a gradient is like the one that the plan expects now. Gradients that stay are in no plan."""
        slot = self._slot(known)
        return slot is not None and (slot.size_bytes, slot.dtype) == (found.size_bytes, dtype_name(found.dtype))

    def _follow(self, known: StepPlan, parameter: nn.Parameter, found: Found) -> None:
        """Carry out the plan for a gradient that has just been written."""
        slot = self._slot(known)
        if slot is not None and not self._is_next(known, found):
            what = f"the gradient that backward writes as number {self._written} is not the one its plan expects"
            self._conductor.surprised_by(what)
            return
        if slot is not None and slot.n is not None:
            if found.held:
                self._tell(f"of {format_bytes(found.size_bytes)} stays on the device, as something refers to it")
            else:
                self._away.leave(id(parameter), found, slot.n, known)
        self._tick(ends=True)

    def _tick(self, *, ends: bool) -> None:
        known = self._conductor.known()
        if known is not None and known.schedule.gradients:
            self._conductor.act(known.schedule.on_gradient.get((self._written, ends)))

    def _asked(self, parameter: nn.Parameter) -> None:
        """Bring a gradient back, as some code is about to read it."""
        if self._zeroing.on:
            return
        gradient = GRAD.__get__(parameter)
        if gradient is None:
            return
        known, is_later = self._conductor.known(), self._is_later(parameter)
        if is_later:
            self._stay_later[id(parameter)] = weakref.ref(parameter)
        if id(parameter) not in self._away.entries:
            return
        if not is_later and self.hands_out is not None and self.hands_out():
            if is_for_torch():
                self.handed.add(id(parameter))
                return
            del gradient  # it would count as the user's
            if self.lent.lend(id(parameter)):
                return
            gradient = GRAD.__get__(parameter)
        with self._conductor.aside():
            self._away.arrive(id(parameter))
        if is_later:
            self._note_later()
        elif known is None:
            self._stays(parameter, gradient)
        else:
            self._tell("was brought back early, as something asked for it between backward and the optimizer's step")

    def _is_later(self, parameter: nn.Parameter) -> bool:
        """Whether a gradient is asked for after its part of the optimizer's step, or in a step of another optimizer."""
        if id(parameter) in self._ended:
            return True
        is_away = id(parameter) in self._away.entries and not self._in_part
        of_another = self._is_over or id(parameter) not in self._of_step
        return self._conductor.known() is not None and is_away and of_another

    def _stays(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        """Let a gradient of an observed step stay from now on, in plans too."""
        self._stay[id(parameter)] = weakref.ref(parameter)
        self._of_step.discard(id(parameter))
        self._order = [each for each in self._order if each[0]() is not parameter]
        recorder, storage = self._conductor.recorder(), storage_of(gradient)
        if recorder is not None and storage is not None:
            recorder.asked(storage)

    def _replaced(self, parameter: nn.Parameter) -> None:
        """Let the gradients of a parameter stay that code replaces between backward and the optimizer's step."""
        gradient = GRAD.__get__(parameter)
        if gradient is None or id(parameter) not in self._of_step or id(parameter) in self._ended:
            return
        if self._conductor.known() is None:
            self._stays(parameter, gradient)

    def _note_later(self) -> None:
        """Warn once gradients are asked for after two steps: that of one may be a look at the last."""
        self._asked_later.add(self._steps)
        if len(self._asked_later) > 1:
            self._tell("was brought back, as something asked for it after the optimizer's step")

    def part_begins(self, optimizer: torch.optim.Optimizer, portion: Portion) -> None:
        """Bring back the gradients that a part of an optimizer's step uses."""
        self._clean.clear()
        self._in_part = True
        counts = portion.ours and getattr(optimizer, "grad_scale", None) is None
        self.lent.leave_again(but=[id(each) for each in portion.parameters()])
        for parameter in portion.parameters():
            key = id(parameter)
            self._ended.discard(key)
            if key in self._away.entries:
                with self._conductor.aside():
                    self._away.arrive(key, keeps=counts)
                if counts and (gradient := GRAD.__get__(parameter)) is not None:
                    self._clean[key] = version_of(gradient)

    def of_part(self, portion: Portion) -> OfPart:
        """Return the gradients of a part that has ended, of those that this step's backward has written."""
        self._in_part = False
        written = (each for each in portion.parameters() if id(each) in self._of_step)
        pairs = ((each, self._around.found(each)) for each in written if isinstance(each, nn.Parameter))
        return [(parameter, found) for parameter, found in pairs if found is not None]

    def note(self, gradients: OfPart) -> None:
        """Record the gradients that nothing reads after a part."""
        recorder = self._conductor.recorder()
        if recorder is None:
            return
        for parameter, found in gradients:
            if found.held:
                self._stay_later[id(parameter)] = weakref.ref(parameter)
        free = [found for parameter, found in gradients if not _is_in(self._stay_later, parameter)]
        if free:
            recorder.released([(each.storage, each.dtype) for each in free])

    def part_ends(self, gradients: OfPart, part: int, known: StepPlan | None) -> bool:
        """Let the gradients of a part leave. Returns False if they are not those that the plan expects."""
        if known is None:
            with suppress(TierFull):  # a plan may not need to move it at all
                for parameter, found in gradients:
                    stays = found.held or _is_in(self._stay_later, parameter)
                    self._released(parameter, found, None if stays else NONE, None)
            self._executor.settle()
            return True
        slots = known.schedule.released[part : part + 1]
        expected = [(slot.size_bytes, slot.dtype) for slot in slots[0]] if slots else []
        later = [each for each in gradients if not _is_in(self._stay_later, each[0])]
        found = next((each for each in (gradients, later) if _kinds(each) == expected), None)
        if slots and found is None:
            return False
        pairs = zip(found or (), slots[0] if slots else (), strict=True)
        for (parameter, each), slot in sorted(pairs, key=lambda pair: NONE if pair[1].n is None else pair[1].n):
            self._released(parameter, each, slot.n, known)
        return True

    def _released(self, parameter: nn.Parameter, found: Found, n: int | None, known: StepPlan | None) -> None:
        """Let a gradient leave after its part, in a window of the plan; None if it stays."""
        key = id(parameter)
        self._ended.add(key)
        if n is None or found.held or self._clean.get(key) != version_of(GRAD.__get__(parameter)):
            self._away.changed(key)
        if found.held and n is not None:
            self._tell(f"of {format_bytes(found.size_bytes)} stays on the device, as something refers to it")
        elif n is not None:
            self._away.leave(key, found, n, known)

    def entry_of(self, n: int) -> StateEntry | None:
        """Return the gradient that is away in a window, if it is."""
        return self._away.of_window.get(n)

    def bring_back(self, of: Iterable[torch.Tensor] | None = None) -> None:
        """Bring gradients back to the device: those of some parameters, or all."""
        if self._away.entries:
            with self._conductor.aside():
                if of is None:
                    self._away.bring_back()
                for parameter in of or ():
                    self._away.arrive(id(parameter))

    def close(self, most_bytes: int | None = None) -> Exception | None:
        """Bring every gradient back, and remove the hooks. Returns the first error if some bytes are lost.

        Args:
            most_bytes: see `AwayParts.close`. Gradients that an optimizer has used become None there.
        """
        left: Left = {}
        parameters = {key: self._around.of(key) for key in self._away.entries}
        used = self._ended.issuperset(self._away.entries)
        self.lent.clear()
        problem = self._away.close(left, most_bytes if used else None)
        self._around.close()
        self._zeroing.close()
        if not used:
            return problem
        if left:
            for parameter in (each for key in left if (each := parameters[key]) is not None):
                GRAD.__set__(parameter, None)
            warn(
                f"elbowroom: {len(left)} gradients of the last step are None now, as the device has no room for them. "
                "The optimizer had used them"
            )
        return problem if isinstance(problem, TierError) else None

    def _tell(self, what: str) -> None:
        warn_once(
            self._once,
            "gradient",
            f"elbowroom: a gradient {what}: the step may need more than its budget. If that happens in every step, "
            "leave 'gradient' out, by allow=('swap', 'recompute', 'state')",
        )


def _is_in(remembered: Remembered, parameter: torch.Tensor) -> bool:
    ref = remembered.get(id(parameter))
    return ref is not None and ref() is parameter


def _carries(known: StepPlan) -> bool:
    """Tell whether a plan expects gradients of the step before to be away when a step begins."""
    return _some_carried(known, (*known.schedule.released, known.schedule.gradients))


def _some_carried(known: StepPlan, groups: Iterable[Iterable[StateSlot]]) -> bool:
    return any(slot.n in known.schedule.carried for slots in groups for slot in slots)


def _kinds(gradients: OfPart) -> list[tuple[int, str]]:
    return [(found.size_bytes, dtype_name(found.dtype)) for _, found in gradients]
