"""Landlock: Linux itself keeps a process and its children to writing in named folders only.

Landlock (https://docs.kernel.org/userspace-api/landlock.html) needs no privileges and cannot be undone. It stops code
that does not see the overlay: C libraries and other programs. It does not cover chmod, chown and utime.
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
"""Least version used: before it, no file could be renamed from one folder to another."""

_WRITE = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13))
"""Rights to write to a file, to remove a folder or file, to make one of any kind, to link and to rename."""
_TRUNCATE = 1 << 14  # from version 3


def version() -> int:
    """Return the version of Landlock of this computer; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    return max(0, ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def write_only_in(folders: Sequence[str]) -> bool:
    """Limit writes of this thread, and of all that it starts, to these folders; return whether that worked."""
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
