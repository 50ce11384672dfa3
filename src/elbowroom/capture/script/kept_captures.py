"""Kept captures: traces of scripts in the user's cache folder, for the next start of the same training.

A file is found by what a capture depends on: the order without its time limit, the device, the working directory, the
environment, and the versions of elbowroom, Python and torch. It counts as long as no file has changed that the script
read. A script whose steps are other ones nevertheless, as its data are, is no error: a run observes a step that is not
the captured one.
Writing is best effort: a full disk is no error here.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from elbowroom.capture.script.order import ScriptOrder
from elbowroom.capture.script.read_files import Seen, as_they_are
from elbowroom.errors import ElbowroomError
from elbowroom.files.cache_folder import cache_folder
from elbowroom.files.record_files import decode, encode, write_whole
from elbowroom.machine import Machine
from elbowroom.trace import Trace
from elbowroom.version import installed_version

FORMAT = 1
"""Version of the files; others are not found."""
MOST_KEPT = 60
"""With more captures, those that were used longest ago are deleted."""
SUFFIX = ".capture.json.gz"

PASSING = ("_", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "WINDOWID", "DISPLAY", "TERM_SESSION_ID", "INVOCATION_ID")
PASSING_FAMILIES = ("SSH_", "XDG_", "DBUS_", "TMUX", "STY", "VSCODE_", "PYTEST_", "SLURM_JOB", "SLURM_STEP")
"""Variables, and how their names begin, that are other ones in every start or terminal."""


def find(order: ScriptOrder, target: Machine, variables: Mapping[str, str]) -> Trace | None:
    """Return the trace of an earlier capture; None if there is none, or a file that the script read has changed.

    Args:
        order: what is captured.
        target: the device.
        variables: the environment of the script.
    """
    try:
        path = _path(order, target, variables)
        content = json.loads(gzip.decompress(path.read_bytes()))
        read = [tuple(each) for each in content["read"]]
        if list(as_they_are([each[0] for each in read])) != read:
            return None
        found = decode(content["trace"].encode(), Trace)
        os.utime(path)
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ElbowroomError):
        return None
    return found


def keep(
    order: ScriptOrder, target: Machine, variables: Mapping[str, str], trace: Trace, read: list[Seen], since_ns: int
) -> None:
    """Keep a trace, unless a file that the script read has changed since the capture began.

    Args:
        order: what was captured.
        target: the device.
        variables: the environment of the script.
        trace: the trace.
        read: the files that the script read.
        since_ns: when the capture began, in nanoseconds since 1970.
    """
    if any(changed_ns >= since_ns for _, _, changed_ns in read):
        return
    content = json.dumps({"read": read, "trace": encode(trace).decode()})
    with suppress(OSError):
        path = _path(order, target, variables)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(gzip.compress(content.encode(), compresslevel=1), path)
        for each in kept_captures()[MOST_KEPT:]:
            each.unlink(missing_ok=True)


def kept_captures() -> list[Path]:
    """Return the files of kept captures, the one used last first.

    Raises:
        OSError: there is no cache folder.
    """
    return sorted(_folder().glob(f"*{SUFFIX}"), key=_used_s, reverse=True)


def clear_captures() -> int:
    """Delete all kept captures. Returns their number.

    Raises:
        OSError: there is no cache folder, or files in it cannot be deleted.
    """
    found = kept_captures()
    for each in found:
        each.unlink(missing_ok=True)
    return len(found)


def _folder() -> Path:
    return cache_folder() / "captures"


def _used_s(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _path(order: ScriptOrder, target: Machine, variables: Mapping[str, str]) -> Path:
    """Return the file of the capture of an order."""
    depends_on = (
        FORMAT,
        installed_version(),
        sys.version,
        installed_version("torch"),
        sorted((name, value) for name, value in asdict(order).items() if name != "timeout_s"),
        (target.name, target.compute_capability, target.allocator, target.tiers[0].capacity_bytes),
        os.getcwd(),
        sorted((name, value) for name, value in variables.items() if not _passes(name)),
    )
    return _folder() / f"{hashlib.sha256(repr(depends_on).encode()).hexdigest()[:24]}{SUFFIX}"


def _passes(name: str) -> bool:
    return name in PASSING or name.startswith(PASSING_FAMILIES)
