"""Find module: find modules by dotted name as `python -m` does, without running any of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from elbowroom.errors import UsageError

_ALLOWED = (
    "allowed is the dotted name of a module with source code, or of a package with a __main__.py, that can be found "
    "from the working directory or is installed"
)


def module_file(name: str) -> str:
    """Return the file of a module, or of a package's __main__.

    Raises:
        UsageError: there is no such module, or it has no Python source.
    """
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise UsageError(f"-m: given {name!r}; {_ALLOWED}; write it as in python -m package.train")
    spec = _found(parts)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = PathFinder.find_spec("__main__", list(spec.submodule_search_locations))
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(
            f"-m: given {name}, and {_missing(parts)}; {_ALLOWED}; run it from the folder that holds {parts[0]}"
        )
    return os.path.relpath(spec.origin) if Path(spec.origin).is_relative_to(Path.cwd()) else spec.origin


def _found(parts: Sequence[str]) -> ModuleSpec | None:
    """Return the specification of a module; its packages are located, not imported."""
    places: Sequence[str] = [os.getcwd(), *sys.path]
    spec: ModuleSpec | None = None
    for count in range(1, len(parts) + 1):
        if count > 1:
            if spec is None or spec.submodule_search_locations is None:
                return None
            places = list(spec.submodule_search_locations)
        spec = PathFinder.find_spec(".".join(parts[:count]), list(places))
    return spec


def _missing(parts: Sequence[str]) -> str:
    for count in range(1, len(parts) + 1):
        if _found(parts[:count]) is None:
            return f"there is no {'.'.join(parts[:count])}"
    return "it has no Python source to run (a package needs a __main__.py)"
