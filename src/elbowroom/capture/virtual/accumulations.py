"""Accumulations on a virtual device: where backward writes the gradient of a parameter.

They are parts of a trace as in a run (Note: [Gradients away] in engine/gradients.py). Some gradients stay: those that
something else refers to once they are written, and those that Python reads before their next use. A part of an
optimizer's step names its gradients, unless Python reads them later: see Note: [Gradients after their part] there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, final

import torch
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]

from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.tensor import gradient_of
from elbowroom.capture.virtual.torch_cuda.attributes import Asked
from elbowroom.engine.handed_out import is_for_torch
from elbowroom.engine.zeroing import Zeroing
from elbowroom.torch_compat.core import storage_holders


@final
class Accumulations:
    """Watch that notes accumulations in a ledger, from `watch` until `close`.

    Args:
        ledger: ledger of the device.
        least_bytes: smaller gradients never leave.
    """

    def __init__(self, ledger: Ledger, least_bytes: int) -> None:
        self._ledger = ledger
        self._least_bytes = least_bytes
        self._handles: dict[int, tuple[weakref.ref[torch.Tensor], list[Any]]] = {}
        self._away: dict[int, int] = {}
        self._of_step: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._stay: set[int] = set()
        self._stay_later: set[int] = set()
        self._zeroing = Zeroing()

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Watch the accumulations of these parameters from now on."""
        Asked.gradient = self._asked
        self._zeroing.open()
        for parameter in parameters:
            known = self._handles.get(id(parameter))
            if isinstance(parameter, UninitializedTensorMixin):  # a lazy module's; it is watched from its next call on
                continue
            if parameter.requires_grad and (known is None or known[0]() is not parameter):
                handles = [parameter.register_hook(self._arrives(parameter))]
                handles.append(parameter.register_post_accumulate_grad_hook(self._written))
                self._handles[id(parameter)] = weakref.ref(parameter), handles

    def used(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note that a part of an optimizer's step uses the gradients of these parameters."""
        for parameter in parameters:
            self._away.pop(id(parameter), None)
            self._ended.pop(id(parameter), None)

    def part_ends(self, parameters: Iterable[torch.Tensor]) -> tuple[int, ...]:
        """Note that a part of an optimizer's step ends. Returns its gradients that nothing reads after it."""
        numbers = {id(each): self._of_step.pop(id(each)) for each in parameters if id(each) in self._of_step}
        self._ended |= numbers
        return tuple(number for key, number in numbers.items() if key not in self._stay_later)

    def step_ends(self) -> None:
        """Note that a step ends."""
        self._away.clear()

    def close(self) -> None:
        """Leave the parameters as they were."""
        Asked.gradient = None
        self._zeroing.close()
        for _, handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()

    def _arrives(self, parameter: torch.Tensor) -> Any:
        key = id(parameter)

        def before(_: torch.Tensor) -> None:
            self._away.pop(key, None)
            self._ledger.part_begins()

        return before

    def _written(self, parameter: torch.Tensor) -> None:
        gradient = gradient_of(parameter)
        number = None if gradient is None else self._ledger.number_of(gradient)
        if gradient is None or number is None or id(parameter) in self._stay:
            return
        if storage_holders(gradient) > 1:
            self._stay.add(id(parameter))
        elif self._ledger.storages[number].size_bytes >= self._least_bytes:
            self._ledger.classify("gradient", [gradient])
            self._ledger.part_ends([gradient], self._least_bytes, "accumulation")
            self._away[id(parameter)] = self._of_step[id(parameter)] = number
            self._ended.pop(id(parameter), None)

    def _asked(self, parameter: torch.Tensor) -> None:
        """Note that Python is about to read a gradient."""
        if self._zeroing.on or (id(parameter) in self._away and is_for_torch()):
            return  # torch's clipping gets it in parts: step/handed_gradients.py
        number, later = self._away.pop(id(parameter), None), self._ended.pop(id(parameter), None)
        if number is not None:
            self._stay.add(id(parameter))
            self._of_step.pop(id(parameter), None)
            self._ledger.drop_parts_of(number)
        if later is not None and gradient_of(parameter) is not None:
            self._stay_later.add(id(parameter))
            self._ledger.is_read_later(later)
