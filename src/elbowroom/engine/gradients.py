"""Gradients on lower tiers: each leaves once backward has written it, and is back before its next use.

Note: [Gradients away]
A gradient is used next by another accumulation, or by the part of an optimizer's step that updates its parameter. Both
have it brought back first: at the planned tick, or at the latest just before. Any other code gets it from
`parameter.grad`, which brings it back too (gradient_hooks.py). An observed step remembers such a gradient: it stays on
the device from then on. So does one that shares its storage, or that something refers to when it has just been written.
Bits cannot change: what comes back is what left. Under torch.distributed gradients stay, as its reducers read them in
C++.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import final

import torch
from torch import nn

from elbowroom.engine.away_parts import AwayParts
from elbowroom.engine.conductor import Conductor, StepPlan
from elbowroom.engine.entries import StateEntry
from elbowroom.engine.executor import Executor
from elbowroom.engine.gradient_hooks import GRAD, Accumulating
from elbowroom.engine.optimizer_parts import Found, Portion
from elbowroom.engine.storages import dtype_name, reachable_parameters, storage_of
from elbowroom.errors import TierFull
from elbowroom.notices import Once, warn_once
from elbowroom.step.schedule import StateSlot
from elbowroom.torch_compat.core import is_distributed
from elbowroom.units import NONE, format_bytes


@final
class Gradients:
    """Gradients of all parameters, on the device and away.

    Args:
        executor: moves their bytes.
        conductor: knows the plan of the step.
        min_size_bytes: smaller gradients stay on the device.

    Attributes:
        wanted: whether gradients leave in steps that are observed, so that plans may move them.
    """

    def __init__(self, executor: Executor, conductor: Conductor, min_size_bytes: int) -> None:
        self.wanted = False
        self._executor = executor
        self._conductor = conductor
        self._around = Accumulating(self._begins, self._ends, self._asked, executor.device, min_size_bytes)
        self._away = AwayParts(executor)
        self._stay: dict[int, weakref.ref[torch.Tensor]] = {}
        self._written = 0
        self._once = Once()

    def begin_step(self, known: StepPlan | None) -> None:
        """Begin a step of the training."""
        self.bring_back()
        self._written = 0
        moved = known is not None and any(slot.n is not None for slot in known.schedule.gradients)
        recorded = self.wanted and (known is None or self._conductor.recorder() is not None)
        if not (moved or recorded) or is_distributed():
            self._around.install(())
        elif recorded or not self._around.installed:
            self._around.install(p for p in reachable_parameters() if not self._stays(p))

    def _stays(self, parameter: torch.Tensor) -> bool:
        ref = self._stay.get(id(parameter))
        return ref is not None and ref() is parameter

    def _begins(self, parameter: nn.Parameter) -> None:
        recorder = self._conductor.recorder()
        if recorder is not None:
            recorder.part_begins()
        with self._conductor.aside():
            self._tick(ends=False)
            self._away.arrive(id(parameter))

    def _ends(self, parameter: nn.Parameter, found: Found | None) -> None:
        known, recorder = self._conductor.known(), self._conductor.recorder()
        if found is None:
            return
        if found.held and (known is None or not self._is_next(known, found)):
            self._stay[id(parameter)] = weakref.ref(parameter)
            return
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
        if known is not None:
            self._conductor.act(known.schedule.on_gradient.get((self._written, ends)))

    def _asked(self, parameter: nn.Parameter) -> None:
        """Bring a gradient back, as some code is about to read it."""
        if id(parameter) not in self._away.entries:
            return
        known, recorder = self._conductor.known(), self._conductor.recorder()
        with self._conductor.aside():
            self._away.arrive(id(parameter))
        storage = storage_of(GRAD.__get__(parameter))
        if known is None:
            self._stay[id(parameter)] = weakref.ref(parameter)
            if recorder is not None and storage is not None:
                recorder.asked(storage)
        else:
            self._tell("was brought back early, as something asked for it between backward and the optimizer's step")

    def part_begins(self, portion: Portion) -> None:
        """Bring back the gradients that a part of an optimizer's step uses."""
        if self._away.entries:
            with self._conductor.aside():
                for parameter in portion.parameters():
                    self._away.arrive(id(parameter))

    def entry_of(self, n: int) -> StateEntry | None:
        """Return the gradient that is away in a window, if it is."""
        return self._away.of_window.get(n)

    def bring_back(self) -> None:
        """Bring all gradients back to the device."""
        if self._away.entries:
            with self._conductor.aside():
                self._away.bring_back()

    def close(self) -> Exception | None:
        """Bring every gradient back, and remove the hooks. Returns the first error if some bytes are lost."""
        self._around.close()
        return self._away.close()

    def _tell(self, what: str) -> None:
        warn_once(
            self._once,
            "gradient",
            f"elbowroom: a gradient {what}: the step may need more than its budget. If that happens in every step, "
            "leave 'gradient' out, by allow=('swap', 'recompute', 'state')",
        )
