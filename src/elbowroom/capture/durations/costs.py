"""Costs: how long an op takes on a virtual GPU: a model from a handful of published figures, not a measurement.

Computes: the longest of launching the op, its arithmetic and its traffic. The rate of arithmetic is the machine's dense
rate for the op's type, times two shares. One is what large products reach; the other is how well the product's tiles
fill the multiprocessors. Traffic is the bytes of the tensors that the op reads and makes, with each pass over them
counted. Its rate is the share of the memory's bandwidth that streaming kernels reach.
Reference: Williams et al., "Roofline" (CACM 2009); tiles and waves as in NVIDIA, "Matrix Multiplication Background
User's Guide". docs/step-times.md compares steps with published ones.
When right: for large kernels, within about the spread of the published figures. Choices of cuDNN and cuBLAS by shape
are closed, and one share stands for all of them.
Ignores: caches between ops, clocks, the host's work between ops, overlap of streams.
Cost: constant for an op.
"""

from __future__ import annotations

from math import prod
from typing import Any

from elbowroom.capture.durations.convolutions import BACKWARD, FORWARD, product_of
from elbowroom.capture.durations.op_line import OpLine
from elbowroom.capture.durations.products import ITEM_BYTES, MatrixProduct, arithmetic_ns, bandwidth_ns, rate_of
from elbowroom.hardware.reach import LAUNCH_NS
from elbowroom.machine import Machine

RECURRENT_STEP_NS = 10_000
"""Time of one time step of a recurrent layer, whose kernels run one after the other; assumed."""

FLASH_SHARE = {"forward": 0.65, "backward": 0.55}
"""Share of the dense half-precision rate: FlashAttention-2 (arXiv:2307.08691) reaches 50 to 73 % on an A100 forward,
and up to 63 % backward."""

CAUSAL: dict[str, int] = {
    "aten._scaled_dot_product_flash_attention": 4,
    "aten._scaled_dot_product_flash_attention_backward": 10,
    "aten._scaled_dot_product_efficient_attention": 6,
    "aten._scaled_dot_product_efficient_attention_backward": 10,
    "aten._scaled_dot_product_cudnn_attention": 6,
    "aten._scaled_dot_product_cudnn_attention_backward": 13,
}
"""Attention ops of one kernel, each with the position of its argument `is_causal`, which halves the work."""

PASSES: dict[str, tuple[int, ...]] = {
    "aten.cudnn_batch_norm": (0,),
    "aten.native_batch_norm": (0,),
    "aten.cudnn_batch_norm_backward": (0, 1),
    "aten.native_batch_norm_backward": (0, 1),
    "aten.native_group_norm": (0,),
    "aten.native_group_norm_backward": (0, 1),
    "aten.native_layer_norm_backward": (0, 1),
    "aten._log_softmax": (0,),
    "aten._softmax": (0,),
}
"""Positions of arguments that are read a second time: statistics first, then the result; sums first, then gradients.
Rows of a layer norm's forward stay in registers."""

GATHERS = ("aten.embedding", "aten.index_select", "aten.gather", "aten.index")
"""Ops that read no more of their first argument than they make."""


def duration_ns(line: OpLine, work: int, machine: Machine) -> int:
    """Return the time of an op that does `work` FLOPs. A view takes none: the host makes it while the GPU is busy."""
    if not line.moved_bytes and not work:
        return 0
    return max(LAUNCH_NS, _steps_ns(line), _arithmetic_ns(line, work, machine), _traffic_ns(line, machine))


def _traffic_ns(line: OpLine, machine: Machine) -> int:
    """Time of an op's bytes."""
    size_bytes = line.moved_bytes
    if line.name in GATHERS:
        # moved = table + indices + rows made; the rows are read too, the rest of the table is not
        table = _argument_bytes(line, 0)
        made = max(0, size_bytes - table)
        size_bytes = made + min(table, made)
    size_bytes += sum(_argument_bytes(line, position) for position in PASSES.get(line.name, ()))
    return bandwidth_ns(size_bytes, machine)


def _steps_ns(line: OpLine) -> int:
    """Return the least time of a recurrent network, which small ones take too."""
    if line.name not in ("aten._cudnn_rnn", "aten._cudnn_rnn_backward"):
        return 0
    shape: Any = line.arguments[0]
    return RECURRENT_STEP_NS * shape[0]


def _argument_bytes(line: OpLine, position: int) -> int:
    shape: Any = line.arguments[position] if position < len(line.arguments) else None
    return prod(shape) * ITEM_BYTES.get(line.dtype, 4) if isinstance(shape, tuple) else 0


def _arithmetic_ns(line: OpLine, work: int, machine: Machine) -> int:
    if not work or not machine.flops_per_s:
        return 0
    position = CAUSAL.get(line.name)
    if position is None:
        products = _products(line, work) or [None]
        return sum(arithmetic_ns(work // len(products), product, line.dtype, machine) for product in products)
    halved = position < len(line.arguments) and line.arguments[position] is True
    share = FLASH_SHARE["backward" if line.name.endswith("_backward") else "forward"]
    return int((work / 2 if halved else work) * 10**9 / (rate_of(line.dtype, machine) * share))


def _products(line: OpLine, work: int) -> list[MatrixProduct]:
    """Return the products of matrices that an op is; empty for other ops, and for transposed convolutions."""
    shapes = [shape for shape in line.arguments if isinstance(shape, tuple)]
    if line.name in ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm") and len(shapes) > 1:
        left, right = shapes[-2], shapes[-1]
        return [MatrixProduct(batch=prod(left[:-2]), rows=left[-2], columns=right[-1], inner=left[-1])]
    plain = not any(argument is True for argument in line.arguments)
    if line.name == FORWARD and plain and len(shapes) > 1:
        return _passes(("forward",), shapes[0], shapes[1], work // (2 * prod(shapes[1])))
    if line.name == BACKWARD and plain and len(shapes) > 2:
        made, given, weight = shapes[:3]
        points = prod(made) // made[1]
        alone = work < 4 * prod(weight) * points  # the input needs no gradient
        return _passes(("weight",) if alone else ("weight", "input"), given, weight, points)
    return []


def _passes(
    kinds: tuple[str, ...], given: tuple[int, ...], weight: tuple[int, ...], points: int
) -> list[MatrixProduct]:
    """Return the products of a recorded convolution, whose settings are not known; `points` are those of its output."""
    groups, sources = given[1] // weight[1], prod(given) // given[1]
    sizes = weight[1], weight[0] // groups, prod(weight[2:]), groups
    return [product_of(kind, sources, points, *sizes) for kind in kinds]
