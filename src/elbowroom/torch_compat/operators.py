"""What the dispatcher's own declarations say of an operator: whether it is one step of work, and what it writes.

An operator that torch composes of others ("CompositeImplicitAutograd", such as linear) is no op of a trace; the ones it
calls are. What an op writes is in its schema: arguments marked as mutated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from elbowroom.torch_compat.core import has_kernel, schemas_of

UNFILLED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""They make a storage and run no kernel."""

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
"""They take shape and type of their tensor argument, and do not read it."""


def reads_bytes(name: str) -> bool:
    """Whether an op such as "aten.relu" or "aten::relu" reads what its tensor arguments hold."""
    return name.replace("::", ".").removeprefix("aten.") not in OF_FORM


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator with so many arguments.

    Attributes:
        writes: positions of the arguments it changes.
        views: whether its result is the storage of its argument, and nothing is read.
    """

    writes: frozenset[int]
    views: bool


@cache
def operator(name: str, arguments: int) -> Operator | None:
    """The operator behind a profiler event, such as ("aten::mul_", 2); None for what is composed or no operator."""
    schemas = schemas_of(name)
    fitting = [schema for schema in schemas if len(schema.arguments) == arguments] or schemas
    # max(a, b) and max(a, out=b) look the same. Nothing that learns is called with out.
    fitting = [schema for schema in fitting if not _has_out(schema)] or fitting
    if not fitting or _composed(fitting):
        return None
    # The event does not name the overload. What any that fits writes counts as written: then it is kept, not swapped.
    writes = frozenset(i for schema in fitting for i, argument in enumerate(schema.arguments) if _written(argument))
    return Operator(writes=writes, views=all(_views(schema) for schema in fitting))


def _composed(schemas: list[Any]) -> bool:
    """Whether these overloads are made of other operators, with no kernel of their own on CPU or GPU."""
    own = ("CPU", "CUDA")
    return all(has_kernel(s, "CompositeImplicitAutograd") and not any(has_kernel(s, k) for k in own) for s in schemas)


def _written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _has_out(schema: Any) -> bool:
    return any(argument.is_out for argument in schema.arguments)


def _views(schema: Any) -> bool:
    returned = schema.returns
    return bool(returned) and all(r.alias_info is not None and not r.alias_info.is_write for r in returned)
