"""State dicts of optimizers whose states are away: they hold those on the host.

Note: [State dicts]
A checkpoint would otherwise bring all states back, which a device may have no room for. And they would stay there for
as long as the state dict lives. So a state that is away moves to host memory that the state dict has too. While
somebody has that memory, the state leaves to it. So the state dict goes on to show the states as they are, as any state
dict does. What is on the device, or on the disk, is given as before.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping
from typing import Any

import torch

from elbowroom.engine.storages import storage_of
from elbowroom.torch_compat.core import storage_key

Packed = dict[str, Any]
Packing = Callable[[torch.optim.Optimizer, Callable[[torch.optim.Optimizer], Packed]], Packed]
"""Makes a state dict, given the optimizer and torch's own function."""
Lent = Mapping[Hashable, torch.UntypedStorage]
"""Storage key -> host memory with its bytes."""


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether hooks of the user may look at the states while a state dict is made, or change it."""
    hooks = (vars(optimizer).get(f"_optimizer_state_dict_{when}_hooks") for when in ("pre", "post"))
    return any(map(bool, hooks))


def with_lent(packed: Packed, lent: Lent) -> Packed:
    """Return a state dict with tensors on host memory in place of those whose storages are away.

    Args:
        packed: what `Optimizer.state_dict` returns.
        lent: the host memory of what is away.
    """
    states: dict[Any, Any] = packed["state"]
    return {**packed, "state": {index: _here(values, lent) for index, values in states.items()}}


def put_lent(states: Any, lent: Lent) -> None:
    """Put tensors on host memory in an optimizer's own mapping, in place of those whose storages are away."""
    for values in states.values():
        if isinstance(values, dict):
            values.update(_here(values, lent))  # pyright: ignore[reportUnknownMemberType]


def without(states: Any, gone: Container[Hashable]) -> None:
    """Remove states from an optimizer's own mapping whose storages, named by their keys, have no bytes any more."""
    for values in states.values():
        if isinstance(values, dict):
            for name in [name for name, value in values.items() if _key_of(value) in gone]:  # pyright: ignore[reportUnknownVariableType]
                del values[name]


def _key_of(value: Any) -> Hashable:
    """Return the key of a tensor's storage; None for anything else."""
    storage = storage_of(value) if type(value) is torch.Tensor else None
    return None if storage is None else storage_key(storage)


def _here(values: Any, lent: Lent) -> Any:
    """Return the states of a parameter; the mapping itself if all are on the device."""
    if not isinstance(values, dict):
        return values
    found = {name: _on_host(value, lent) for name, value in values.items()}  # pyright: ignore[reportUnknownVariableType]
    same = all(found[name] is value for name, value in values.items())  # pyright: ignore[reportUnknownVariableType]
    return values if same else found  # pyright: ignore[reportUnknownVariableType]


def _on_host(value: Any, lent: Lent) -> Any:
    memory = lent.get(_key_of(value))
    if memory is None:
        return value
    found: Any = torch.empty(0, dtype=value.dtype)
    return found.set_(memory, value.storage_offset(), value.size(), value.stride())
