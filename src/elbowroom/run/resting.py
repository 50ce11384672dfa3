"""Rest: a training that is known to fit runs as it would without elbowroom, with two short looks at each step.

Note: [Rest]
After `BEFORE_REST` steps in a row without hooks (Note: [Steps without hooks] in hook_sampling.py), all that was put
into torch for saved tensors and optimizer states is taken out. What stays is a hook for the first call of a module in
each step, and one at its end. The first compares what is known before a step: the module, its mode, shapes and types of
its arguments, autocast. The second counts the nodes of autograd's graph. At one of `LOOKED_AT` steps, and at the last,
it looks at memory too. Whatever differs ends the rest before, or right after, the step that shows it. Then the next one
is checked. A rest ends by itself after `Seen.most_unchecked` steps, for one step that is checked. If that was alike,
the next rest is twice as long.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Hashable
from typing import Any, final

import torch

from elbowroom.capture.recording.module_hooks import ModuleHooks
from elbowroom.engine.optimizer_states import OptimizerStates
from elbowroom.engine.residence import Residence, SoFar
from elbowroom.engine.saved_tensors import Hooks
from elbowroom.run.hook_sampling import no_module
from elbowroom.run.step_kinds import StepKind, autocast_settings, details, signature
from elbowroom.torch_compat.core import next_node_number

BEFORE_REST = 2
"""Steps without hooks in a row, of one kind, after which a training rests."""
LOOKED_AT = 16
"""Steps of a rest for each look at memory, which takes tens of microseconds."""


@final
class Resting:
    """Lets a training rest, and sees when that has to end.

    Args:
        hooks: the hooks of the run.
        root_hook: its hook for the call that begins a step; out of torch while a step of a rest goes on.
        states: the optimizer states of the run; none is away during a rest.
        residence: knows how many bytes the device was asked for.
        budget_bytes: returns the budget of the device.

    Attributes:
        on: whether the training rests.
        in_step: whether a step goes on in that rest.
        goes_on: whether the rest may go on after the step that has ended.
        excess_bytes: bytes over budget that the last look has shown.
    """

    def __init__(
        self,
        hooks: Hooks,
        root_hook: ModuleHooks,
        states: OptimizerStates,
        residence: Residence,
        budget_bytes: Callable[[], int],
    ) -> None:
        self._hooks, self._root_hook, self._states, self._residence = hooks, root_hook, states, residence
        self._budget_bytes = budget_bytes
        self._root: Callable[[], torch.nn.Module | None] = no_module
        self._key: Hashable = None
        self._kind: StepKind | None = None
        self._quick: Hashable = None
        self._begin_ns = self._node = 0
        self._before: SoFar | None = None
        self._last = SoFar(0, 0)
        self.on = self.in_step = self.goes_on = False
        self.excess_bytes = 0

    def begin(self, kind: StepKind, key: Hashable, root: torch.nn.Module) -> None:
        """Begin a rest, in which all steps should be of this kind, unless hooks of the user prevent it."""
        if not self._hooks.take_out():
            return
        self._states.rest()
        self._kind, self._key, self._root, self._quick = kind, key, weakref.ref(root), None
        self._last = self._residence.so_far(self._budget_bytes())
        self.on, self.in_step, self.excess_bytes = True, False, 0

    def end(self) -> None:
        """End the rest."""
        self.on = self.in_step = False
        self._states.wake()
        self._hooks.put_back()
        self._root_hook.remove()
        self._root_hook.install()

    def meets(self, module: torch.nn.Module, args: Any, keywords: Any) -> bool:
        """Begin a step at the call of its outermost module. False if it is not the expected one."""
        kind = self._kind
        assert kind is not None, "a rest has a kind"
        seen = kind.seen
        quick = _quick(args, keywords) if module is self._root() else None
        if quick is None or (module.training, quick) != self._quick:
            if (signature(module, args, keywords), details(args, keywords)) != (self._key, seen.details):
                return False
            self._quick = (module.training, quick)
        counts = seen.made[1] and not seen.unchecked % LOOKED_AT
        self._before = self._residence.so_far(self._budget_bytes()) if counts else None
        self.in_step = True
        self._root_hook.hide()
        self._node, self._begin_ns = next_node_number(), time.perf_counter_ns()
        return True

    def ends(self) -> int:
        """End a step, as its optimizer has stepped. Returns its time."""
        step_ns = time.perf_counter_ns() - self._begin_ns
        kind = self._kind
        assert kind is not None, "a rest has a kind"
        seen, self.in_step = kind.seen, False
        alike = next_node_number() - self._node == seen.made[0]
        if not seen.unchecked % LOOKED_AT or seen.unchecked + 1 == seen.most_unchecked:
            after = self._residence.so_far(self._budget_bytes())
            if self._before is not None:
                alike = alike and after.asked_bytes - self._before.asked_bytes == seen.made[1]
            self.excess_bytes, self._last = after.excess_since(self._last), after
        seen.unchecked += 1
        kind.ran += 1
        seen.alike = seen.alike if alike else 0
        self.goes_on = alike and not self.excess_bytes and seen.unchecked < seen.most_unchecked
        self._root_hook.show()
        return step_ns


def _quick(args: Any, keywords: Any) -> Hashable:
    """Return what says all about arguments that are plain tensors; None if they are not, or if there are keywords."""
    if keywords or keywords is None:
        return None
    found: list[Hashable] = [autocast_settings()]
    for each in args:
        if type(each) is not torch.Tensor:
            return None
        found += (each.shape, each.dtype, each.requires_grad, each.device)
    return tuple(found)
