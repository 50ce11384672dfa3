"""Effects: the storages that an op reads and writes, by its declaration and a table of what that leaves out.

A view reads and writes nothing: it makes another tensor on the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from elbowroom.torch_compat.core import schema_of
from elbowroom.torch_compat.operators import UNFILLED, reads_bytes

UNDECLARED: dict[str, tuple[int, ...]] = {
    # Running mean and variance, if argument 5 (training) is true: native_functions.yaml does not mark them.
    "aten::cudnn_batch_norm": (3, 4),
    "aten::native_batch_norm": (3, 4),
    "aten::miopen_batch_norm": (3, 4),
}
TRAINING = 5
"""Position of `training` in each of them."""


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of one overload.

    Attributes:
        views: whether its results are other tensors on its argument's storage, and nothing is computed.
        positions: positions of the arguments that it changes.
        names: names of the keyword arguments that it changes.
        in_training: further positions, which change in training only.
    """

    views: bool
    positions: tuple[int, ...]
    names: tuple[str, ...]
    in_training: tuple[int, ...]


@cache
def takes_tensors(func: Any) -> tuple[bool, ...]:
    """Return for each argument of an overload whether it is a tensor."""
    return tuple(isinstance(each.type, torch.TensorType) for each in schema_of(func).arguments)


@cache
def effects_of(func: Any) -> Effects:
    """The effects of an overload such as aten.add_.Tensor."""
    schema = schema_of(func)
    written = [
        (i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    ]
    returned = schema.returns
    return Effects(
        views=bool(returned) and all(r.alias_info is not None and not r.alias_info.is_write for r in returned),
        positions=tuple(i for i, _ in written),
        names=tuple(name for _, name in written),
        in_training=UNDECLARED.get(schema.name, ()),
    )


def changed(effects: Effects, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Tensors among the arguments that an op changes."""
    positions = effects.positions
    if effects.in_training and len(args) > TRAINING and args[TRAINING]:
        positions += effects.in_training
    for given in (*(args[i] for i in positions if i < len(args)), *(kwargs.get(name) for name in effects.names)):
        if isinstance(given, torch.Tensor):
            yield given
        elif isinstance(given, list | tuple):
            yield from (each for each in given if isinstance(each, torch.Tensor))


def described(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments by position without their bytes: the shapes of tensors, flags, numbers, and lists of these."""
    return tuple(_described(each) for each in (*args, *kwargs.values()))


def _described(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return tuple(argument.size())
    if isinstance(argument, list | tuple):
        return [_described(each) for each in argument]
    return argument if isinstance(argument, bool | int | float) else None


def moved_bytes(
    func: Any, name: str, given: list[Any], results: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> int:
    """Count the bytes that an op reads and writes; a changed tensor counts twice, even if the op returns nothing."""
    if name.removeprefix("aten.") in UNFILLED:
        return 0
    written = results or list(changed(effects_of(func), args, kwargs))
    return sum(map(bytes_of, written)) + (sum(map(bytes_of, given)) if reads_bytes(name) else 0)


def bytes_of(tensor: torch.Tensor) -> int:
    """Count the bytes that a tensor touches: at most its storage's, if it is expanded; 0 for a sparse one."""
    if tensor.layout is not torch.strided:
        return 0
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
