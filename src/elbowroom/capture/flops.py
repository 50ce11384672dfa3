"""Floating point operations of an op from the shapes of its arguments; a multiplication and an addition count as two.

The counts are those of torch.utils.flop_counter. Shapes: M K N of matrices, B batch; the rest as in the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

Shape = tuple[int, ...]
Formula = Callable[[list[Shape], list[int], bool], int]


def flops(name: str, arguments: tuple[Any, ...], made: list[int]) -> int:
    """Return the FLOPs of one op; 0 if no formula is known.

    Args:
        name: name, such as "aten.mm".
        arguments: by position, shapes of tensors (tuples) and values of flags; others are ignored.
        made: elements of the storages it made or changed.
    """
    formula = FORMULAS.get(name)
    if formula is None:
        return 0
    shapes = list(_shapes(arguments))
    flag = any(argument is True for argument in arguments)
    return formula(shapes, made, flag) if len(shapes) > 1 else 0


def _shapes(arguments: Iterable[Any]) -> Iterator[Shape]:
    """Shapes among arguments, those in lists included."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield argument
        elif isinstance(argument, list):
            yield from (each for each in argument if isinstance(each, tuple))


def _matrices(shapes: list[Shape], _made: list[int], _flag: bool) -> int:
    left, right = shapes[-2], shapes[-1]
    return 2 * prod(left) * right[-1]  # B M K times N


def _convolution(shapes: list[Shape], made: list[int], transposed: bool) -> int:
    # Each element of the output is a sum over the input channels and the window; transposed, the other way round.
    elements = prod(shapes[0]) if transposed else max(made, default=0)
    return 2 * elements * prod(shapes[1][1:])


def _convolution_backward(shapes: list[Shape], made: list[int], transposed: bool) -> int:
    # Once for the gradient of the weight, and once for that of the input where it is wanted.
    gradients = 2 if prod(shapes[1]) in made else 1
    return gradients * 2 * prod(shapes[1 if transposed else 0]) * prod(shapes[2][1:])


def _attention(shapes: list[Shape], _made: list[int], _causal: bool) -> int:
    # Scores and weighted values: B H S_q S_k D each.
    return 2 * 2 * prod(shapes[0]) * shapes[1][-2]


def _attention_backward(shapes: list[Shape], _made: list[int], _causal: bool) -> int:
    # The scores again, and the gradients of values, weights, queries and keys: five products.
    return 5 * 2 * prod(shapes[1]) * shapes[2][-2]


def _recurrent(shapes: list[Shape], _made: list[int], _flag: bool) -> int:
    # Each weight matrix is applied once to each row; argument 1 is a list, and its shapes follow the input's.
    rows = prod(shapes[0][:-1])
    return 2 * rows * sum(prod(shape) for shape in shapes[1:] if len(shape) == 2)


def _recurrent_backward(shapes: list[Shape], made: list[int], flag: bool) -> int:
    # Gradients of inputs and of weights.
    return 2 * _recurrent(shapes, made, flag)


ATTENTION = (
    "flash_attention",
    "efficient_attention",
    "cudnn_attention",
    "flash_attention_for_cpu",
    "fused_attention_overrideable",
)

FORMULAS: dict[str, Formula] = {
    "aten.mm": _matrices,
    "aten.addmm": _matrices,
    "aten.bmm": _matrices,
    "aten.baddbmm": _matrices,
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    **{f"aten._scaled_dot_product_{kind}": _attention for kind in ATTENTION},
    **{f"aten._scaled_dot_product_{kind}_backward": _attention_backward for kind in ATTENTION},
    "aten._cudnn_rnn": _recurrent,
    "aten._cudnn_rnn_backward": _recurrent_backward,
}
