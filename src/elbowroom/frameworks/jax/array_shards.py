"""Array shards: into how many pieces each dimension of an array is cut, carried from operands to results.

Computes: a bound on what one device holds. Only the arguments say how they are cut. A result is cut as its operands are
where that needs no exchange; where two operands differ, and for primitives without a rule, it is taken as whole.
Reference: Xu et al., "GSPMD" (arXiv:2105.04663), section 3.5, propagation of shardings.
Ignores: cuts that the compiler finds backward, from results to operands: it may cut more than is assumed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class ShardedShape(NamedTuple):
    """A shape, and the number of pieces of each dimension."""

    shape: Shape
    pieces: Shape

    @property
    def elements(self) -> int:
        """Elements on one device."""
        return prod(-(-size // count) for size, count in zip(self.shape, self.pieces, strict=True))


def whole(shape: Shape) -> ShardedShape:
    """Return a shape that is not cut."""
    return ShardedShape(shape, (1,) * len(shape))


def result_pieces(name: str, operands: Sequence[ShardedShape], shape: Shape, params: Mapping[str, Any]) -> Shape:
    """Return the pieces of a result of a primitive."""
    if all(count == 1 for each in operands for count in each.pieces):
        return (1,) * len(shape)
    if name == "dot_general":
        return _product(operands, params["dimension_numbers"])
    if name == "conv_general_dilated":
        return _convolution(operands, params["dimension_numbers"], len(shape))
    if name == "transpose":
        return tuple(operands[0].pieces[axis] for axis in params["permutation"])
    if name == "broadcast_in_dim":
        return _broadcast(operands[0], shape, params["broadcast_dimensions"])
    if name.startswith(("reduce_", "arg")) and "axes" in params:
        return tuple(count for axis, count in enumerate(operands[0].pieces) if axis not in params["axes"])
    if name in ("reshape", "squeeze", "expand_dims"):
        return _reshaped(operands[0], shape)
    return _alike(operands, shape)


def exchanged_elements(
    name: str, operands: Sequence[ShardedShape], result: ShardedShape, params: Mapping[str, Any]
) -> tuple[int, int, int]:
    """Return the elements of the left and right operand that a device must gather for a product, and those it must sum.

    An operand that is cut along the summed dimensions is gathered. If the other one is cut the same way, each device
    sums its part, and the results are summed over the devices.
    """
    if name != "dot_general" or len(operands) != 2:
        return 0, 0, 0
    (left_axes, right_axes), _ = params["dimension_numbers"]
    left, right = operands
    left_cut, right_cut = [left.pieces[a] for a in left_axes], [right.pieces[a] for a in right_axes]
    if left_cut == right_cut:
        return 0, 0, result.elements if prod(left_cut) > 1 else 0
    kept = [left.elements * prod(left_cut), right.elements * prod(right.pieces)]
    return kept[0] if prod(left_cut) > 1 else 0, kept[1] if prod(right.pieces) > 1 else 0, 0


def _product(operands: Sequence[ShardedShape], numbers: Any) -> Shape:
    (left_axes, right_axes), (left_batch, right_batch) = numbers
    left, right = operands
    batch = [max(left.pieces[a], right.pieces[b]) for a, b in zip(left_batch, right_batch, strict=True)]
    kept = [count for axis, count in enumerate(left.pieces) if axis not in (*left_axes, *left_batch)]
    other = [count for axis, count in enumerate(right.pieces) if axis not in (*right_axes, *right_batch)]
    if prod(batch + kept) > 1:
        other = [1] * len(other)  # the same axis of the mesh may cut both: then the right one is gathered
    return (*batch, *kept, *other)


def _convolution(operands: Sequence[ShardedShape], numbers: Any, dimensions: int) -> Shape:
    found = [1] * dimensions
    found[numbers.out_spec[0]] = operands[0].pieces[numbers.lhs_spec[0]]
    return tuple(found)


def _broadcast(operand: ShardedShape, shape: Shape, dimensions: Sequence[int]) -> Shape:
    found = [1] * len(shape)
    for axis, at in enumerate(dimensions):
        if operand.shape[axis] == shape[at]:
            found[at] = operand.pieces[axis]
    return tuple(found)


def _reshaped(operand: ShardedShape, shape: Shape) -> Shape:
    """Keep the pieces of the dimensions before and after those that change."""
    found = [1] * len(shape)
    old = [(size, count) for size, count in zip(*operand, strict=True) if size != 1]
    places = [axis for axis, size in enumerate(shape) if size != 1]
    for (size, count), axis in zip(old, places, strict=False):
        if size != shape[axis]:
            if shape[axis] % count == 0 and count > 1:
                found[axis] = count  # the outer one of dimensions that are joined or split
            break
        found[axis] = count
    for (size, count), axis in zip(reversed(old), reversed(places), strict=False):
        if size != shape[axis]:
            break
        found[axis] = count
    return tuple(found)


def _alike(operands: Sequence[ShardedShape], shape: Shape) -> Shape:
    """Take the pieces that all operands of the result's shape agree on."""
    same = [each.pieces for each in operands if each.shape == shape]
    if not same:
        return (1,) * len(shape)
    return tuple(next(iter(counts)) if len(counts := {*column}) == 1 else 1 for column in zip(*same, strict=True))
