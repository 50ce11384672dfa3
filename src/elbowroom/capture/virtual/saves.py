"""Saves: what autograd saves on a virtual device, with reads back and the time from which only autograd holds it.

A save of a storage lasts as long as a graph has a saved tensor on it. A batch that two graphs save one after the other,
as micro-batches do with a mask, is saved twice, as in a run.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch

from elbowroom.capture.drafts import SaveDraft
from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.tensor import alias, is_virtual
from elbowroom.capture.virtual.wrappers import is_wrapper
from elbowroom.engine.tensor_subclasses import taken_apart
from elbowroom.torch_compat.core import storage_holders, top_hooks, without_top_hooks


@final
class Saves:
    """Saves noted through torch's hooks. Autograd gets an alias of each tensor, so its holders can be distinguished.

    Args:
        ledger: where saves are noted.
        ram: whether the device is RAM: tensors with bytes are on it too.
    """

    def __init__(self, ledger: Ledger, *, ram: bool) -> None:
        self._ledger = ledger
        self._ram = ram
        self._by_storage: dict[int, SaveDraft] = {}
        self._packed: dict[int, list[weakref.ref[torch.Tensor]]] = {}
        self._watched: set[int] = set()

    def hooks(self) -> AbstractContextManager[Any]:
        """Return a context in which saves are noted."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def changes(self) -> list[tuple[Any, str, Any]]:
        """Return the patches of Python: they hide these hooks from torch.func, which refuses hooks while it works.

        Its saves are not noted. Hooks that the script set are still refused.
        """
        disabled = torch.autograd.graph.disable_saved_tensors_hooks

        @contextmanager
        def disable(error_message: str) -> Iterator[None]:
            hooks = top_hooks()
            ours = hooks is not None and hooks[0] == self._pack
            with without_top_hooks() if ours else nullcontext(), disabled(error_message):
                yield

        return [(torch.autograd.graph, "disable_saved_tensors_hooks", disable)]

    def _pack(self, tensor: torch.Tensor) -> Any:
        if not (self._ram or is_virtual(tensor)) or (tensor.is_leaf and tensor.requires_grad):
            return tensor
        if self._ram:
            self._ledger.met((tensor,))
        apart = taken_apart(tensor) if is_wrapper(tensor) else None
        if apart is not None:
            parts, rebuild = apart
            return rebuild, {name: self._pack_part(part) for name, part in parts.items()}
        number = self._ledger.number_of(tensor)
        if number is None or self._ledger.storages[number].category in ("parameter", "buffer"):
            return tensor
        line = self._ledger.storages[number]
        if line.category == "temporary":
            line.category = "activation"
        if all(reference() is None for reference in self._packed.get(number, ())):
            self._begin(number)
        packed = alias(tensor) if is_virtual(tensor) else tensor.detach()
        self._packed[number].append(weakref.ref(packed))
        return packed

    def _begin(self, number: int) -> None:
        """Begin a save of a storage of which no graph has a saved tensor."""
        self._by_storage[number] = saved = SaveDraft(number, len(self._ledger.ops))
        self._ledger.saves.append(saved)
        self._packed[number] = []
        self._watched.add(number)

    def _pack_part(self, part: torch.Tensor) -> Any:
        """Pack a tensor inside another. Offsets stay the same object: torch identifies jagged sizes by them."""
        return self._pack(part) if part.is_floating_point() or part.is_complex() else part

    def _unpack(self, packed: Any) -> torch.Tensor:
        if type(packed) is tuple:
            rebuild, parts = packed
            return rebuild({name: self._unpack(part) for name, part in parts.items()})
        number = self._ledger.number_of(packed) if self._ram or is_virtual(packed) else None
        saved = None if number is None else self._by_storage.get(number)
        if saved is not None and (not saved.read_at or saved.read_at[-1] != len(self._ledger.ops)):
            saved.read_at.append(len(self._ledger.ops))
        return packed

    def step_ends(self) -> None:
        """Forget what was read back: a storage that stays, such as a batch, is saved anew in the next step."""
        for number, saved in list(self._by_storage.items()):
            if saved.read_at:
                del self._by_storage[number], self._packed[number]
                self._watched.discard(number)

    def tick(self) -> None:
        """Find before an op the storages that only autograd holds by now."""
        for number in list(self._watched):
            held = [packed for reference in self._packed[number] if (packed := reference()) is not None]
            if not held:
                self._watched.discard(number)
            elif storage_holders(held[0]) <= len(held):
                self._by_storage[number].idle_from = len(self._ledger.ops)
                self._watched.discard(number)
            del held
