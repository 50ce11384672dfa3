"""Nested tensors of strided layout, which are C++'s own and need bytes: on the device they are jagged ones.

Both keep the numbers of all rows in one storage. A strided one keeps its sizes on the host. A jagged one has offsets on
the device, which a remark says. Rows that differ in more than their first size have no jagged form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from elbowroom.capture.virtual.tensor import CPU, CUDA, is_virtual
from elbowroom.errors import CaptureError

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import Special, VirtualMode

aten: Any = torch.ops.aten
Change = tuple[Any, str, Any]
SAID = "nested tensors of strided layout (as jagged ones; layout=torch.jagged is what torch develops)"
REFUSED = (
    "virtual device: given a nested tensor with rows of shapes {}; allowed on cuda are rows that differ in their first "
    "size only; for the estimate pad them, or use a list of tensors"
)


def is_strided(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a nested tensor of C++'s."""
    return tensor.is_nested and tensor.layout is torch.strided


def jagged(mode: VirtualMode, rows: Sequence[torch.Tensor], dtype: torch.dtype | None) -> torch.Tensor:
    """Make a jagged tensor on the device of these rows.

    Raises:
        CaptureError: they differ in more than their first size.
    """
    if len({tuple(row.shape[1:]) for row in rows}) != 1 or not rows[0].dim():
        raise CaptureError(REFUSED.format(", ".join(str(tuple(row.shape)) for row in rows[:4])))
    mode.ledger.remark("unsupported", SAID)
    lengths = [len(row) for row in rows]
    ends = torch.tensor([0, *lengths], device=CPU).cumsum(0)
    with mode:
        values = aten._to_copy.default(torch.cat(list(rows)), dtype=dtype, device=CUDA)
        offsets = aten._to_copy.default(ends, device=CUDA)
        longest: dict[str, Any] = {"min_seqlen": min(lengths), "max_seqlen": max(lengths)}
        return torch.nested.nested_tensor_from_jagged(values, offsets, **longest)


def copied(mode: VirtualMode, tensor: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """Copy a strided nested tensor of the host to the device."""
    return jagged(mode, tensor.unbind(), kwargs.get("dtype"))


def _of_list(mode: VirtualMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a nested tensor of rows on the device."""
    given: tuple[Any, ...] = (*args, None, None, None)
    rows, dtype, _layout, device = given[:4]
    device = kwargs.get("device", device)
    if not (any(map(is_virtual, rows)) if device is None else device.type == "cuda"):
        return func(*args, **kwargs)
    return jagged(mode, rows, kwargs.get("dtype", dtype))


def _maker(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `torch.nested.nested_tensor`, whose C++ makes a strided tensor on request."""

    def made(tensor_list: Any, *, device: Any = None, layout: Any = None, **how: Any) -> Any:
        wanted = device is not None and torch.device(device).type == "cuda" and layout in (None, torch.strided)
        if not wanted:
            return make(tensor_list, device=device, layout=layout, **how)
        learns = how.pop("requires_grad", False)
        return make(tensor_list, device=CPU, layout=layout, **how).to(CUDA).requires_grad_(learns)

    return made


SPECIALS: dict[Any, Special] = {aten._nested_tensor_from_tensor_list.default: _of_list}


def changes() -> list[Change]:
    """Return the changes of torch while the device is on."""
    return [(torch.nested, "nested_tensor", _maker(torch.nested.nested_tensor))]
