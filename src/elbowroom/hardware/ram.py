"""RAM: the memory that this process may use, which a cgroup or a resource limit may bound.

Linux reports all of it under /proc and /sys/fs/cgroup (versions 1 and 2). Other systems with `sysconf` report the
physical memory only; the free part of it is not known there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from elbowroom.errors import UsageError

if sys.platform != "win32":
    import resource

_NO_LIMIT_BYTES = 2**62
"""Cgroups of version 1 write "no limit" as the largest multiple of a page below 2**63."""


class MemoryBound(NamedTuple):
    """One thing that bounds the memory of this process.

    Attributes:
        name: its name in messages.
        capacity_bytes: the most that the process may hold because of it.
        free_bytes: the most that the process could still take now.
    """

    name: str
    capacity_bytes: int
    free_bytes: int


def capacity_bytes() -> int:
    """Return the most memory that this process may hold."""
    return min(bound.capacity_bytes for bound in bounds())


def free_bytes() -> int:
    """Return the memory that this process could still take now; 0 if a limit is already passed."""
    return max(0, min(bound.free_bytes for bound in bounds()))


def bounds(root: Path = Path("/")) -> tuple[MemoryBound, ...]:
    """Return all bounds on the memory of this process, the physical memory first.

    Args:
        root: folder of /proc and /sys.

    Raises:
        UsageError: this system does not report its physical memory.
    """
    status = _sizes_in(root / "proc/self/status")
    return (_physical(root), *_of_cgroups(root), *_of_resource_limits(status))


def _physical(root: Path) -> MemoryBound:
    sizes = _sizes_in(root / "proc/meminfo")
    if "MemTotal" in sizes:
        return MemoryBound("physical memory", sizes["MemTotal"], sizes.get("MemAvailable", sizes["MemTotal"]))
    if sys.platform == "win32" or "SC_PHYS_PAGES" not in os.sysconf_names:
        raise UsageError(
            "this computer's memory: the system does not report it; allowed are systems with /proc/meminfo or sysconf; "
            "load a machine from a file instead"
        )
    total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MemoryBound("physical memory", total_bytes, total_bytes)


def _of_resource_limits(status: dict[str, int]) -> Iterator[MemoryBound]:
    if sys.platform == "win32":
        return
    for name, held in (("RLIMIT_DATA", "VmData"), ("RLIMIT_AS", "VmSize")):
        soft_bytes, _ = resource.getrlimit(getattr(resource, name))
        if soft_bytes != resource.RLIM_INFINITY:
            yield MemoryBound(name, soft_bytes, soft_bytes - status.get(held, 0))


def _of_cgroups(root: Path) -> Iterator[MemoryBound]:
    """Yield the limits of the cgroups of this process, from its own up to the top that can be seen."""
    paths = _cgroup_paths(root)
    for line in _lines(root / "proc/self/mountinfo"):
        mounted, _, kind = line.partition(" - ")
        file_system, _, options = [*kind.split(), "", "", ""][:3]
        fields = mounted.split()
        if len(fields) < 5 or not (file_system == "cgroup2" or "memory" in options.split(",")):
            continue
        files = _FILES_2 if file_system == "cgroup2" else _FILES_1
        if file_system in paths:
            yield from _of_hierarchy(root / fields[4].lstrip("/"), fields[3], paths[file_system], files)


def _cgroup_paths(root: Path) -> dict[str, str]:
    """Return this process's path in the hierarchy that limits memory, by the hierarchy's file system."""
    paths: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in controllers.split(","):
            paths["cgroup"] = path
        elif number == "0" and not controllers:
            paths["cgroup2"] = path
    return paths


class _Files(NamedTuple):
    """Names of a cgroup's files; `idle` is the entry of `stat` for page cache that is given up first."""

    limit: str
    usage: str
    stat: str
    idle: str


_FILES_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file")
_FILES_2 = _Files("memory.max", "memory.current", "memory.stat", "inactive_file")


def _of_hierarchy(mount: Path, mount_root: str, path: str, files: _Files) -> Iterator[MemoryBound]:
    """Yield the limits from the process's cgroup up to the mount; only that of the mount if the path is hidden."""
    own = PurePosixPath(path)
    below = own.relative_to(mount_root) if own.is_relative_to(mount_root) else PurePosixPath()
    for level in (below, *below.parents):
        limit_bytes = _first_int(mount / level / files.limit)
        if limit_bytes is None or limit_bytes >= _NO_LIMIT_BYTES:
            continue
        used_bytes = _first_int(mount / level / files.usage) or 0
        idle_bytes = _counts_in(mount / level / files.stat).get(files.idle, 0)
        left_bytes = limit_bytes - max(0, used_bytes - idle_bytes)
        yield MemoryBound(f"memory cgroup {PurePosixPath('/') / level}", limit_bytes, left_bytes)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def _first_int(path: Path) -> int | None:
    """Return the number that a file holds; None if there is no such file or it says "max"."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _counts_in(path: Path) -> dict[str, int]:
    """Parse lines such as "inactive_file 4096"."""
    pairs = [line.split() for line in _lines(path)]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _sizes_in(path: Path) -> dict[str, int]:
    """Parse the bytes in lines such as "MemTotal:  24684096 kB"."""
    rows = [line.replace(":", " ").split() for line in _lines(path)]
    return {row[0]: int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB" and row[1].isdecimal()}
