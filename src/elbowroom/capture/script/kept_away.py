"""Kept away: acts that an estimate keeps a script from: the network, loggers' runs, writes past the overlay.

Python announces its calls before it makes them (audit events, PEP 578), under any name and from any code. A call to
another computer is refused as if there were no network. A call that would change a file outside the estimate is refused
as if it was not permitted. Environment variables turn off libraries that are known to start runs elsewhere.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import getcwd as _getcwd
from typing import Any, final


class Replaced(BaseException):
    """A script replaces its process by another program (`os.exec`), which would train for real."""


VARIABLE = "ELBOWROOM_ESTIMATE"
"""Environment variable that is 1 for a script that is estimated."""
NO_NETWORK = "an estimate does not use the network"
NO_WRITE = "an estimate writes no file of yours"

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LOCAL = ("", "localhost", "localhost.localdomain", "ip6-localhost", "broadcasthost")


def surroundings(folder: str, *, network: bool = False) -> dict[str, str]:
    """Return the environment variables of an estimated script.

    Args:
        folder: folder of the estimate.
        network: whether it may use the network.
    """
    temporary = os.path.join(folder, "tmp")
    offline = {} if network else {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return offline | {
        VARIABLE: "1",
        "TMPDIR": temporary,
        "TEMP": temporary,
        "TMP": temporary,
        "TORCH_EXTENSIONS_DIR": os.path.join(folder, "extensions"),
        "WANDB_MODE": "disabled",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"file://{folder}/mlruns",
        "COMET_AUTO_LOG_DISABLE": "1",
        "NEPTUNE_MODE": "debug",
        "CLEARML_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "disabled",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def loggers_off(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which a logger's call starts no run, in place of the script's."""
    forced = {"wandb": {"mode": "disabled"}, "swanlab": {"mode": "disabled"}, "neptune": {"mode": "debug"}}
    return {**arguments, **forced.get(name, {})}


_opening = threading.local()


@contextmanager
def through_opener() -> Iterator[None]:
    """Allow an `open` with an opener: Python announces the path first, and then the file that the opener opens."""
    before = getattr(_opening, "on", False)
    _opening.on = True
    try:
        yield
    finally:
        _opening.on = before


@final
class CallGuard:
    """Refuses calls of this process from here to its end.

    Args:
        own: folders in which files may change.
        network: whether other computers may be called.
        refused: called with each refusal, in a few words.
    """

    def __init__(self, own: tuple[str, ...], *, network: bool, refused: Callable[[str], None]) -> None:
        self._own = own
        self._refused = refused
        self._resolving = False
        self._process = os.getpid()
        self._events: dict[str, Callable[[tuple[Any, ...]], None]] = {
            "open": self._opens,
            "os.exec": self._replaces,
            "os.symlink": self._links,
            **dict.fromkeys(_CHANGES, self._changes),
        }
        if not network:
            names = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
            self._events |= dict.fromkeys(names, self._looks_up)
            self._events |= dict.fromkeys(("socket.connect", "socket.sendto", "socket.sendmsg"), self._calls)

    def start(self) -> None:
        """Listen to every call; an audit hook cannot be removed."""
        sys.addaudithook(self._on_audit_event)

    def _on_audit_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        check = self._events.get(event)
        if check is not None:
            check(arguments)

    def _replaces(self, arguments: tuple[Any, ...]) -> None:
        if os.getpid() == self._process:
            raise Replaced(os.fsdecode(arguments[0]))

    # Files

    def _opens(self, arguments: tuple[Any, ...]) -> None:
        path, mode, flags = arguments
        given_to_opener = mode is not None and getattr(_opening, "on", False)
        if flags & WRITING and not given_to_opener:
            self._check(path)

    def _changes(self, arguments: tuple[Any, ...]) -> None:
        for path in arguments[:2]:
            self._check(path)

    def _links(self, arguments: tuple[Any, ...]) -> None:
        self._check(arguments[1])  # its target stays as it is

    def _check(self, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        text = os.path.normpath(os.path.join(_getcwd(), os.fsdecode(path)))
        if not any(text == place or text.startswith(f"{place}/") for place in self._own):
            self._refused(f"a write past Python's own calls on files: {text}")
            raise PermissionError(errno.EACCES, NO_WRITE, text)

    # The network

    def _looks_up(self, arguments: tuple[Any, ...]) -> None:
        host = arguments[0]
        if not self._is_local(host):
            self._refused(f"the network: {_shown(host)}")
            raise socket.gaierror(socket.EAI_FAIL, f"{NO_NETWORK}: {_shown(host)}")

    def _calls(self, arguments: tuple[Any, ...]) -> None:
        address = arguments[1]
        if isinstance(address, tuple) and address and not self._is_local(address[0]):
            self._refused(f"the network: {_shown(address[0])}")
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{NO_NETWORK}: {_shown(address[0])}")

    def _is_local(self, host: Any) -> bool:
        name = _shown(host)
        if host is None or self._resolving or name.lower() in _LOCAL:
            return True
        if name == socket.gethostname() or name == os.uname().nodename:
            return True
        try:
            address = ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            return False
        return address.is_loopback or address.is_unspecified or name in self._addresses()

    def _addresses(self) -> list[str]:
        self._resolving = True
        try:
            with suppress(OSError):
                return socket.gethostbyname_ex(socket.gethostname())[2]
            return []
        finally:
            self._resolving = False


_CHANGES = (
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.chmod"),
    *("os.chown", "os.utime", "os.setxattr", "os.removexattr"),
)
"""Events whose first argument, or first two, are paths that change."""


def _shown(host: Any) -> str:
    return host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
