"""Constants: module-level numbers of a script (BATCH_SIZE = 32), replaced when it is compiled. Its file stays as is."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import CodeType

from elbowroom.errors import UsageError

Number = int | float


def constants_of(tree: ast.Module) -> dict[str, Number]:
    """Return every name that is bound to a number at the top level of a module, with its first number."""
    found: dict[str, Number] = {}
    for name, value in _bindings(tree):
        if type(value.value) in (int, float):
            found.setdefault(name, value.value)  # pyright: ignore[reportArgumentType]
    return found


def compiled(source: str, path: str, constants: Mapping[str, Number]) -> CodeType:
    """Compile a script with other numbers in some of its constants.

    Args:
        source: text of the script.
        path: its path in tracebacks.
        constants: new numbers by name.

    Raises:
        SyntaxError: the script is not valid Python.
        UsageError: a name is not bound to a number at the top level of the script.
    """
    tree = ast.parse(source, path)
    known = constants_of(tree)
    for name in constants:
        if name not in known:
            raise UsageError(
                f"{path}: given the constant {name}; allowed are {_listed(known)}, which it binds to a number at its "
                "top level; take one of these"
            )
    for name, value in _bindings(tree):
        if name in constants and type(value.value) in (int, float):
            value.value = constants[name]
    return compile(tree, path, "exec")


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.Constant]]:
    """Yield assignments of one constant to one or more names, in `if` and `try` blocks of the top level too."""
    blocks: list[ast.stmt] = list(tree.body)
    while blocks:
        statement = blocks.pop(0)
        if isinstance(statement, ast.If | ast.Try | ast.With):
            blocks[:0] = [inner for inner in ast.iter_child_nodes(statement) if isinstance(inner, ast.stmt)]
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, statement.value


def _listed(names: Mapping[str, Number]) -> str:
    return ", ".join(names) or "none"
