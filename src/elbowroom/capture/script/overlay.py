"""Overlay: two layers of files: a script writes into a folder of the estimate, over the computer's files.

The folder is the upper layer, the computer's files are the lower one. A path of the script names the upper file if
there is one, else the lower one, else nothing. A file that is changed is copied up first. A removed file is hidden, and
a renamed one is looked up under its old name. No lower file is ever written.

Paths are the script's: absolute, with symbolic links followed through both layers together.
"""

from __future__ import annotations

import errno
import posixpath
import stat
from collections.abc import Sequence
from contextlib import suppress
from os import O_CREAT, O_EXCL, O_RDONLY, O_TRUNC, O_WRONLY, fsdecode, fspath, strerror
from os import chmod as _chmod
from os import close as _close
from os import getcwd as _getcwd
from os import link as _link
from os import listdir as _listdir
from os import lstat as _lstat
from os import mkdir as _mkdir
from os import open as _open
from os import read as _read
from os import readlink as _readlink
from os import rename as _rename
from os import rmdir as _rmdir
from os import symlink as _symlink
from os import unlink as _unlink
from os import utime as _utime
from os import write as _write
from threading import RLock
from typing import Any, final

SYSTEM = ("/dev", "/proc", "/sys")
"""Folders without a user's file."""

MAX_COPY_BYTES = 4 * 2**30
"""Most bytes of a file that is copied up: larger ones would take minutes and fill the disk."""

_LINKS = 40
_PIECE_BYTES = 2**20


def error(number: int, path: Any, other: Any = None) -> OSError:
    """Make the error that the operating system would raise for a path, or for two."""
    if other is None:
        return OSError(number, strerror(number), fspath(path))
    return OSError(number, strerror(number), fspath(path), None, fspath(other))


@final
class Overlay:
    """Two layers of files, as one script sees them.

    Args:
        folder: a folder of the estimate. Paths in it, and in `SYSTEM`, are used as they are.
        others: further folders of that kind.
    """

    def __init__(self, folder: str, others: Sequence[str] = ()) -> None:
        self.folder = posixpath.abspath(folder)
        self.upper = f"{self.folder}/written"
        self.working = _getcwd()
        self.lock = RLock()
        self._lower: dict[str, str | None] = {}
        self._parents: dict[str, str] = {}
        self._touched = False
        self._own = (self.folder, *SYSTEM, *others)
        with suppress(FileExistsError):
            _mkdir(self.upper)

    # Names

    def absolute(self, path: Any, dir_fd: int | None = None) -> str:
        """Return an absolute path, links not followed; a path of the upper layer becomes that of its file."""
        text = fsdecode(path)
        if not text:
            return text
        if not text.startswith("/"):
            text = f"{self.working if dir_fd is None else _readlink(f'/proc/self/fd/{dir_fd}')}/{text}"
        if text.startswith(self.upper):
            text = text[len(self.upper) :] or "/"
        return text

    def is_own(self, path: str) -> bool:
        """Return whether an absolute path is used as it is."""
        return any(path == place or path.startswith(f"{place}/") for place in self._own)

    def name(self, path: str, *, follow: bool = True) -> str:
        """Return the one name of an absolute path: links of its folders are followed, its own link if `follow`."""
        head, tail = posixpath.split(path.rstrip("/") or "/")
        if tail in ("", ".", ".."):
            return self._followed(path)
        parent = self._parents.get(head)
        if parent is None:
            parent = self._parents[head] = self._followed(head)
        name = posixpath.join(parent, tail)
        return self._followed(name) if follow and self._is_link(name) else name

    def _followed(self, path: str, links: int = 0) -> str:
        at = "/"
        for part in path.split("/"):
            if part == "..":
                if not self.is_own(at) and not self.is_folder(at):
                    raise error(errno.ENOENT if self.status(at) is None else errno.ENOTDIR, path)
                at = posixpath.dirname(at)
            elif part not in ("", "."):
                at = posixpath.join(at, part)
                if self._is_link(at):
                    if links >= _LINKS:
                        raise error(errno.ELOOP, path)
                    target = _readlink(self.place(at))
                    at = self._followed(posixpath.join(posixpath.dirname(at), target), links + 1)
        return at

    def _is_link(self, name: str) -> bool:
        if self.is_own(name):
            return False
        status = _status(self.place(name))
        return status is not None and stat.S_ISLNK(status.st_mode)

    # Layers

    def above(self, name: str) -> str:
        """Return where a name is in the upper layer, or would be."""
        return self.upper + name

    def below(self, name: str) -> str | None:
        """Return where a name is in the lower layer, or would be; None if it is hidden."""
        at = name
        while self._lower:
            if at in self._lower:
                lower = self._lower[at]
                return None if lower is None else lower + name[len(at) :]
            if at == "/":
                break
            at = posixpath.dirname(at)
        return name

    def place(self, name: str) -> str:
        """Return the path at which to read a name; if it does not exist, the path does not either."""
        above, below = self.above(name), self.below(name)
        if not self._touched or below is None:
            return below or above
        if _status(above) is not None or (_status(below) is None and _status(posixpath.dirname(above)) is not None):
            return above
        return below

    def status(self, name: str) -> Any:
        """Return the `lstat` of a name; None if it does not exist."""
        return _status(self.place(name))

    def is_folder(self, name: str) -> bool:
        """Return whether a name is a folder."""
        status = self.status(name)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def reading(self, path: Any, *, follow: bool = True, dir_fd: int | None = None) -> Any:
        """Return the path to read in place of a path of the script."""
        if not self._touched and dir_fd is None:
            return path
        absolute = self.absolute(path, dir_fd)
        if not absolute or self.is_own(absolute):
            return absolute
        name = self.name(absolute, follow=follow)
        return absolute if self.is_own(name) else self.place(name)

    def written(self, path: Any) -> str | None:
        """Return the folder of the upper layer for a path; None if it has none."""
        if not self._touched:
            return None
        absolute = self.absolute(path)
        above = self.above(absolute if self.is_own(absolute) else self.name(absolute))
        return above if _is_folder(above) else None

    def entries(self, path: Any) -> list[str] | None:
        """Return the names in a folder that has some in both layers; None if one layer has them all: see `reading`."""
        if not self._touched:
            return None
        absolute = self.absolute(path)
        if self.is_own(absolute):
            return None
        name = self.name(absolute)
        moved = {posixpath.basename(key): lower for key, lower in self._lower.items() if posixpath.dirname(key) == name}
        above, below = self.above(name), self.below(name)
        if not moved and (below is None or not _is_folder(above) or not _is_folder(below)):
            return None
        if not self.is_folder(name):
            return None
        found = set(_listdir(below)) if below is not None and _is_folder(below) else set[str]()
        found -= moved.keys()
        found |= {each for each, lower in moved.items() if lower is not None and _status(lower) is not None}
        return sorted(found | set(_listdir(above) if _is_folder(above) else ()))

    # Changes

    def target(self, path: Any, *, follow: bool = True, dir_fd: int | None = None) -> str | None:
        """Return the name of a file that is going to be changed; None if the path is used as it is."""
        absolute = self.absolute(path, dir_fd)
        if not absolute or self.is_own(absolute):
            return None
        name = self.name(absolute, follow=follow)
        return None if self.is_own(name) else name

    def writing(self, name: str, flags: int, given: Any, mode: int = 0o666) -> str:
        """Return where to open a file for writing; `flags` of `os.open` say whether its content is kept."""
        with self.lock:
            place = self.place(name)
            status = _status(place)
            if status is None:
                if not flags & O_CREAT:
                    raise error(errno.ENOENT, given)
                return self._new(name, given)
            if flags & O_CREAT and flags & O_EXCL:
                raise error(errno.EEXIST, given)
            above = self.above(name)
            if not stat.S_ISREG(status.st_mode) or place == above:
                return place
            self._folders(posixpath.dirname(name))
            if flags & O_TRUNC:
                _close(_open(above, O_WRONLY | O_CREAT, mode))
                _chmod(above, stat.S_IMODE(status.st_mode) | stat.S_IWUSR)
            else:
                _copy(place, above, status, given)
            return above

    def filling(self, name: str) -> str:
        """Return the folder in which files are written; it is made if it does not exist."""
        with self.lock:
            self._parents.clear()
            self._folders(name)
            return self.above(name)

    def changing(self, name: str, given: Any) -> str:
        """Return where to change an existing file, such as its times or mode; its content stays."""
        with self.lock:
            status = self.status(name)
            if status is None:
                raise error(errno.ENOENT, given)
            if stat.S_ISREG(status.st_mode):
                return self.writing(name, O_WRONLY, given)
            if stat.S_ISLNK(status.st_mode) and self.place(name) != self.above(name):
                target = _readlink(self.place(name))
                self._folders(posixpath.dirname(name))
                _symlink(target, self.above(name))
            if stat.S_ISDIR(status.st_mode):
                self._folders(name)
            return self.place(name)

    def making(self, name: str, given: Any) -> str:
        """Return where to make a folder, a link or a pipe."""
        with self.lock:
            if self.status(name) is not None:
                raise error(errno.EEXIST, given)
            self._parents.clear()
            return self._new(name, given)

    def remove(self, name: str, given: Any, *, folder: bool) -> None:
        """Remove a file, or an empty folder."""
        with self.lock:
            status = self.status(name)
            if status is None:
                raise error(errno.ENOENT, given)
            if stat.S_ISDIR(status.st_mode) != folder:
                raise error(errno.ENOTDIR if folder else errno.EISDIR, given)
            if folder and self._listed(name):
                raise error(errno.ENOTEMPTY, given)
            self._discard(name)
            self._hide(name, None)

    def rename(self, source: str, target: str, given: Any, to: Any) -> None:
        """Rename a file or folder; one that had the new name is replaced."""
        with self.lock:
            status = self.status(source)
            if status is None:
                raise error(errno.ENOENT, given, to)
            if source == target:
                return
            is_folder = stat.S_ISDIR(status.st_mode)
            if is_folder and target.startswith(f"{source}/"):
                raise error(errno.EINVAL, given, to)
            self._move(source, target, self._instead(target, is_folder, given, to))

    def bring(self, source: str, target: str, given: Any, to: Any) -> None:
        """Give a file or folder of the estimate's own folder a name in the overlay."""
        with self.lock:
            status = _status(source)
            if status is None:
                raise error(errno.ENOENT, given, to)
            _rename(source, self._instead(target, stat.S_ISDIR(status.st_mode), given, to))

    def _instead(self, target: str, is_folder: bool | None, given: Any, to: Any) -> str:
        """Remove a file or empty folder that is replaced; return where its replacement goes.

        With `is_folder` None nothing may be there.
        """
        try:
            other = self.status(target)
            if other is not None:
                if is_folder is None:
                    raise error(errno.EEXIST, to)
                if stat.S_ISDIR(other.st_mode) != is_folder:
                    raise error(errno.ENOTDIR if is_folder else errno.EISDIR, to)
                self.remove(target, to, folder=is_folder)
            return self._new(target, to)
        except OSError as problem:
            raise error(problem.errno or 0, given, to) from None

    def link(self, source: str, target: str, given: Any, to: Any) -> None:
        """Link a file under a further name."""
        with self.lock:
            place = source if self.is_own(source) else self.place(source)
            status = _status(place)
            if status is None:
                raise error(errno.ENOENT, given, to)
            above = self._instead(target, None, given, to)
            if stat.S_ISDIR(status.st_mode):
                raise error(errno.EPERM, given, to)
            _link(source if self.is_own(source) else self.changing(source, given), above, follow_symlinks=False)

    def enter(self, path: Any) -> str:
        """Make a folder the working one; return its real path."""
        absolute = self.absolute(path)
        name = absolute if self.is_own(absolute) else self.name(absolute)
        place = name if self.is_own(name) else self.place(name)
        self.working = name
        below = self.below(name)
        return below if below is not None and _is_folder(below) else place

    # The tables

    def _new(self, name: str, given: Any) -> str:
        """Return where a new entry goes; its folder must exist."""
        parent = posixpath.dirname(name)
        status = self.status(parent)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise error(errno.ENOENT if status is None else errno.ENOTDIR, given)
        self._folders(parent)
        return self.above(name)

    def _folders(self, name: str) -> None:
        """Make a folder in the upper layer, with those above it."""
        self._touched = True
        above = self.above(name)
        if _status(above) is None:
            if name != "/":
                self._folders(posixpath.dirname(name))
            with suppress(FileExistsError):
                _mkdir(above)

    def _listed(self, name: str) -> list[str]:
        merged = self.entries(name)
        return _listdir(self.place(name)) if merged is None else merged

    def _discard(self, name: str) -> None:
        """Empty the upper layer at a name; a folder that seems empty may hold hidden folders' shells."""
        above = self.above(name)
        status = _status(above)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            _unlink(above)
            return
        for each in _listdir(above):
            self._discard(posixpath.join(name, each))
        _rmdir(above)

    def _hide(self, name: str, lower: str | None) -> None:
        """Make a name stand for another lower path, or for none; entries for names below it are dropped."""
        for key in [key for key in self._lower if key.startswith(f"{name}/")]:
            del self._lower[key]
        self._lower[name] = lower
        self._touched = True
        self._parents.clear()

    def _move(self, source: str, target: str, above: str) -> None:
        below = self.below(source)
        within = {key: lower for key, lower in self._lower.items() if key.startswith(f"{source}/")}
        if _status(self.above(source)) is not None:
            _rename(self.above(source), above)
        self._hide(target, below if below is not None and _status(below) is not None else None)
        for key, lower in within.items():
            self._lower[target + key[len(source) :]] = lower
        self._hide(source, None)


def _status(path: str) -> Any:
    try:
        return _lstat(path)
    except (OSError, ValueError):
        return None


def _is_folder(path: str) -> bool:
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _copy(source: str, target: str, status: Any, given: Any) -> None:
    """Copy a file with its mode and times."""
    if status.st_size > MAX_COPY_BYTES:
        raise OSError(
            errno.EFBIG,
            f"an estimate changes a copy of a file, and this one is too large to copy ({status.st_size} bytes; allowed "
            f"are {MAX_COPY_BYTES}); open it for reading where ELBOWROOM_ESTIMATE is set",
            given,
        )
    reader = _open(source, O_RDONLY)
    try:
        writer = _open(target, O_WRONLY | O_CREAT | O_TRUNC, 0o600)
        try:
            while piece := _read(reader, _PIECE_BYTES):
                _write(writer, piece)
        finally:
            _close(writer)
    finally:
        _close(reader)
    _chmod(target, stat.S_IMODE(status.st_mode) | stat.S_IWUSR)
    _utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
