"""Saved tensors of subclasses of torch.Tensor: the plain tensors behind them are moved in their place.

Note: [Subclasses]
A tensor that wraps others (DTensor, jagged nested tensors, torch.testing's TwoTensor) has no bytes of its own. The
tensors that its `__tensor_flatten__` names are moved in its place, and `__tensor_unflatten__` puts it together again.
Its ops run below autograd. So its own version counter counts in-place changes; those of the tensors inside do not. An
entry watches that counter too.

A tensor that only adds attributes to bytes of its own, as MONAI's MetaTensor does, is taken without them: autograd
makes a plain tensor of whatever hooks return. Any other subclass passes through, as nothing says what else is in it. A
warning says so once per run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import torch

from elbowroom.torch_compat.core import version_of
from elbowroom.torch_compat.subclasses import bare_of, finish, wraps_others

UNFINISHED = "AsyncCollectiveTensor"
"""Class of a collective's result, whose bytes are still to come. torch waits for them when the tensor is used.

A copy would not wait, so `pack` does. That costs no time: autograd saves a tensor as an op is about to use it.
"""


@final
class Wrapped:
    """Saved tensor of a subclass; the tensors inside were saved in its place.

    Args:
        tensor: the tensor of the subclass.
        parts: what `pack` returned for the tensors inside, by name.
        rebuild: makes the tensor from those, once they are plain tensors again.

    Attributes:
        counter: a tensor that shares the version counter, and does not hold the tensors inside.
        version: value of the counter at the save.
        parts, rebuild: as given.
    """

    __slots__ = ("counter", "parts", "rebuild", "version")

    def __init__(self, tensor: torch.Tensor, parts: dict[str, Any], rebuild: Rebuild) -> None:
        self.counter = bare_of(tensor)
        self.version = version_of(tensor)
        self.parts = parts
        self.rebuild = rebuild


Rebuild = Callable[[Mapping[str, Any]], torch.Tensor]
Apart = tuple[dict[str, torch.Tensor], Rebuild]
"""The tensors inside by name, and the function that rebuilds the whole from them."""


def taken_apart(tensor: torch.Tensor) -> Apart | None:
    """Return the tensors that a tensor of a subclass wraps, plain or of a subclass too; None if nothing says which."""
    if not wraps_others(tensor):
        return None
    if type(tensor).__name__ == UNFINISHED:
        finish(tensor)
    return _unwrapped(tensor)


def inside(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors with the bytes of a tensor: itself, unless it wraps others."""
    if not wraps_others(tensor):
        yield tensor
        return
    for each in _unwrapped(tensor)[0].values():
        yield from inside(each)


def _unwrapped(tensor: Any) -> Apart:
    kind, shape, stride = type(tensor), tensor.size(), tensor.stride()
    names, context = tensor.__tensor_flatten__()
    found = {name: getattr(tensor, name) for name in names}
    others = {name: value for name, value in found.items() if not isinstance(value, torch.Tensor)}

    def rebuild(parts: Mapping[str, Any]) -> torch.Tensor:
        made = kind.__tensor_unflatten__({**parts, **others}, context, shape, stride)
        return made.detach() if made.requires_grad else made

    return {name: value for name, value in found.items() if name not in others}, rebuild
