"""Arrivals: modules of other libraries that are patched once they are imported."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, final

Change = tuple[Any, str, Any]
Changing = Callable[[Any], list[Change]]
"""Function that returns the changes of a module."""


def changed_once_there(
    changes: Mapping[str, Changing],
    stack: ExitStack,
    patched: Callable[[list[Change]], AbstractContextManager[None]],
) -> None:
    """Patch modules that are imported, and others once they are, until the stack is left.

    Args:
        changes: by a module's name, the function that returns its changes.
        stack: undoes the changes when it is left.
        patched: sets attributes until it is left.
    """

    def changing(name: str) -> Callable[[Any], None]:
        return lambda module: stack.enter_context(patched(changes[name](module)))

    for name in changes.keys() & sys.modules.keys():
        changing(name)(sys.modules[name])
    finder = Arrivals({name: changing(name) for name in changes.keys() - sys.modules.keys()})
    sys.meta_path.insert(0, finder)
    stack.callback(sys.meta_path.remove, finder)


@final
class Arrivals(importlib.abc.MetaPathFinder):
    """Finder that calls functions with modules once they are imported.

    Args:
        waiting: by a module's name, the function to call with it.
    """

    def __init__(self, waiting: Mapping[str, Callable[[Any], Any]]) -> None:
        self._waiting = dict(waiting)
        self._looking: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002  the protocol's
        """Return the spec of a module in `waiting`, with a loader that calls its function."""
        if fullname not in self._waiting or fullname in self._looking:
            return None
        self._looking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.discard(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        run = loader.exec_module

        def executed(module: Any) -> None:
            run(module)
            arrived = self._waiting.pop(fullname, None)
            if arrived is not None:
                arrived(module)

        loader.exec_module = executed
        return spec
