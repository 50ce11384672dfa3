"""Shapes, strides and dtypes of results, cached: meta kernels are slow, and a training repeats itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, final

import torch

from elbowroom.capture.virtual.tensor import COMPRESSED, META, is_virtual
from elbowroom.torch_compat.core import storage_key


class OpResult(NamedTuple):
    """One result: a tensor's form, or another value."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype | None
    value: Any = None


class UnkeyableArgument(Exception):
    """An argument that a key cannot hold."""


@final
class Shapes:
    """Cache of results by the form of arguments, for results with storages of their own."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[bool, tuple[OpResult, ...]]] = {}

    def make(self, func: Any, args: Any, kwargs: dict[str, Any], compute: Callable[[], Any]) -> Any:
        """Return the results of an op as meta tensors: from the cache, or from `compute`."""
        try:
            key = (func, _key(args), _key(kwargs.items()))
            known = self._known.get(key)
        except (UnkeyableArgument, TypeError):
            return compute()
        if known is not None:
            return _build(*known)
        made = compute()
        forms = _forms(made, args)
        if forms is not None:
            self._known[key] = (isinstance(made, torch.Tensor), forms)
        return made


def _build(single: bool, forms: tuple[OpResult, ...]) -> Any:
    made = [
        form.value
        if form.dtype is None
        else torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=META)
        for form in forms
    ]
    return made[0] if single else tuple(made)


def _key(values: Iterable[Any]) -> Hashable:
    return tuple([_one(value) for value in values])


def _one(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor) and value.layout in COMPRESSED:
        raise UnkeyableArgument
    if is_virtual(value):
        return (value.shape, value.stride(), value.dtype)
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, "host")
    if isinstance(value, list | tuple):
        return (type(value), _key(value))
    if isinstance(value, torch.SymInt):
        raise UnkeyableArgument
    return (type(value), value)


def _forms(made: Any, args: Any) -> tuple[OpResult, ...] | None:
    """Return the forms of results with storages of their own; None if one is a view, or an argument."""
    results = (made,) if isinstance(made, torch.Tensor) else made
    if not isinstance(results, list | tuple):
        return None
    given = {storage_key(each.untyped_storage()) for each in _flat(args)}
    forms: list[OpResult] = []
    for each in results:
        if not isinstance(each, torch.Tensor):
            if each is not None and not isinstance(each, int | float | bool):
                return None
            forms.append(OpResult((), (), None, each))
            continue
        if each.layout != torch.strided or is_virtual(each):
            return None
        storage = each.untyped_storage()
        key = storage_key(storage)
        if key in given or each.storage_offset():
            return None
        if storage.nbytes() != _span_bytes(each):
            return None
        given.add(key)
        forms.append(OpResult(tuple(each.shape), each.stride(), each.dtype))
    return tuple(forms)


def _span_bytes(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _flat(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            yield value
        elif isinstance(value, list | tuple):
            yield from _flat(value)
