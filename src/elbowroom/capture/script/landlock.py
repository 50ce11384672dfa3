"""What Linux itself holds a process to: from here on it and its children write in named folders only.

Landlock (https://docs.kernel.org/userspace-api/landlock.html) needs no privileges and cannot be undone. It stops what
knows nothing of the overlay: C libraries and other programs. It does not know chmod, chown and utime.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # of every architecture
_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_LEAST_VERSION = 2
"""Before it, no file could be renamed from one folder to another."""

_WRITE = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13))
"""Write to a file; remove a folder, a file; make one of any kind, link and rename."""
_TRUNCATE = 1 << 14  # from version 3


def version() -> int:
    """The version of Landlock that this computer has, 0 where it has none."""
    if sys.platform != "linux":
        return 0
    return max(0, ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def write_only_in(folders: Sequence[str]) -> bool:
    """Have this thread, and whatever it starts, write in these folders only; whether that could be done."""
    found = version()
    if found < _LEAST_VERSION:
        return False
    rights = _WRITE | (_TRUNCATE if found >= 3 else 0)
    system = ctypes.CDLL(None, use_errno=True)
    attributes = struct.pack("=Q", rights)
    ruleset = system.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    try:
        for folder in folders:
            with suppress(FileNotFoundError):
                _allow(system, ruleset, folder, rights)
        system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return system.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(system: ctypes.CDLL, ruleset: int, folder: str, rights: int) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        system.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, opened), 0)
    finally:
        os.close(opened)
