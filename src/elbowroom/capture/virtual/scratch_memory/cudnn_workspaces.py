"""cuDNN workspaces of convolutions: a model with bounds, as cuDNN's own rules are not public.

Computes: the likely workspace of one pass, and the least and most among the algorithms that apply.
Reference: cuDNN developer guide, cudnnConvolutionFwdAlgo_t (which algorithms there are, which shapes they take and what
they store); Lavin and Gray (arXiv:1509.09308), Winograd's F(4x4, 3x3): 36 numbers for each tile of 4 x 4 outputs and
each channel, and 36 for each pair of channels; F(2x2, 3x3): 16 for each tile of 2 x 2; Mathieu et al.
(arXiv:1312.5851), FFT of tiles of 32 x 32.

Tensor cores are not used for float32 up to Volta and Turing, or with TF32 switched off. Then Winograd's transforms run
convolutions of 3 x 3 without stride and dilation that have enough channels. Other convolutions run by implicit products
that store indices only. Formulas are the documented ones. Two rules come from measured tables: the least number of
channels, and that nothing above 2 GiB is likely. They were chosen on SchedTune's VGGs, on V100 and T4
(docs/accuracy.md).
On tensor cores, tensors in the plain layout are copied into the cores' layout. Tensors in that layout need partial sums
at most. Float32 may be transformed there too.
When right: docs/accuracy.md has the measured tables. Ignores: batch and machine in cuDNN's choice of the fastest.
Cost: constant for a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import NamedTuple

MOST_BYTES = 2**31
"""Largest likely workspace: no algorithm with a larger one was seen to be chosen."""

CHANNELS = 128
"""The fewest input and output channels from which transforms are likely."""

TURING, TURING_CHANNELS = 75, 64
MAXWELL = 50
"""Least compute capability with Winograd's algorithm."""

TILE = 4
FFT_TILE = 32
INDEX_BYTES, SUM_BYTES = 4, 4
COPIES = 2
"""Most workspace, as a multiple of the copies in another layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCall:
    """One pass of a convolution that cuDNN runs.

    Attributes:
        input_shape, weight_shape, output_shape: shapes of the forward convolution.
        item_bytes: bytes of an element.
        pass_: "forward", "input" (gradient of the input) or "weight" (gradient of the weight).
        channels_last: whether the tensors are in the layout of tensor cores.
        tensor_cores: whether the call may use them: half precision, or float32 as TF32 from capability 8.0 on.
        stride, dilation: those of the spatial dimensions; one number stands for all.
        groups: parts whose channels do not mix.
        compute_capability: of the GPU, major * 10 + minor.
        deterministic: whether only algorithms that give the same bits again are allowed.
        benchmark: whether the fastest algorithm is found by trials, not by cuDNN's rule.
    """

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    item_bytes: int
    pass_: str
    channels_last: bool = False
    tensor_cores: bool = False
    stride: tuple[int, ...] = (1,)
    dilation: tuple[int, ...] = (1,)
    groups: int = 1
    compute_capability: int = 90
    deterministic: bool = False
    benchmark: bool = False


class PassWorkspace(NamedTuple):
    """Workspace of one pass.

    Attributes:
        likely_bytes, least_bytes, most_bytes: bytes of the algorithm that runs.
        tried_bytes: bytes of the largest algorithm that `cudnn.benchmark` tries.
    """

    likely_bytes: int
    least_bytes: int
    most_bytes: int
    tried_bytes: int


def usual_workspace(call: ConvolutionCall) -> PassWorkspace:
    """Return the workspace of a pass, as far as it is known."""
    indices = INDEX_BYTES * call.weight_shape[1] * prod(call.weight_shape[2:])
    if call.tensor_cores:
        return _on_tensor_cores(call, indices)
    transforms = winograd_bytes(call)
    likely = transforms if 0 < transforms < MOST_BYTES and _channels(call) >= _enough(call) else indices
    others = fft_bytes(call), column_bytes(call)
    most = max(likely, _most_transforms(call), *(each for each in others if each < MOST_BYTES))
    return PassWorkspace(likely, 0, most, max(most, transforms, *others))


def _on_tensor_cores(call: ConvolutionCall, indices: int) -> PassWorkspace:
    shapes = {"forward": call.output_shape, "input": call.input_shape, "weight": call.weight_shape}
    sums = SUM_BYTES * prod(shapes[call.pass_])
    if call.channels_last:
        return PassWorkspace(indices, 0, max(indices, sums), max(indices, sums))
    copies = sum(map(prod, shapes.values())) * call.item_bytes
    if call.item_bytes < SUM_BYTES:
        return PassWorkspace(copies, 0, COPIES * copies, COPIES * copies)
    most = max(COPIES * copies, _most_transforms(call))
    return PassWorkspace(copies, 0, most, max(most, winograd_bytes(call)))


def _most_transforms(call: ConvolutionCall) -> int:
    """Return the larger of F(4x4, 3x3) and F(2x2, 3x3), if it is below twice the largest that was seen."""
    return max(each if each < 2 * MOST_BYTES else 0 for each in (winograd_bytes(call), winograd_bytes(call, 2)))


def _channels(call: ConvolutionCall) -> int:
    return min(call.weight_shape[:2])


def _enough(call: ConvolutionCall) -> int:
    return TURING_CHANNELS if call.compute_capability == TURING else CHANNELS


def _is_dense(call: ConvolutionCall) -> bool:
    plain = all(each == 1 for each in (*call.stride, *call.dilation))
    return plain and call.groups == 1 and len(call.weight_shape) == 4 and call.item_bytes <= 4


def winograd_bytes(call: ConvolutionCall, tile: int = TILE) -> int:
    """Return the bytes of transformed inputs, outputs and weights, in float32; 0 if the algorithm does not apply."""
    if not _is_dense(call) or call.weight_shape[2:] != (3, 3) or call.compute_capability < MAXWELL:
        return 0
    outputs, inputs = call.weight_shape[:2]
    tiles = call.input_shape[0] * prod(ceil(extent / tile) for extent in call.output_shape[2:])
    return SUM_BYTES * (tile + 2) ** 2 * (tiles * (inputs + outputs) + inputs * outputs)


def fft_bytes(call: ConvolutionCall) -> int:
    """Return the bytes of half a complex spectrum per tile of each map and pair of channels; 0 if it does not apply."""
    window = call.weight_shape[2:]
    if not _is_dense(call) or max(window) == 1 or max(window) > FFT_TILE:
        return 0
    outputs, inputs = call.weight_shape[:2]
    fresh = [FFT_TILE - extent + 1 for extent in window]
    tiles = call.input_shape[0] * prod(ceil(e / f) for e, f in zip(call.output_shape[2:], fresh, strict=True))
    points = FFT_TILE * (FFT_TILE // 2 + 1)
    return 2 * SUM_BYTES * points * (tiles * (inputs + outputs) + inputs * outputs)


def column_bytes(call: ConvolutionCall) -> int:
    """Return the bytes of an explicit product: the matrix of windows of one image."""
    window = call.weight_shape[1] * call.groups * prod(call.weight_shape[2:])
    return call.item_bytes * window * prod(call.output_shape[2:])
