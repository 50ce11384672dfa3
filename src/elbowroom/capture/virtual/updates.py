"""Updates: trainings without torch.optim, in which a step ends where parameters changed after a backward.

The trained tensors are the leaves that a backward reached. They change in one of three ways. An op changes the leaf or
an alias of it in place (`p -= lr * p.grad`, `p.data.add_`, lists). The leaf gets another storage (`p.data = ...`). Or
new leaves of the same shapes take their places (`w = (w - lr * w.grad).detach().requires_grad_()`). The step is over at
the next forward or backward.

If an optimizer of torch steps, its steps are the training's. Other changes of leaves, such as clipped weights, end no
step then. A script may change leaves by hand before it calls an optimizer for the first time, as adversarial training
does. So the device waits longer if there is an optimizer, and counts changes by hand only if it never steps. What they
would make of ops and storages is kept until then: FSDP writes its flat parameters anew for each micro-batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch

from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.tensor import gradient_of, is_virtual
from elbowroom.torch_compat.core import around_backward, in_backward, leaf_of, leaves_below, unwrapped
from elbowroom.trace import Category

KEPT = ("parameter", "gradient", "buffer", "input")
"""Categories that a storage keeps even if it changes."""


@final
class ReachedLeaf:
    """A leaf that a backward reached: the tensor, and the storage that it was on."""

    __slots__ = ("number", "reference", "shape")

    def __init__(self, tensor: torch.Tensor, number: int) -> None:
        self.reference = weakref.ref(tensor)
        self.number = number
        self.shape = tuple(tensor.shape)


@final
class BackwardUpdates:
    """Watch of the leaves that notes where steps end.

    Args:
        ledger: ledger of the device.

    Attributes:
        ends: number of ops up to the end of each step.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ends: list[int] = []
        self._ledger = ledger
        self._leaves: dict[int, ReachedLeaf] = {}
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._backward_end = 0
        self._changed_at: int | None = None
        self._found: list[tuple[int, int, frozenset[int]]] = []
        self._off = False
        self._before: dict[int, Category] = {}

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.ends)

    @property
    def owned(self) -> bool:
        """Whether there is an optimizer of torch, with parameters on the device, that may be about to step."""
        parameters = (each for one in self._optimizers for group in one.param_groups for each in group["params"])
        return any(is_virtual(each) and each.is_cuda for each in parameters)

    def changes(self, on_backward: Callable[[], None]) -> list[tuple[Any, str, Any]]:
        """Return the patches of Python: of the begin of backward, and of the making of optimizers.

        Args:
            on_backward: called before each outermost backward, once the step before it is noted.
        """
        made = torch.optim.Optimizer.__init__

        def before(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
            if not in_backward():
                self._backward_begins(outputs, inputs)
                on_backward()

        def after() -> None:
            if not in_backward() and not self._off:
                self._backward_end = len(self._ledger.ops)
                self._classify()

        def initialise(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            self._optimizers.add(optimizer)

        return [*around_backward(before, after), (torch.optim.Optimizer, "__init__", initialise)]

    def optimizer_stepped(self) -> bool:
        """Note a step of an optimizer of torch: the training's steps are those of its optimizers.

        Returns:
            Whether it is the first one. Leaves that are of no optimizer are not taken for parameters from then on.
        """
        first, self._off = not self._off, True
        if first:
            self._take_back()
        self.ends.clear()
        self._found.clear()
        self._leaves.clear()
        self._changed_at = None
        return first

    def _take_back(self) -> None:
        """Give leaves that no optimizer has their category of before: a stage of a pipeline receives such leaves."""
        trained = [each for one in self._optimizers for group in one.param_groups for each in group["params"]]
        for number in self._before.keys() - set(self._ledger.numbers_of(trained)):
            self._ledger.storages[number].category = self._before[number]
        self._before.clear()

    def close(self) -> None:
        """Give the ops and storages of the steps that were found their phase and category."""
        self.settle()
        for begin, end, live in self._found:
            written = set[int]()
            for index in range(begin, end):
                line = self._ledger.ops[index]
                self._ledger.ops[index] = line._replace(phase="optimizer")
                written.update(line.writes)
            for number in written & live:
                if self._ledger.storages[number].category not in KEPT:
                    self._ledger.storages[number].category = "optimizer_state"

    def written(self, numbers: Iterable[int]) -> None:
        """Note that an op changed these storages."""
        if self._leaves and any(number in self._leaves for number in numbers):
            self._changed_at = len(self._ledger.ops)

    def settle(self) -> None:
        """End the step before a forward or a backward that begins, if leaves have changed."""
        moved = [n for leaf in self._leaves.values() if (n := self._now(leaf)) not in (None, leaf.number)]
        if moved:
            self._changed_at = max(self._changed_at or 0, self._made_at(moved))
        if self._changed_at is not None:
            self._end(self._changed_at)

    def _backward_begins(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        if self._off:
            return
        self.settle()
        found: dict[int, ReachedLeaf] = {}
        asked = [leaf for each in inputs if (leaf := leaf_of(each)) is not None]
        reached = asked if inputs else leaves_below(outputs)
        for tensor in map(unwrapped, reached):
            number = self._ledger.number_of(tensor) if is_virtual(tensor) and tensor.is_leaf else None
            if number is not None:
                found[number] = ReachedLeaf(tensor, number)
        if _replaced(self._leaves, found):
            self._end(self._made_at(found))
        self._leaves.update(found)

    def _now(self, leaf: ReachedLeaf) -> int | None:
        tensor = leaf.reference()
        return None if tensor is None else self._ledger.number_of(tensor)

    def _made_at(self, numbers: Iterable[int]) -> int:
        """Return the number of ops by the time the last of these storages was made."""
        wanted = set(numbers)
        events = reversed(self._ledger.events)
        return next((op + 1 for op, number, size_bytes in events if number in wanted and size_bytes > 0), 0)

    def _end(self, position: int) -> None:
        if position > (self.ends[-1] if self.ends else 0):
            self.ends.append(position)
            self._found.append((self._backward_end, position, frozenset(self._ledger.live())))
        self._leaves.clear()
        self._changed_at = None

    def _classify(self) -> None:
        """Set the categories of parameters and gradients."""
        for number in self._leaves:
            self._before.setdefault(number, self._ledger.storages[number].category)
        tensors = [tensor for leaf in self._leaves.values() if (tensor := leaf.reference()) is not None]
        self._ledger.classify("parameter", tensors)
        self._ledger.classify("gradient", (each for tensor in tensors if (each := gradient_of(tensor)) is not None))


def _replaced(old: dict[int, ReachedLeaf], new: dict[int, ReachedLeaf]) -> bool:
    """Return whether new leaves of the same shapes have replaced all old ones."""
    if not old or not new or old.keys() & new.keys():
        return False
    return sorted(leaf.shape for leaf in old.values()) == sorted(leaf.shape for leaf in new.values())
