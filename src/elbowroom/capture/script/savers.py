"""Libraries that open files below Python: they get the path that the overlay has for it."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, final

from elbowroom.capture.script.overlay import Overlay

Wrapper = Callable[[Overlay, Any], Any]


def is_path(what: Any) -> bool:
    """Whether it names a file."""
    return isinstance(what, str | bytes | os.PathLike)


def to_write(overlay: Overlay, path: Any, flags: int = os.O_WRONLY | os.O_CREAT) -> Any:
    """Where a library shall write; the content that is there is kept unless the flags cut it off."""
    name = overlay.target(path)
    return os.fspath(path) if name is None else overlay.writing(name, flags, path)


def _torch_save(_: Overlay, save: Any) -> Any:
    """Through a file object, as the writer of paths is C++."""

    @functools.wraps(save)
    def saved(obj: Any, f: Any, *args: Any, **how: Any) -> Any:
        if not is_path(f):
            return save(obj, f, *args, **how)
        with open(f, "wb") as file:
            return save(obj, file, *args, **how)

    return saved


def _first_read(overlay: Overlay, function: Any) -> Any:
    """A function whose first argument is a path that it reads."""

    @functools.wraps(function)
    def reads(path: Any, *args: Any, **how: Any) -> Any:
        return function(overlay.reading(path) if is_path(path) else path, *args, **how)

    return reads


SAVERS: dict[str, dict[str, Wrapper]] = {
    "torch": {"save": _torch_save, "load": _first_read},
}
"""By module, its functions that take paths."""


def install(overlay: Overlay) -> Mapping[int, Any]:
    """Change what is imported by now, and what will be; what stands for what, by id."""
    replaced: dict[int, Any] = {}
    for name, wrappers in SAVERS.items():
        if name in sys.modules:
            replaced |= _changed(sys.modules[name], wrappers, overlay)
    waiting = {name: wrappers for name, wrappers in SAVERS.items() if name not in sys.modules}
    sys.meta_path.insert(
        0,
        Arrivals(
            {
                name: functools.partial(_changed, wrappers=wrappers, overlay=overlay)
                for name, wrappers in waiting.items()
            }
        ),
    )
    return replaced


def _changed(module: Any, wrappers: Mapping[str, Wrapper], overlay: Overlay) -> dict[int, Any]:
    replaced: dict[int, Any] = {}
    for attribute, wrapper in wrappers.items():
        real = getattr(module, attribute, None)
        if real is not None:
            replaced[id(real)] = wrapper(overlay, real)
            setattr(module, attribute, replaced[id(real)])
    return replaced


@final
class Arrivals(importlib.abc.MetaPathFinder):
    """Does something with modules once they are imported."""

    def __init__(self, waiting: Mapping[str, Callable[[Any], Any]]) -> None:
        self._waiting = dict(waiting)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002  the protocol's
        arrived = self._waiting.pop(fullname, None)
        if arrived is None:
            return None
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is None:
            return spec
        run = loader.exec_module

        def executed(module: Any) -> None:
            run(module)
            arrived(module)

        loader.exec_module = executed
        return spec
