"""RAM: the memory that this process may use, which a cgroup or a resource limit may bound.

Linux reports all of it under /proc and /sys/fs/cgroup (versions 1 and 2). Other systems with `sysconf` report the
physical memory only; the free part of it is not known there.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple, final

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


class _Files(NamedTuple):
    """Names of a cgroup's files; `idle` is the entry of `stat` for page cache that is given up first."""

    limit: str
    usage: str
    stat: str
    idle: str


_FILES_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file")
_FILES_2 = _Files("memory.max", "memory.current", "memory.stat", "inactive_file")


class HardLimit(ABC):
    """Limit on the memory of this process that can be asked often.

    Attributes:
        name: its name in messages.
        limit_bytes: the most bytes that it allows, as it was when it was found.
        kills: whether the kernel kills the process beyond it; if not, requests for memory fail.
    """

    kills: bool = False

    def __init__(self, name: str, limit_bytes: int) -> None:
        self.name = name
        self.limit_bytes = limit_bytes

    def now_bytes(self) -> int:
        """Return the most bytes that it allows now."""
        return self.limit_bytes

    @abstractmethod
    def left_bytes(self) -> int:
        """Return the bytes that may still be taken now; below 0 if the limit is passed."""


@final
class CgroupLimit(HardLimit):
    """Limit of a memory cgroup.

    Args:
        folder: folder of the cgroup.
        files: the names of its files.
    """

    kills = True

    def __init__(self, name: str, limit_bytes: int, folder: Path, files: _Files) -> None:
        super().__init__(name, limit_bytes)
        self._folder, self._files = folder, files

    def now_bytes(self) -> int:
        """See HardLimit."""
        self.limit_bytes = _first_int(self._folder / self._files.limit) or self.limit_bytes
        return self.limit_bytes

    def left_bytes(self) -> int:
        """See HardLimit. Page cache that the kernel gives up first counts as left."""
        folder, files = self._folder, self._files
        self.now_bytes()
        used_bytes = _first_int(folder / files.usage) or 0
        idle_bytes = _counts_in(folder / files.stat).get(files.idle, 0)
        return self.limit_bytes - max(0, used_bytes - idle_bytes)


@final
class ResourceLimit(HardLimit):
    """Soft resource limit of this process.

    Args:
        status: file with the sizes of this process.
        held: name of the size that is limited.
    """

    def __init__(self, name: str, limit_bytes: int, status: Path, held: str) -> None:
        super().__init__(name, limit_bytes)
        self._status, self._held = status, held

    def left_bytes(self) -> int:
        """See HardLimit."""
        return self.limit_bytes - _sizes_in(self._status).get(self._held, 0)


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
    limits = (*_cgroup_limits(root), *_resource_limits(root))
    return (_physical(root), *(MemoryBound(each.name, each.limit_bytes, each.left_bytes()) for each in limits))


def hard_limits(root: Path = Path("/")) -> tuple[HardLimit, ...]:
    """Return the limits below the physical memory: beyond a cgroup's, the kernel kills; beyond others, requests fail.

    Args:
        root: folder of /proc and /sys.
    """
    total_bytes = _physical(root).capacity_bytes
    found = (*_cgroup_limits(root), *_resource_limits(root))
    return tuple(limit for limit in found if limit.limit_bytes < total_bytes)


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


def _resource_limits(root: Path) -> Iterator[ResourceLimit]:
    if sys.platform == "win32":
        return
    for name, held in (("RLIMIT_DATA", "VmData"), ("RLIMIT_AS", "VmSize")):
        soft_bytes, _ = resource.getrlimit(getattr(resource, name))
        if soft_bytes != resource.RLIM_INFINITY:
            yield ResourceLimit(name, soft_bytes, root / "proc/self/status", held)


def _cgroup_limits(root: Path) -> Iterator[CgroupLimit]:
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


def _of_hierarchy(mount: Path, mount_root: str, path: str, files: _Files) -> Iterator[CgroupLimit]:
    """Yield the limits from the process's cgroup up to the mount; only that of the mount if the path is hidden."""
    own = PurePosixPath(path)
    below = own.relative_to(mount_root) if own.is_relative_to(mount_root) else PurePosixPath()
    for level in (below, *below.parents):
        limit_bytes = _first_int(mount / level / files.limit)
        if limit_bytes is not None and limit_bytes < _NO_LIMIT_BYTES:
            yield CgroupLimit(f"memory cgroup {PurePosixPath('/') / level}", limit_bytes, mount / level, files)


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
