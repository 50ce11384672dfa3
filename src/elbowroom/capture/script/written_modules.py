"""Written modules: modules that a script writes and then imports, as Transformers does, are found in the overlay."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from typing import Any, final

from elbowroom.capture.script.overlay import Overlay


def install(overlay: Overlay) -> None:
    """Make imports find modules of the upper layer if they find none below."""
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
    """Finder of modules in the folders of the upper layer."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module that the script wrote; None if it wrote none."""
        folders = [self._overlay.written(entry or ".") for entry in (sys.path if path is None else path)]
        found = [folder for folder in folders if folder is not None]
        return importlib.machinery.PathFinder.find_spec(fullname, found, target) if found else None
