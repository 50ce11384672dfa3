"""Primitive kinds: which primitives of JAX make no bytes, which may write over an operand, and what they compute.

A primitive that no table names makes its results in memory of their own, and needs all that it reads until then.
"""

from __future__ import annotations

from math import prod
from typing import Any

IN_CALLS = frozenset(
    (
        "checkpoint",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_lin",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "jit",
        "pjit",
        "remat",
        "remat2",
        "shard_map",
    )
)
"""Calls, which are opened: their lines become lines of the program."""

VIEWS = frozenset(
    (
        "bitcast_convert_type",
        "copy",
        "copy_p",
        "expand_dims",
        "name",
        "optimization_barrier",
        "pvary",
        "random_unwrap",
        "random_wrap",
        "reshape",
        "sharding_constraint",
        "squeeze",
    )
)
"""Their result has the bytes of their operand, or is the operand."""

SPREADS = frozenset(("broadcast_in_dim", "iota"))
"""Their result is computed where it is read, if an elementwise line or a reduction reads it."""

UPDATES = frozenset(("dynamic_update_slice", "scatter", "scatter-add", "scatter-mul", "scatter-max", "scatter-min"))
"""They write into their first operand, if nothing needs it any more."""

ELEMENTWISE = frozenset(
    (
        *("abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e"),
        *("bessel_i1e", "cbrt", "ceil", "clamp", "complex", "conj", "convert_element_type", "cos", "cosh", "digamma"),
        *("div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "imag", "integer_pow"),
        *("is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter"),
        *("not", "or", "population_count", "pow", "real", "reduce_precision", "rem", "round", "rsqrt", "select_n"),
        *("shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square"),
        *("sub", "tan", "tanh", "xor"),
    )
)
"""They compute each element of their result from the elements at its place."""

RANDOM_PASSES = 4
"""Arrays of the result's size that threefry holds besides its result: two halves of counters, and two of bits."""


def scratch_elements(eqn: Any) -> int:
    """Return elements that a primitive holds besides operands and results.

    A convolution copies operands and result whose dimensions are in another order than the kernels' of the CPU. The
    gradient of a max pool becomes a scatter with an index for each dimension of each element, stacked and apart
    (xla/hlo/transforms/expanders/select_and_scatter_expander.cc), and padded operands.
    """
    name = eqn.primitive.name
    if name == "conv_general_dilated":
        return _reordered_elements(eqn)
    if name == "select_and_scatter_add":
        operand = eqn.invars[1].aval
        return (2 * len(operand.shape) + 3) * _padded_elements(operand.shape, eqn.params["padding"])
    if name in ("random_bits", "threefry2x32"):
        return RANDOM_PASSES * _elements(eqn.outvars[0])
    return 0


def work_of(eqn: Any) -> int:
    """Return the floating point operations of a primitive; a multiplication and an addition count as two."""
    name = eqn.primitive.name
    if name == "dot_general":
        (left_axes, _), _ = eqn.params["dimension_numbers"]
        summed = prod(eqn.invars[0].aval.shape[axis] for axis in left_axes)
        return 2 * summed * _elements(eqn.outvars[0])
    if name == "conv_general_dilated":
        kernel, features = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec[0]
        return 2 * _elements(eqn.outvars[0]) * prod(kernel) // max(1, kernel[features])
    return 0


def _reordered_elements(eqn: Any) -> int:
    """Return the elements of what is not in the order of batch, places, features, or of places, features, filters."""
    numbers, found = eqn.params["dimension_numbers"], 0
    last = len(numbers.lhs_spec) - 1
    for var, spec in ((eqn.invars[0], numbers.lhs_spec), (eqn.outvars[0], numbers.out_spec)):
        found += 0 if tuple(spec) == (0, last, *range(1, last)) else _elements(var)
    return found + (0 if tuple(numbers.rhs_spec) == (last, last - 1, *range(last - 1)) else _elements(eqn.invars[1]))


def _padded_elements(shape: tuple[int, ...], padding: Any) -> int:
    return prod(size + sum(ends) for size, ends in zip(shape, padding, strict=True))


def _elements(var: Any) -> int:
    return prod(var.aval.shape)
