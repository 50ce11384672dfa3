"""Modules of other libraries, which are changed once they are imported."""

from __future__ import annotations

import importlib.abc
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, final


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
