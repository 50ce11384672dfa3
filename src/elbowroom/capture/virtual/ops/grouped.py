"""Grouped matrix products: one call for the products of all experts of a mixture (GroupedBlas.cpp, GroupMM.cu; rig)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from elbowroom.capture.virtual.scratch_memory.scratch import ScratchCall

aten: Any = torch.ops.aten
ALIGNED_BYTES = 16
"""Alignment of the rows of the result."""

ARGUMENT_BYTES = 60
"""Bytes of one group's arguments: three pointers, three strides, and a shape of three ints."""

WORKSPACE_BYTES = 512
"""Workspace of a multiprocessor: four tensor maps."""

FUSED = (90, 100, 103)
"""Compute capabilities that have a kernel for all groups of bfloat16 at once; others run a product after the other."""


def _grouped_mm(
    first: torch.Tensor,
    second: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply groups; either matrix has the groups in a row, or is a stack with one matrix for each group."""
    dtype = out_dtype or first.dtype
    rows, columns = first.shape[-2], second.shape[-1]
    stacked = (first.dim() == 2) == (second.dim() == 2)
    groups = offs.shape[0] if offs is not None and first.dim() == 2 else first.shape[0]
    aligned = ALIGNED_BYTES // dtype.itemsize
    width = -(-columns // aligned) * aligned
    if stacked:
        return first.new_empty(0, dtype=dtype).new_empty_strided((groups, rows, columns), (rows * width, width, 1))
    return first.new_empty(0, dtype=dtype).new_empty_strided((rows, columns), (width, 1))


def _rule(call: ScratchCall) -> None:
    """Allocate a table of groups and a workspace for the one kernel; else cuBLAS runs each group into the result."""
    call.out(0)
    first = call.args[0]
    offs = call.args[2] if len(call.args) > 2 else call.kwargs.get("offs")
    if call.facts.compute_capability in FUSED and first.dtype is torch.bfloat16:
        groups = offs.shape[0] if offs is not None else first.shape[0]
        call.temp(groups * ARGUMENT_BYTES)
        call.temp(call.facts.multiprocessors * WORKSPACE_BYTES)
        return
    call.blas()


KERNELS: dict[Any, Callable[..., Any]] = {aten._grouped_mm.default: _grouped_mm}
RULES: dict[Any, Callable[[ScratchCall], None]] = {aten._grouped_mm.default: _rule}
