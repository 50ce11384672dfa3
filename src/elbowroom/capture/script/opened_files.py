"""Opened files: Python's calls on files with an overlay below them: `open`, `os.*`, and code that uses these.

pathlib, shutil, tempfile, logging, numpy, pickle, json, zipfile and TensorBoard all use these calls. Modules that have
imported one of them by name get the new one too.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import posixpath
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, final

from elbowroom.capture.script.kept_away import WRITING, through_opener
from elbowroom.capture.script.overlay import Overlay, error

_real = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
_real_open = io.open


def install(overlay: Overlay, others: Mapping[int, Any] | None = None) -> None:
    """Have every Python call on files of this process see the overlay, from here to its end.

    Args:
        overlay: the layers.
        others: further functions to replace wherever a module has them, by id.
    """
    found = {name: made for name, made in _calls(overlay).items() if name in _real}
    replaced: dict[int, Any] = {id(_real_open): _opener(), **(others or {})}
    for name, made in found.items():
        replaced[id(_real[name])] = functools.wraps(_real[name])(made)
    for table in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        table |= {replaced[id(each)] for each in table if id(each) in replaced}
    # Functions of shutil that use file descriptors see one layer only.
    setattr(shutil, "_use_fd_functions", False)  # noqa: B010
    builtins.open = replaced[id(_real_open)]
    for module in list(sys.modules.values()):
        _take_over(module, replaced)


def _take_over(module: Any, replaced: dict[int, Any]) -> None:
    """Replace the old calls of a module by the new ones."""
    name = getattr(module, "__name__", "")
    if name.startswith(("elbowroom", "importlib", "_frozen")) or name in ("posix", "_io", "zipimport", "runpy"):
        return
    for attribute, value in list(getattr(module, "__dict__", {}).items()):
        if id(value) in replaced:
            setattr(module, attribute, replaced[id(value)])


@contextmanager
def _about(given: Any, other: Any = None) -> Iterator[None]:
    """Make an error of the operating system name the given path, or both."""
    try:
        yield
    except OSError as problem:
        problem.filename = given if isinstance(given, int) else os.fspath(given)
        if other is not None:
            problem.filename2 = os.fspath(other)
        raise


# open


def _opener() -> Callable[..., Any]:
    @functools.wraps(_real_open)
    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[Any, int], int] | None = None,
    ) -> Any:
        if opener is None and not isinstance(file, int):
            opener = functools.partial(os.open, mode=0o666)  # the one of the overlay; the file keeps its name
        with through_opener():
            return _real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)

    return opened


def _os_open(overlay: Overlay) -> Callable[..., int]:
    def write(path: Any, flags: int, mode: int, dir_fd: int | None) -> int:
        to_link = flags & os.O_NOFOLLOW or (flags & os.O_CREAT and flags & os.O_EXCL)
        with _about(path):
            name = overlay.target(path, follow=not to_link, dir_fd=dir_fd)
            if name is None:
                return _real["open"](path, flags, mode, dir_fd=dir_fd)
            return _real["open"](overlay.writing(name, flags, path, mode), flags, mode)

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & WRITING or flags & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1):
            return write(path, flags, mode, dir_fd)
        with _about(path):
            return _real["open"](overlay.reading(path, dir_fd=dir_fd), flags, mode)

    return opened


# Calls that look

_BY_LINK = ("lstat", "readlink")
"""Calls that look at a link itself."""
LOOKING = ("stat", "lstat", "access", "readlink", "statvfs", "pathconf", "getxattr", "listxattr", "listdir")


def _looking(overlay: Overlay, name: str) -> Callable[..., Any]:
    real, of_links = _real[name], name in _BY_LINK

    def look(path: Any = ".", *args: Any, dir_fd: int | None = None, follow_symlinks: bool = True, **more: Any) -> Any:
        if isinstance(path, int):
            return real(path, *args, **more)
        if not follow_symlinks:
            more["follow_symlinks"] = False
        with _about(path):
            place = overlay.reading(path, follow=follow_symlinks and not of_links, dir_fd=dir_fd)
            return real(place, *args, **more)

    return look


def _listing(overlay: Overlay) -> Callable[..., list[Any]]:
    plain = _looking(overlay, "listdir")

    def listed(path: Any = ".") -> list[Any]:
        path = "." if path is None else path
        with _about(path):
            merged = None if isinstance(path, int) else overlay.entries(path)
        if merged is None:
            return plain(path)
        return [os.fsencode(each) for each in merged] if isinstance(path, bytes) else list(merged)

    return listed


@final
class _Entry:
    """One entry of a folder, as `os.DirEntry`."""

    def __init__(self, folder: Any, name: str) -> None:
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path: Any = posixpath.join(os.fspath(folder), self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def _is(self, kind: Callable[[int], bool], follow_symlinks: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except OSError:
            return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self._is(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        return False


@final
class _Entries:
    """The iterator of entries that `os.scandir` returns."""

    def __init__(self, found: Iterator[_Entry]) -> None:
        self._found = found

    def __iter__(self) -> Iterator[_Entry]:
        return self._found

    def __next__(self) -> _Entry:
        return next(self._found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        self._found = iter(())


def _scanning(overlay: Overlay) -> Callable[..., Any]:
    def scanned(path: Any = ".") -> Any:
        path = "." if path is None else path
        if isinstance(path, int):
            return _real["scandir"](path)
        with _about(path):
            merged = overlay.entries(path)
            if merged is None:
                place = overlay.reading(path)
                if place == path:
                    return _real["scandir"](path)
                merged = _real["listdir"](place)
        return _Entries(iter([_Entry(path, os.fsdecode(each)) for each in merged]))

    return scanned


# Calls that change


def _making(overlay: Overlay, name: str) -> Callable[..., Any]:
    """Make mkdir, mkfifo or mknod, which create an entry."""
    real = _real[name]

    def make(path: Any, *args: Any, dir_fd: int | None = None, **more: Any) -> Any:
        with _about(path):
            target = overlay.target(path, follow=False, dir_fd=dir_fd)
            if target is None:
                return real(path, *args, dir_fd=dir_fd, **more)
            return real(overlay.making(target, path), *args, **more)

    return make


def _symlinking(overlay: Overlay) -> Callable[..., Any]:
    def link(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        with _about(src, dst):
            target = overlay.target(dst, follow=False, dir_fd=dir_fd)
            if target is None:
                return _real["symlink"](src, dst, target_is_directory, dir_fd=dir_fd)
            return _real["symlink"](src, overlay.making(target, dst))

    return link


def _linking(overlay: Overlay) -> Callable[..., Any]:
    def link(
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        with _about(src, dst):
            source = overlay.target(src, follow=False, dir_fd=src_dir_fd)
            target = overlay.target(dst, follow=False, dir_fd=dst_dir_fd)
        if source is None and target is None:
            more = {"src_dir_fd": src_dir_fd, "dst_dir_fd": dst_dir_fd, "follow_symlinks": follow_symlinks}
            return _real["link"](src, dst, **more)
        if target is None:
            raise error(errno.EXDEV, src, dst)
        return overlay.link(overlay.absolute(src, src_dir_fd) if source is None else source, target, src, dst)

    return link


def _renaming(overlay: Overlay, name: str) -> Callable[..., Any]:
    def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        with _about(src, dst):
            source = overlay.target(src, follow=False, dir_fd=src_dir_fd)
            target = overlay.target(dst, follow=False, dir_fd=dst_dir_fd)
        if source is None and target is None:
            return _real[name](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if source is None:
            return overlay.bring(overlay.absolute(src, src_dir_fd), str(target), src, dst)
        if target is None:  # an error as between two disks, on which shutil.move copies
            raise error(errno.EXDEV, src, dst)
        return overlay.rename(source, target, src, dst)

    return rename


def _removing(overlay: Overlay, name: str) -> Callable[..., Any]:
    real, folder = _real[name], name == "rmdir"

    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        with _about(path):
            target = overlay.target(path, follow=False, dir_fd=dir_fd)
            if target is None:
                real(path, dir_fd=dir_fd)
            else:
                overlay.remove(target, path, folder=folder)

    return remove


CHANGING = ("chmod", "chown", "lchown", "utime", "truncate", "setxattr", "removexattr")


def _changing(overlay: Overlay, name: str) -> Callable[..., Any]:
    """Make chmod and the like, which change a copy in the overlay."""
    real = _real[name]

    def change(path: Any, *args: Any, dir_fd: int | None = None, follow_symlinks: bool = True, **more: Any) -> Any:
        if isinstance(path, int):
            return real(path, *args, **more)
        if not follow_symlinks:
            more["follow_symlinks"] = False
        with _about(path):
            target = overlay.target(path, follow=follow_symlinks and name != "lchown", dir_fd=dir_fd)
            if target is None:
                return real(path, *args, **({} if dir_fd is None else {"dir_fd": dir_fd}), **more)
            return real(overlay.changing(target, path), *args, **more)

    return change


def _entering(overlay: Overlay) -> Callable[..., Any]:
    def enter(path: Any) -> None:
        if isinstance(path, int):
            _real["fchdir"](path)
            overlay.working = overlay.absolute(_real["getcwd"]())
            return
        before = overlay.working
        try:
            with _about(path):
                _real["chdir"](overlay.enter(path))
        except OSError:
            overlay.working = before
            raise

    return enter


def _calls(overlay: Overlay) -> dict[str, Callable[..., Any]]:
    """Return every call of `os` that is replaced, by name."""
    found: dict[str, Callable[..., Any]] = {name: _looking(overlay, name) for name in LOOKING if name in _real}
    found |= {name: _changing(overlay, name) for name in CHANGING if name in _real}
    found |= {name: _making(overlay, name) for name in ("mkdir", "mkfifo", "mknod") if name in _real}
    found |= {name: _removing(overlay, name) for name in ("remove", "unlink", "rmdir")}
    found |= {name: _renaming(overlay, name) for name in ("rename", "replace")}
    return found | {
        "open": _os_open(overlay),
        "listdir": _listing(overlay),
        "scandir": _scanning(overlay),
        "symlink": _symlinking(overlay),
        "link": _linking(overlay),
        "chdir": _entering(overlay),
        "fchdir": _entering(overlay),
        "getcwd": lambda: overlay.working,
        "getcwdb": lambda: os.fsencode(overlay.working),
    }
