"""Modules that a script writes and then imports, as Transformers does with models' code: found in the overlay."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from typing import Any, final

from elbowroom.capture.script.overlay import Overlay


def install(overlay: Overlay) -> None:
    """Have imports find what is in the upper layer, where they find nothing below."""
    loader: Any = importlib.machinery.SourceFileLoader
    for name in ("get_data", "path_stats"):
        setattr(loader, name, _reading(overlay, getattr(loader, name)))
    sys.meta_path.append(Written(overlay))
    sys.dont_write_bytecode = True


def _reading(overlay: Overlay, real: Any) -> Any:
    @functools.wraps(real)
    def reads(self: Any, path: Any) -> Any:
        return real(self, overlay.reading(path))

    return reads


@final
class Written(importlib.abc.MetaPathFinder):
    """Looks for modules in the folders of the upper layer."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a module that the script wrote, if it did."""
        folders = [self._overlay.written(entry or ".") for entry in (sys.path if path is None else path)]
        found = [folder for folder in folders if folder is not None]
        return importlib.machinery.PathFinder.find_spec(fullname, found, target) if found else None
