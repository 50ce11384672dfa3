"""Saved tensors of subclasses of torch.Tensor, by the plain tensors behind them.

Note: [Subclasses]
A tensor that wraps others (DTensor, jagged nested tensors, torch.testing's TwoTensor) has no bytes of its own. What its
`__tensor_flatten__` names takes part in its place, and `__tensor_unflatten__` puts it together again. Its ops run below
autograd, so in-place changes are counted by its own version counter and not by those of the tensors inside: an entry
watches that counter too. A tensor that only adds attributes to bytes of its own, as MONAI's MetaTensor does, is taken
without them: whatever hooks return, autograd makes a plain tensor of it. Any other subclass passes, as nothing says
what else is in it; that is said once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import torch

from elbowroom.torch_compat.core import version_of
from elbowroom.torch_compat.subclasses import bare_of, wraps_others

UNFINISHED = "AsyncCollectiveTensor"
"""Its bytes are still to come: torch waits for them where the tensor is used, which a copy would not."""


@final
class Wrapped:
    """A saved tensor of a subclass, whose tensors inside were saved in its place.

    Args:
        tensor: of the subclass.
        parts: what stands for the tensors inside.
        rebuild: makes the tensor from those, once they are plain tensors again.

    Attributes:
        counter: shares the tensor's version counter, and holds none of what it wraps.
        version: the counter when it was saved.
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
"""The tensors inside, and what makes the whole of them."""


def taken_apart(tensor: torch.Tensor) -> Apart | None:
    """What a tensor of a subclass wraps, in its turn plain or of a subclass; None where nothing says what that is."""
    return _unwrapped(tensor) if wraps_others(tensor) and type(tensor).__name__ != UNFINISHED else None


def inside(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with the bytes of a tensor: itself, unless it wraps others."""
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
