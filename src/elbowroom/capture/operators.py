"""What the dispatcher's own declarations say of an operator: whether it is one step of work, and what it writes.

An operator that torch composes of others ("CompositeImplicitAutograd", such as linear) is no op of a trace; the ones it
calls are. What an op writes is in its schema: arguments marked as mutated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from elbowroom.runtime._torch_compat import has_kernel, schemas_of


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


def _views(schema: Any) -> bool:
    returned = schema.returns
    return bool(returned) and all(r.alias_info is not None and not r.alias_info.is_write for r in returned)
