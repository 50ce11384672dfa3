"""Dependent shapes: ops whose results have a size that depends on values: nonzero, masks as indices, unique, counts.

If the values are known, the size is the true one. Else it is the largest: a mask lets everything through, all values
differ, and a remark says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from elbowroom.capture.virtual.host_values.known_values import HostResult
from elbowroom.capture.virtual.tensor import CPU, CUDA, META, is_virtual, meta_like, virtual

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import Special, VirtualMode

aten: Any = torch.ops.aten
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Assumed = Callable[[Args, Kwargs], Any]
MASKS = (torch.bool, torch.uint8)


def _by_value(assumed: Assumed) -> Special:
    """Make an op that runs on the host if it can; else `assumed` gives its results as meta tensors."""

    def special(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
        given = [each for each in args if is_virtual(each)]
        if not given:
            return func(*args, **kwargs)
        home = CUDA if any(each.is_cuda for each in given) else CPU
        outcome = mode.values.computed(func, args, kwargs)
        if outcome is None or not outcome.certain:
            mode.ledger.remark("assumed_value", f"aten.{func.__name__.partition('.')[0]}")
        if outcome is None:
            return mode.note(func, args, kwargs, _each(lambda made: virtual(made, home), assumed(args, kwargs)))
        made = _each(lambda real: virtual(_form_of(func, real), home), outcome.found)
        if isinstance(made, tuple):
            for each, real in zip(made, outcome.found, strict=True):
                mode.values.keep(each, real, outcome.certain)
        else:
            mode.values.keep(made, outcome.found, outcome.certain)
        return mode.note(func, args, kwargs, made)

    return special


def _each(change: Callable[[torch.Tensor], torch.Tensor], made: Any) -> Any:
    return change(made) if isinstance(made, torch.Tensor) else tuple(map(change, made))


def _form_of(func: Any, real: torch.Tensor) -> torch.Tensor:
    if func is aten.nonzero.default:
        return _positions(*real.shape)
    return meta_like(real.contiguous())


def _positions(rows: int, dims: int) -> torch.Tensor:
    """Make the result of nonzero: a row for each place, one dimension after the other in memory (Nonzero.cu)."""
    return torch.empty((dims, rows), dtype=torch.int64, device=META).t()


def _vector(size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=META)


def _nonzero(args: Args, _: Kwargs) -> torch.Tensor:
    return _positions(args[0].numel(), args[0].dim())


def _masked_select(args: Args, _: Kwargs) -> torch.Tensor:
    return _vector(torch.broadcast_shapes(args[0].shape, args[1].shape).numel(), args[0].dtype)


def _unique(args: Args, kwargs: Kwargs) -> tuple[torch.Tensor, ...]:
    """Assume distinct values; places and counts that were not requested are empty."""
    given: Args = (*args, *(True, False, False)[len(args) - 1 :])
    tensor, _, inverse, counts = given
    count = tensor.numel()
    places = torch.empty(tensor.shape if kwargs.get("return_inverse", inverse) else 0, dtype=torch.int64, device=META)
    return _vector(count, tensor.dtype), places, _vector(count if kwargs.get("return_counts", counts) else 0)


def _unique_consecutive(args: Args, kwargs: Kwargs) -> tuple[torch.Tensor, ...]:
    given: Args = (*args, *(False, False, None)[len(args) - 1 :])
    tensor, inverse, counts, dim = given
    dim = kwargs.get("dim", dim)
    if dim is not None:
        return _unique_dim((tensor, dim, True, inverse, counts), kwargs)
    return _unique((tensor, True, inverse, counts), kwargs)


def _unique_dim(args: Args, kwargs: Kwargs) -> tuple[torch.Tensor, ...]:
    given: Args = (*args, *(True, False, False)[len(args) - 2 :])
    tensor, dim, _, inverse, counts = given
    rows = tensor.shape[dim]
    values = torch.empty(tensor.shape, dtype=tensor.dtype, device=META)
    places = _vector(rows if kwargs.get("return_inverse", inverse) else 0)
    return values, places, _vector(rows if kwargs.get("return_counts", counts) else 0)


def _bincount(args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Assume the requested number of bins, at least one."""
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    return _vector(max(least, 1), dtype)


def _repeat_interleave(args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Assume each element once if the total is not given."""
    total = args[1] if len(args) > 1 else kwargs.get("output_size")
    return _vector(args[0].numel() if total is None else total)  # pyright: ignore[reportGeneralTypeIssues]


def _index(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Turn a mask as an index into the positions where it is true (IndexingUtils.h: expandTensors)."""
    tensor, indices = args[0], args[1]
    if not any(each is not None and each.dtype in MASKS for each in indices):
        return mode.run(func, args, kwargs)
    if not is_virtual(tensor) and not any(is_virtual(each) for each in indices):
        return func(*args, **kwargs)
    expanded: list[Any] = []
    for each in indices:
        expanded += [each] if each is None or each.dtype not in MASKS else _expanded(mode, each)
    return mode.run(func, (tensor, expanded), kwargs)


def _expanded(mode: VirtualMode, mask: torch.Tensor) -> list[torch.Tensor]:
    if not is_virtual(mask):
        return list(aten.nonzero(mask).unbind(1))
    with mode:
        return list(aten.nonzero(mask).unbind(1))


def _nms(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Select a detector's boxes: they are sorted, compared in words of 64 bits, and selected (nms_kernel.cu)."""
    boxes, scores = args[0], args[1]
    if not is_virtual(boxes) or not boxes.is_cuda:
        return func(*args, **kwargs)
    outcome = mode.values.computed(func, args, kwargs)
    with mode:
        order = scores.sort(stable=True, dim=0, descending=True)[1]
        ordered = boxes.index_select(0, order).contiguous()
        count = len(boxes)
        bits = ordered.new_empty(count * -(-count // 64), dtype=torch.int64)
        kept = ordered.new_zeros(count, dtype=torch.bool)
        _set_kept(mode, kept, order, outcome)
        del bits
        return order.masked_select(kept)


def _set_kept(mode: VirtualMode, kept: torch.Tensor, order: torch.Tensor, outcome: HostResult | None) -> None:
    mode.values.drop(kept)
    places = mode.values.of(order)
    if outcome is not None and places is not None:
        mode.values.keep(kept, torch.isin(places, outcome.found), outcome.certain)


BY_NAME: dict[str, Special] = {"torchvision::nms": _nms}
"""Ops of other libraries, which exist once these are imported."""

SPECIALS: dict[Any, Special] = {
    aten.nonzero.default: _by_value(_nonzero),
    aten.masked_select.default: _by_value(_masked_select),
    aten._unique2.default: _by_value(_unique),
    aten.unique_dim.default: _by_value(_unique_dim),
    aten.unique_consecutive.default: _by_value(_unique_consecutive),
    aten.bincount.default: _by_value(_bincount),
    aten.repeat_interleave.Tensor: _by_value(_repeat_interleave),
    aten.index.Tensor: _index,
}
