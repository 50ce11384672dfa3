"""Operators over lists of tensors, such as the norms of all gradients, carried out on a part of the lists at a time.

Note: [Lists in parts]
An operator of torch's `_foreach_` family treats each tensor of its lists by itself. So it may run on one part of them
after the other, and only one part needs to be on the device. The bits are the same if torch takes the same way for the
parts as for the whole. On CUDA it has one way for lists of dense tensors of one dtype, and another one for all else
(ForeachUtils.h, `can_use_fast_route`). So only lists that are dense and of one dtype throughout are parted.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import torch

from elbowroom.engine.storages import PLAIN_TYPES
from elbowroom.step.handed_gradients import borders
from elbowroom.torch_compat.core import schema_of

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments and keyword arguments."""


@cache
def takes_lists(op: Any) -> bool:
    """Tell whether an operator treats each tensor of its lists by itself, and can run on parts of them."""
    schema: Any = schema_of(op)
    listed = schema.name.startswith("aten::_foreach_")
    if not listed and schema.name != "aten::_amp_foreach_non_finite_check_and_unscale_":
        return False
    kinds = [str(argument.type) for argument in schema.arguments]
    return kinds[:1] == ["List[Tensor]"] and all(kind == "List[Tensor]" for kind in kinds if "List" in kind)


def parted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Call] | None:
    """Return the calls that do what one call of an operator that `takes_lists` does; None if that must run whole."""
    values = [*args, *kwargs.values()]
    lists = [value for value in values if isinstance(value, (list, tuple))]
    count = len(lists[0]) if lists else 0
    if count < 2 or any(len(each) != count for each in lists) or not _are_alike(lists):
        return None
    if any(value.numel() != 1 for value in values if isinstance(value, torch.Tensor)):  # one number for each tensor
        return None

    def some(value: Any, begin: int, end: int) -> Any:
        return value[begin:end] if isinstance(value, (list, tuple)) else value  # pyright: ignore[reportUnknownVariableType]

    return [
        (tuple(some(v, *ends) for v in args), {name: some(v, *ends) for name, v in kwargs.items()})
        for ends in pairwise(borders([_size_bytes(each) for each in lists[0]]))
    ]


def joined(results: list[Any]) -> Any:
    """Return what the whole call returns, of what its parts returned."""
    return None if results[0] is None else [each for result in results for each in result]


def _are_alike(lists: list[Any]) -> bool:
    """Whether all tensors are plain and dense, with one dtype and device, and those at one place of one shape."""
    first = lists[0][0]
    for members in zip(*lists, strict=True):
        for each in members:
            if type(each) not in PLAIN_TYPES or each.layout is not torch.strided or not each.numel():
                return False
            if each.dtype != first.dtype or each.device != first.device or not each.is_floating_point():
                return False
            if each.shape != members[0].shape or each.stride() != members[0].stride() or not each.is_contiguous():
                return False
            if each.requires_grad and torch.is_grad_enabled():
                return False
    return True


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
