"""Read files: what a script under capture has read, so that its capture counts until one of these files changes.

A file counts as unchanged while its size and the time of its last change are the same. Files of data that a library
opens without Python are not seen. Nor is a file that was looked for and not found.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, final

from elbowroom.capture.script.kept_away import WRITING

READ = "read.json"
"""File in which a child names them to its parent."""
MOST_FILES = 20_000
"""With more files than that, nothing is kept: to look at them would take too long."""
NEVER = ("/dev/", "/proc/", "/sys/")

Seen = tuple[str, int, int]
"""Path, bytes, and the time of the last change in nanoseconds since 1970."""


@final
class ReadFiles:
    """The files that this process opens to read, from `start` on, and those of its modules.

    Args:
        apart: folders whose files do not count.
    """

    def __init__(self, apart: Sequence[str]) -> None:
        self._apart = (*(f"{each.rstrip(os.sep)}{os.sep}" for each in apart), *NEVER)
        self._paths: dict[str, None] = {}

    def start(self) -> None:
        """Listen to every call; an audit hook cannot be removed."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and not (arguments[2] or 0) & WRITING:
            self._paths[arguments[0] if arguments[0].startswith(os.sep) else os.path.abspath(arguments[0])] = None

    def seen(self) -> list[Seen] | None:
        """Return the files as they are now; None if they are too many."""
        modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        paths = {*self._paths, *(os.path.abspath(each) for each in modules if isinstance(each, str))}
        own = [each for each in sorted(paths) if not each.startswith(self._apart) and not each.endswith(".pyc")]
        return list(as_they_are(own)) if len(own) <= MOST_FILES else None


def as_they_are(paths: Sequence[str]) -> Iterator[Seen]:
    """Yield those of some paths that are regular files."""
    for path in paths:
        with suppress(OSError):
            found = os.stat(path)
            if stat.S_ISREG(found.st_mode):
                yield path, found.st_size, found.st_mtime_ns
