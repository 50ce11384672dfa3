"""Modules of other libraries, which are changed once they are imported."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, final

Change = tuple[Any, str, Any]
Changing = Callable[[Any], list[Change]]
"""What is changed of a module."""


def changed_once_there(
    changes: Mapping[str, Changing],
    stack: ExitStack,
    patched: Callable[[list[Change]], AbstractContextManager[None]],
) -> None:
    """Change modules that are imported, and others once they are, until the stack is left.

    Args:
        changes: by a module's name, what is changed of it.
        stack: undoes it.
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
    """Does something with modules once they are imported.

    Args:
        waiting: what is called with a module, by its name.
    """

    def __init__(self, waiting: Mapping[str, Callable[[Any], Any]]) -> None:
        self._waiting = dict(waiting)
        self._looking: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002  the protocol's
        """The spec of a module that is waited for, with a loader that tells of it."""
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
