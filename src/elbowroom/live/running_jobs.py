"""Running jobs: small files that name the runs of this user on this computer, so that `elbowroom watch` finds them.

A file has mode 0600, as it holds the token of the run's page. It is removed as the run ends. Files of processes that
are gone are removed when the runs are listed. A process that has got the number of another began at another time.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from elbowroom.files.cache_folder import VARIABLE, cache_folder

MOST_BYTES = 1 << 16
"""A larger file is not one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A run that goes on.

    Attributes:
        process: number of its process.
        began: when the process began, as the system counts it: proc(5), starttime; "" where nothing says it.
        computer: name of the computer, as home folders may be shared.
        script: the script, as it was named.
        port: port of its page on 127.0.0.1.
        token: what its page asks for.
    """

    process: int
    began: str
    computer: str
    script: str
    port: int
    token: str

    @classmethod
    def here(cls, script: str, port: int, token: str) -> RunningJob:
        """Describe a run of this process."""
        process = os.getpid()
        return cls(
            process=process,
            began=began_of(process) or "",
            computer=socket.gethostname(),
            script=script,
            port=port,
            token=token,
        )

    def goes_on(self) -> bool:
        """Return whether its process is there."""
        return began_of(self.process) == self.began


def folder() -> Path:
    """Return the folder of these files: in XDG_RUNTIME_DIR, or else in the cache folder.

    Raises:
        FileNotFoundError: there is neither.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and not os.environ.get(VARIABLE) and os.path.isdir(runtime):
        return Path(runtime) / "elbowroom"
    return cache_folder() / "running"


def announce(job: RunningJob) -> Path:
    """Write the file of a run. Raises OSError."""
    place = folder()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = place / f"{job.process}-{secrets.token_hex(4)}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(job), file)
    return path


def running_jobs() -> list[RunningJob]:
    """Return the runs of this user that go on here, the first one first. Files of those that are gone are removed."""
    return sorted(_found(), key=lambda job: (len(job.began), job.began, job.process))


def _found() -> Iterator[RunningJob]:
    try:
        paths = sorted(folder().glob("*.json"))
    except OSError:
        return
    for path in paths:
        job = _read(path)
        if job is None or job.computer != socket.gethostname():
            continue
        if job.goes_on():
            yield job
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _read(path: Path) -> RunningJob | None:
    """Read one file; None if it is not one that this user's runs have written."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o077 or status.st_size > MOST_BYTES:
                return None
            values: Any = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError):
        return None
    if not isinstance(values, dict):
        return None
    named = cast("dict[str, Any]", values)
    kinds = {"process": int, "began": str, "computer": str, "script": str, "port": int, "token": str}
    if named.keys() != kinds.keys() or any(type(named[name]) is not kind for name, kind in kinds.items()):
        return None
    return RunningJob(**named)


def began_of(process: int) -> str | None:
    """Return when a process began, as the system counts it; None if it is not there, "" where nothing says it."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    try:
        stat = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
