"""Convolutions: time and workspace of each algorithm of cuDNN's convolutions, as a model of published rules.

Computes: the algorithms of cuDNN that apply to each pass of a convolution, with arithmetic, traffic and workspace. The
passes are forward, gradient of the input and gradient of the weight; backward has the pairs of its two passes. An
algorithm is offered only if it is faster than every one with less workspace. The first one is that of the trace, with
the workspace that `CudnnModel` gives it.
Reference: cuDNN developer guide, cudnnConvolutionFwdAlgo_t (which algorithms there are, what they store, which shapes
they take); Chetlur et al. (arXiv:1410.0759): implicit and explicit products; Lavin and Gray (arXiv:1509.09308):
Winograd's F(2x2, 3x3) and F(4x4, 3x3) with 2.25 and 4 times less arithmetic; Mathieu et al. (arXiv:1312.5851): FFT;
Rhu et al., "vDNN" (arXiv:1602.08124): the memory- and performance-optimal choice per layer.
When right: the order of algorithms by workspace, and sizes as the transforms need them. cuDNN's own figures are not
public; times are from counts of operations and bytes.
Ignores: which algorithm cuDNN would pick by itself. Another algorithm rounds differently.
Cost: constant for an op.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from elbowroom.capture.durations.op_line import OpLine
from elbowroom.capture.durations.products import ITEM_BYTES, MatrixProduct, arithmetic_ns, bandwidth_ns, rate_of
from elbowroom.machine import Machine
from elbowroom.trace import Choice

FORWARD, BACKWARD = "aten.convolution", "aten.convolution_backward"

PLAIN_SLOWDOWN = 1.3
"""Time of an implicit product that computes its indices on the way, as a multiple of one with precomputed indices;
assumed. On a V100 the latter was nearly always faster (Jorda et al., "Performance Evaluation of cuDNN Convolution
Algorithms on NVIDIA Volta GPUs", IEEE Access 7, 2019)."""

TRANSFORMS = 2
"""Passes over transformed data: it is written once and read once."""


WINOGRAD_WEIGHTS, WINOGRAD_LESS = 36, 4.0
"""Figures of F(4x4, 3x3): numbers for a pair of channels, and the factor of saved arithmetic."""

PLAIN = ("float32", "float64")
"""Types that are computed without tensor cores, in the layout that tensors have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionPass:
    """One pass of a convolution as a product.

    Attributes:
        product: its dimensions.
        work: FLOPs.
        moved_bytes: bytes of its three tensors.
        images, inputs, outputs: batch, input and output channels of a group.
        groups: number of groups.
        kernel: extents of the window.
        positions: extents of the output.
        dense: stride and dilation are 1.
        item_bytes, dtype: of an element.
        layout_bytes: copies in the layout of tensor cores, which are written and read.
    """

    product: MatrixProduct
    work: int
    moved_bytes: int
    images: int
    inputs: int
    outputs: int
    groups: int
    kernel: tuple[int, ...]
    positions: tuple[int, ...]
    dense: bool
    item_bytes: int
    dtype: str
    layout_bytes: int


def choices(line: OpLine, workspace_bytes: int, machine: Machine) -> tuple[Choice, ...]:
    """Return the choices of a convolution, the recorded one first; empty for other ops.

    Args:
        line: the op.
        workspace_bytes: the most workspace that it was recorded with.
        machine: where it runs.
    """
    passes = list(_passes(line, workspace_bytes))
    if not passes:
        return ()
    combined: list[Choice] = [Choice(name="", duration_ns=0, workspace_bytes=0)]
    for each in passes:
        after = (_recorded(each, workspace_bytes, machine), *_algorithms(each, machine))
        combined = [_then(before, choice) for before in combined for choice in after]
    return (combined[0], *_front(combined[0], combined[1:]))


def _recorded(each: ConvolutionPass, workspace_bytes: int, machine: Machine) -> Choice:
    """Return the recorded choice: Winograd's transforms if the workspace holds those of the weights, else indices."""
    transforms = WINOGRAD_WEIGHTS * each.inputs * each.outputs * each.item_bytes
    if each.dtype == "float32" and each.kernel == (3, 3) and each.dense and workspace_bytes > transforms:
        return _transformed("winograd_nonfused", each, WINOGRAD_LESS, workspace_bytes, machine)
    return Choice(
        name="implicit_precomp_gemm", duration_ns=_implicit_ns(each, machine), workspace_bytes=workspace_bytes
    )


def _then(first: Choice, second: Choice) -> Choice:
    """Combine two passes, one after the other."""
    return Choice(
        name=f"{first.name}+{second.name}" if first.name else second.name,
        duration_ns=first.duration_ns + second.duration_ns,
        workspace_bytes=max(first.workspace_bytes, second.workspace_bytes),
    )


def _front(recorded: Choice, others: list[Choice]) -> Iterator[Choice]:
    """Yield choices that are faster than all with less workspace, and not worse than the recorded one in both."""
    best: int | None = None
    for each in sorted(others, key=lambda c: (c.workspace_bytes, c.duration_ns, c.name)):
        better = best is None or each.duration_ns < best
        as_recorded = each.workspace_bytes >= recorded.workspace_bytes and each.duration_ns >= recorded.duration_ns
        if better and not as_recorded:
            best = each.duration_ns
            yield each


def _passes(line: OpLine, workspace_bytes: int) -> Iterator[ConvolutionPass]:
    """Yield the passes of an op, by the arguments of aten::convolution and aten::convolution_backward."""
    given = line.arguments
    if line.name == FORWARD and len(given) > 8:
        x, w, output = given[0], given[1], _output_shape(given)
        yield _pass("forward", line, x, w, output, (given[3], given[5], given[6], given[8]), workspace_bytes)
    elif line.name == BACKWARD and len(given) > 10:
        output, x, w = given[:3]
        settings = (given[4], given[6], given[7], given[9])
        for wanted, kind in zip(given[10], ("input", "weight"), strict=False):
            if wanted:
                yield _pass(kind, line, x, w, output, settings, workspace_bytes)


def _output_shape(given: tuple[Any, ...]) -> tuple[int, ...]:
    x, w, stride, padding, dilation, transposed, more, groups = *given[:2], *given[3:9]
    spatial: list[int] = []
    for i, size in enumerate(x[2:]):
        s, p, d = (each[i] if len(each) > 1 else each[0] for each in (stride, padding, dilation))
        window = d * (w[2 + i] - 1)
        extra = more[i] if len(more) > 1 else more[0] if more else 0
        spatial.append(
            (size - 1) * s - 2 * p + window + 1 + extra if transposed else (size + 2 * p - window - 1) // s + 1
        )
    return (x[0], w[1] * groups if transposed else w[0], *spatial)


def _pass(
    kind: str,
    line: OpLine,
    x: tuple[int, ...],
    w: tuple[int, ...],
    output: tuple[int, ...],
    settings: tuple[Any, Any, bool, int],
    workspace_bytes: int,
) -> ConvolutionPass:
    """Describe a pass. A transposed convolution is a plain one's gradient of the input: input and output swap roles."""
    stride, dilation, transposed, groups = settings
    if transposed:
        x, output = output, x
        kind = {"forward": "input", "input": "forward"}.get(kind, kind)
    inputs, outputs, kernel = x[1] // groups, output[1] // groups, w[2:]
    window, points = prod(kernel), x[0] * prod(output[2:])
    item = ITEM_BYTES.get(line.dtype, 4)
    return ConvolutionPass(
        product=product_of(kind, x[0] * prod(x[2:]), points, inputs, outputs, window, groups),
        work=2 * points * outputs * groups * inputs * window,
        moved_bytes=(prod(x) + prod(w) + prod(output)) * item,
        images=x[0],
        inputs=inputs,
        outputs=outputs,
        groups=groups,
        kernel=kernel,
        positions=output[2:],
        dense=not any(each != 1 for each in (*stride, *dilation)),
        item_bytes=item,
        dtype=line.dtype,
        layout_bytes=0 if line.dtype in PLAIN else workspace_bytes,
    )


def product_of(
    kind: str, sources: int, points: int, inputs: int, outputs: int, window: int, groups: int
) -> MatrixProduct:
    """Return the product of matrices that a pass is.

    Args:
        kind: "forward", "input" or "weight".
        sources: points of the input, of all images.
        points: points of the output, of all images.
        inputs: channels of the input in a group.
        outputs: channels of the output in a group.
        window: points of the kernel.
        groups: groups of channels.
    """
    rows, columns, inner = {
        "forward": (points, outputs, inputs * window),
        "input": (sources, inputs, outputs * window),
        "weight": (outputs, inputs * window, points),
    }[kind]
    return MatrixProduct(batch=groups, rows=rows, columns=columns, inner=inner)


def _implicit_ns(each: ConvolutionPass, machine: Machine, dtype: str = "") -> int:
    """Time the product that reads the input on the way; copies in another layout come on top."""
    dtype = dtype or each.dtype
    arithmetic = arithmetic_ns(each.work, each.product, dtype, machine)
    copies = bandwidth_ns(TRANSFORMS * each.layout_bytes, machine) if dtype == each.dtype else 0
    return max(arithmetic, bandwidth_ns(each.moved_bytes, machine)) + copies


def _algorithms(each: ConvolutionPass, machine: Machine) -> Iterator[Choice]:
    """Yield the other algorithms, each with a workspace of its own."""
    without_copies = "float32" if each.layout_bytes else each.dtype  # in the plain layout there are no tensor cores
    slow = int(_implicit_ns(each, machine, without_copies) * PLAIN_SLOWDOWN)
    yield Choice(name="implicit_gemm", duration_ns=slow, workspace_bytes=0)
    if each.groups > 1:
        return
    columns = each.images * prod(each.positions) * each.inputs * prod(each.kernel) * each.item_bytes
    yield _transformed("gemm", each, 1.0, columns, machine)
    if len(each.kernel) != 2 or not each.dense:
        return
    maps = each.images * (each.inputs + each.outputs)
    weights = each.inputs * each.outputs
    if each.kernel == (3, 3):
        yield _transformed("winograd", each, 2.25, 16 * weights * each.item_bytes, machine)
        tiles = prod(ceil(extent / 4) for extent in each.positions)
        transformed = WINOGRAD_WEIGHTS * (maps * tiles + weights) * 4
        yield _transformed("winograd_nonfused", each, WINOGRAD_LESS, transformed, machine)
    if max(each.kernel) > 1 and max(each.positions) <= 256:
        yield from _by_fft(each, maps, weights, machine)


def _by_fft(each: ConvolutionPass, maps: int, weights: int, machine: Machine) -> Iterator[Choice]:
    """Yield choices by FFT of the image or of tiles of 32 x 32: each map and window has half a complex spectrum."""
    whole = [_power(extent + window - 1) for extent, window in zip(each.positions, each.kernel, strict=True)]
    for name, extents, tiles in (("fft", whole, 1), ("fft_tiling", [32, 32], _tiles(each))):
        points = extents[0] * (extents[1] // 2 + 1)
        # A complex product is four real ones: 8 operations for each point, against 2 for each window element.
        work = 8 * points * tiles * each.images * weights
        spectrum = 8 * points * (maps * tiles + weights)
        yield _transformed(name, each, each.work / max(1, work), spectrum, machine)


def _tiles(each: ConvolutionPass) -> int:
    return prod(ceil(extent / (32 - window + 1)) for extent, window in zip(each.positions, each.kernel, strict=True))


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _transformed(name: str, each: ConvolutionPass, less: float, workspace_bytes: int, machine: Machine) -> Choice:
    """Make the choice of a transform: reduced arithmetic at the rate of float32; the workspace is written and read."""
    dtype = each.dtype if name == "gemm" or rate_of(each.dtype, machine) == rate_of("float32", machine) else "float32"
    arithmetic = int(arithmetic_ns(each.work, None, dtype, machine) / less)
    traffic = bandwidth_ns(each.moved_bytes + TRANSFORMS * workspace_bytes, machine)
    duration_ns = arithmetic + traffic if name != "winograd" else max(arithmetic, traffic)
    return Choice(name=name, duration_ns=duration_ns, workspace_bytes=workspace_bytes)
