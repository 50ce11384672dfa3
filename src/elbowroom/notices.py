"""Warnings at the line of the user, and the log.

A warning is for what a user must act on. It points at the first frame outside this package and torch, whatever called
what in between. What is only counted and reported goes to the logger "elbowroom", which is silent until a program asks
for it, as with logging.basicConfig(level=logging.INFO).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from types import FrameType

LOGGER = logging.getLogger("elbowroom")
LOGGER.addHandler(logging.NullHandler())

OWN_FOLDER = os.path.dirname(__file__) + os.sep
"""Of this package."""
MADE_CODE = ("<frozen ", "<eval_with_key>")
"""How the file names of code begin that Python or torch make, and no user wrote."""


Once = set[str]
"""Keys of the warnings that were given, such as in one run."""


def warn_once(once: Once, key: str, text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn where this was not done yet; log it after that.

    Args:
        once: what was given, such as of a run.
        key: of the warning.
        text: what was met and what to do.
        category: of the warning.
    """
    if key in once:
        LOGGER.info("again: %s", text)
        return
    once.add(key)
    warn(text, category)


def warn(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn at the line of the user."""
    # A frame that holds itself in a variable would be a cycle.
    frame = user_frame(sys._getframe())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    known = frame.f_globals.setdefault("__warningregistry__", {})
    name = frame.f_globals.get("__name__", "<string>")
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, name, known)


def user_frame(frame: FrameType) -> FrameType:
    """The first frame outside this package and torch, from this one outwards; the outermost where all are inside.

    A thread of autograd has no frame of a user.
    """
    inside, found = inner_folders(), frame
    while found.f_back is not None and is_inside(found.f_code.co_filename, inside):
        found = found.f_back
    return found


def inner_folders() -> tuple[str, ...]:
    """How the file names begin of code that is passed over: this package, torch where it is imported, `with`."""
    torch = sys.modules.get("torch")
    file = getattr(torch, "__file__", None)
    of_torch = (os.path.dirname(file) + os.sep,) if file else ()
    return (OWN_FOLDER, contextlib.__file__, *of_torch, *MADE_CODE)


def is_inside(path: str, inside: tuple[str, ...]) -> bool:
    """Whether a file belongs to code that is passed over."""
    return path.startswith(inside)
