"""Operators as the dispatcher declares them: whether one is a single step of work, and what it writes.

An operator that torch composes of others ("CompositeImplicitAutograd", such as linear) is no op of a trace. The
operators that it calls are. The schema of an op marks the arguments that it writes as mutated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from elbowroom.torch_compat.core import has_kernel, schemas_of

UNFILLED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Ops that make a storage and run no kernel."""

OF_FORM = UNFILLED | {
    "full_like",
    "new_full",
    "new_ones",
    "new_zeros",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "zeros_like",
}
"""Ops that take only shape and type of their tensor argument, and do not read its bytes."""


def reads_bytes(name: str) -> bool:
    """Tell whether an op such as "aten.relu" or "aten::relu" reads the bytes of its tensor arguments."""
    return name.replace("::", ".").removeprefix("aten.") not in OF_FORM


@dataclass(frozen=True, slots=True)
class Operator:
    """Operator with a given number of arguments.

    Attributes:
        writes: positions of the arguments that it changes.
        views: whether its result is the storage of its argument, and nothing is read.
    """

    writes: frozenset[int]
    views: bool


@cache
def operator(name: str, arguments: int) -> Operator | None:
    """Return the operator of a profiler event, such as ("aten::mul_", 2); None if it is composed or no operator."""
    schemas = schemas_of(name)
    fitting = [schema for schema in schemas if len(schema.arguments) == arguments] or schemas
    # max(a, b) and max(a, out=b) look the same. An op with out= has no gradient, so a training does not call it.
    fitting = [schema for schema in fitting if not _has_out(schema)] or fitting
    if not fitting or _composed(fitting):
        return None
    # The event does not name the overload. What any fitting overload writes counts as written, and is kept.
    writes = frozenset(i for schema in fitting for i, argument in enumerate(schema.arguments) if _written(argument))
    return Operator(writes=writes, views=all(_views(schema) for schema in fitting))


def _composed(schemas: list[Any]) -> bool:
    """Tell whether these overloads are made of other operators, with no kernel of their own on CPU or GPU."""
    own = ("CPU", "CUDA")
    return all(has_kernel(s, "CompositeImplicitAutograd") and not any(has_kernel(s, k) for k in own) for s in schemas)


def _written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _has_out(schema: Any) -> bool:
    return any(argument.is_out for argument in schema.arguments)


def _views(schema: Any) -> bool:
    returned = schema.returns
    return bool(returned) and all(r.alias_info is not None and not r.alias_info.is_write for r in returned)
