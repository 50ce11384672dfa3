"""Notices: warnings at the user's line, and the log.

A warning is for a problem that a user must act on. It points at the first frame outside this package and torch, however
deep the calls in between. Other notices go to the logger "elbowroom". It is silent until a program turns it on, as with
logging.basicConfig(level=logging.INFO).
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
"""Folder of this package."""
MADE_CODE = ("<frozen ", "<eval_with_key>")
"""Prefixes of the file names of code that Python or torch generate."""


Once = set[str]
"""Keys of the warnings that were given, such as those of one run."""


def warn_once(once: Once, key: str, text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn the first time; after that, log the text.

    Args:
        once: the warnings that were given, such as those of a run.
        key: key of the warning.
        text: what happened and what to do.
        category: category of the warning.
    """
    if key in once:
        LOGGER.info("again: %s", text)
        return
    once.add(key)
    warn(text, category)


def warn(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn at the user's line."""
    # A frame that holds itself in a variable would be a cycle.
    frame = user_frame(sys._getframe())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    known = frame.f_globals.setdefault("__warningregistry__", {})
    name = frame.f_globals.get("__name__", "<string>")
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, name, known)


def user_frame(frame: FrameType) -> FrameType:
    """Return the first frame outside this package and torch, from this one outwards.

    If all frames are inside, it returns the outermost: a thread of autograd has no frame of a user.
    """
    inside, found = inner_folders(), frame
    while found.f_back is not None and is_inside(found.f_code.co_filename, inside):
        found = found.f_back
    return found


def inner_folders() -> tuple[str, ...]:
    """Return the prefixes of file names to skip: this package, torch if it is imported, `with`, generated code."""
    torch = sys.modules.get("torch")
    file = getattr(torch, "__file__", None)
    of_torch = (os.path.dirname(file) + os.sep,) if file else ()
    return (OWN_FOLDER, contextlib.__file__, *of_torch, *MADE_CODE)


def is_inside(path: str, inside: tuple[str, ...]) -> bool:
    """Return whether a file belongs to code that is skipped."""
    return path.startswith(inside)
