"""Floating point operations of an op from the shapes of its arguments; a multiplication and an addition count as two.

The counts are those of torch.utils.flop_counter. Shapes: M K N of matrices, B batch; the rest as in the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

Shape = tuple[int, ...]
Formula = Callable[[list[Shape], int], int]


def flops(name: str, shapes: tuple[Shape | None, ...], made: int) -> int:
    """FLOPs of one op; 0 where no formula is known.

    Args:
        name: such as "aten.mm".
        shapes: of its tensor arguments, None for the others.
        made: elements of the largest storage it made.
    """
    formula = FORMULAS.get(name)
    tensors = [shape for shape in shapes if shape is not None]
    return formula(tensors, made) if formula is not None and len(tensors) > 1 else 0


def _matrices(shapes: list[Shape], _made: int) -> int:
    left, right = shapes[-2], shapes[-1]
    return 2 * prod(left) * right[-1]  # B M K times N


def _convolution(shapes: list[Shape], made: int) -> int:
    # Each element of the output is a sum over the input channels and the window.
    return 2 * made * prod(shapes[1][1:])


def _convolution_backward(shapes: list[Shape], _made: int) -> int:
    # Once for the gradient of the input and once for that of the weight.
    return 2 * 2 * prod(shapes[0]) * prod(shapes[2][1:])


def _attention(shapes: list[Shape], _made: int) -> int:
    # Scores and weighted values: B H S_q S_k D each.
    return 2 * 2 * prod(shapes[0]) * shapes[1][-2]


def _attention_backward(shapes: list[Shape], _made: int) -> int:
    # The scores again, and the gradients of values, weights, queries and keys: five products.
    return 5 * 2 * prod(shapes[1]) * shapes[2][-2]


FORMULAS: dict[str, Formula] = {
    "aten.mm": _matrices,
    "aten.addmm": _matrices,
    "aten.bmm": _matrices,
    "aten.baddbmm": _matrices,
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
