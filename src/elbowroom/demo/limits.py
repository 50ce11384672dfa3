"""Limits: a hard memory limit around a command, which needs no change for it.

A memory cgroup counts the memory of the processes in it, swap included. When it is used up, the kernel kills them.
Making a cgroup needs rights that root has, and that users have in their own systemd session. Elsewhere RLIMIT_DATA is
set: it counts writable private address space, and allocation fails in the process itself.

A shell enters the limit and then becomes the command, so all of the command's memory counts.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from elbowroom.errors import UsageError

Kind = Literal["memory cgroup v2", "memory cgroup v1", "RLIMIT_DATA"]
MOUNTS = Path("/proc/self/mounts")
OWN_GROUPS = Path("/proc/self/cgroup")


class CommandLimit(ABC):
    """A limit under which commands can be run."""

    kind: Kind
    limit_bytes: int

    @abstractmethod
    def wrap(self, command: list[str]) -> list[str]:
        """Return the command that runs another one under this limit."""

    def works(self) -> bool:
        """Return whether a command can be started under it."""
        done = subprocess.run(self.wrap(["true"]), stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return done.returncode == 0


@final
class DataLimit(CommandLimit):
    """RLIMIT_DATA."""

    kind: Kind = "RLIMIT_DATA"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes // 1024 * 1024

    def wrap(self, command: list[str]) -> list[str]:
        return ["sh", "-c", 'ulimit -d "$0" && exec "$@"', str(self.limit_bytes // 1024), *command]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The files in which a version of cgroups keeps its limits.

    Attributes:
        settings: files and values to write, in this order; {} stands for the limit. Optional files may be absent.
    """

    kind: Kind
    limit_file: str
    settings: tuple[tuple[str, str, bool], ...]


V1 = Version(
    kind="memory cgroup v1",
    limit_file="memory.limit_in_bytes",
    # memsw counts memory and swap together; it exists if the kernel accounts for swap.
    settings=(("memory.limit_in_bytes", "{}", False), ("memory.memsw.limit_in_bytes", "{}", True)),
)
V2 = Version(
    kind="memory cgroup v2",
    limit_file="memory.max",
    settings=(("memory.max", "{}", False), ("memory.swap.max", "0", True), ("memory.oom.group", "1", True)),
)


@final
class GroupLimit(CommandLimit):
    """A memory cgroup of our own."""

    def __init__(self, folder: Path, version: Version, limit_bytes: int) -> None:
        self.folder = folder
        self.kind = version.kind
        for name, value, optional in version.settings:
            if not optional or (folder / name).exists():
                (folder / name).write_text(value.format(limit_bytes))
        self.limit_bytes = int((folder / version.limit_file).read_text())

    def wrap(self, command: list[str]) -> list[str]:
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *command]


@contextmanager
def hard_limit(limit_bytes: int, kind: Kind) -> Iterator[CommandLimit]:
    """Set a limit of a kind that `available_kind` found; a group that was made for it is removed at the end.

    Raises:
        UsageError: this kind is not available any more.
    """
    if kind == "RLIMIT_DATA":
        yield DataLimit(limit_bytes)
        return
    for folder, version in _places():
        if version.kind != kind or (made := _made(folder, version, limit_bytes)) is None:
            continue
        try:
            yield made
        finally:
            _remove(made.folder)
        return
    raise UsageError(f"demo: given a limit by {kind}, which is not there any more; start the demo again")


def available_kind() -> Kind:
    """Find by trial the strictest kind of limit that this process may set."""
    for folder, version in _places():
        made = _made(folder, version, 2**30)
        if made is not None:
            _remove(made.folder)
            return version.kind
    return "RLIMIT_DATA"


def _made(parent: Path, version: Version, limit_bytes: int) -> GroupLimit | None:
    """Make a group in a parent in which a command can be started; None, with nothing left behind, if that fails."""
    folder = parent / f"elbowroom-demo-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        made = GroupLimit(folder, version, limit_bytes)
        if made.works():
            return made
    except (OSError, ValueError):
        pass
    _remove(folder)
    return None


def _remove(folder: Path) -> None:
    """Remove a group; the kernel may take a moment to release the last process."""
    for _ in range(50):
        try:
            folder.rmdir()
        except OSError as problem:
            if problem.errno != errno.EBUSY:
                raise
            time.sleep(0.05)
        else:
            return


def _places() -> Iterator[tuple[Path, Version]]:
    """Yield groups in which a group may be made: for each mount its root, then the process's group, then those above.

    In version 2 a group that has processes cannot have groups with limits. So the groups above are tried too.
    """
    own = _own_groups()
    for line in MOUNTS.read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            yield from ((place, V1) for place in _upwards(Path(mount), own.get("memory", "/")))
        elif kind == "cgroup2":
            yield from ((place, V2) for place in _upwards(Path(mount), own.get("", "/")))


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    yield mount
    place = mount / group.lstrip("/")
    while place != mount and mount in place.parents:
        yield place
        place = place.parent


def _own_groups() -> dict[str, str]:
    """Return this process's group by controller; that of version 2 is under ""."""
    found: dict[str, str] = {}
    for line in OWN_GROUPS.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = group
    return found
