"""Record files: records to JSON text and back, by the type hints of their dataclasses. The format is docs/formats.md.

The text of a record is canonical: equal records give equal bytes. A file is not trusted. Sizes, types, names and counts
are checked before a record is built. Each fault is a FormatError that names the file.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Self, TypeVar, cast

from elbowroom.errors import FormatError, InvalidRecord
from elbowroom.files.codec import RefusedValue, decode_object, encode_object
from elbowroom.files.field_rules import shown
from elbowroom.files.older_versions import oldest_of, to_newest

R = TypeVar("R")

VERSIONS: Mapping[str, int] = {"trace": 9, "machine": 2, "plan": 2, "timeline": 3, "pareto": 1}
"""By name of the record, the version that is written; it is the newest that is read."""

MAX_FILE_BYTES = 256 * 2**20
"""Size of a file with about 1.5 million ops. A larger file is refused before it is parsed."""

ANSWERS = "elbowroom.answer."
"""Schemas of answers in JSON begin so."""
_REMEDY = "make the file again with elbowroom, its format is in docs/formats.md"


def encode(record: object) -> bytes:
    """Return the canonical text of a record: `save` writes it, and `Trace.id` is made from it."""
    kind = type(record)
    name = _name_of(kind)
    head: dict[str, object] = {"magic": f"elbowroom.{name}", "version": VERSIONS[name]}
    return json.dumps(head | encode_object(record), separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def save(record: object, path: str | os.PathLike[str]) -> None:
    """Write a record to a file, whole or not at all.

    Raises:
        FormatError: the file cannot be written, or would be larger than what `load` reads.
    """
    data = encode(record)
    if len(data) > MAX_FILE_BYTES:
        raise FormatError(
            f"{os.fspath(path)}: the {_name_of(type(record))} takes {len(data)} bytes as a file; allowed are "
            f"{MAX_FILE_BYTES}: record fewer steps"
        )
    try:
        write_whole(data, Path(path))
    except OSError as problem:
        raise FormatError(f"{os.fspath(path)}: cannot be written: {problem.strerror}; name another path") from problem


def load(path: str | os.PathLike[str], *kinds: type[R]) -> R:
    """Read the record of one of these kinds from a file.

    Raises:
        FormatError: the file cannot be read or holds something else.
    """
    name = os.fspath(path)
    try:
        return decode(_read(Path(path)), *kinds)
    except OSError as problem:
        raise FormatError(f"{name}: cannot be read: {problem.strerror}; check the path") from problem
    except FormatError as problem:
        raise FormatError(f"{name}: {problem}") from None


def decode(data: bytes, *kinds: type[R]) -> R:
    """Return the record in the text of a file; the inverse of `encode`."""
    content = _parse(data)
    _refuse_answer(content)
    kind = _kind_of(content.pop("magic", None), kinds)
    version = _checked_version(content.pop("version", None), kind)
    try:
        return cast("R", decode_object(kind, to_newest(_name_of(kind), version, content)))
    except (RefusedValue, InvalidRecord) as problem:
        raise FormatError(f"not a valid {_name_of(kind)}: {problem}; {_REMEDY}") from problem


class Filed:
    """A record that is a file of its own."""

    __slots__ = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this record to a file, whole or not at all.

        Raises:
            FormatError: the file cannot be written, or would be larger than what `load` reads.
        """
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a record of this kind from a file.

        Raises:
            FormatError: the file cannot be read or holds something else.
        """
        return load(path, cls)


def _name_of(kind: type) -> str:
    return kind.__name__.lower()


def why_no_file(path: str | os.PathLike[str]) -> str:
    """Say why a path is no file that can be read, such as "a folder"; "" if it is a file or does not exist.

    A pipe that is open already, such as /dev/stdin, counts as a file. A named pipe could wait for ever.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return ""
    if stat.S_ISDIR(mode):
        return "a folder"
    is_open = Path(path).absolute().is_relative_to("/dev") or Path(path).absolute().is_relative_to("/proc")
    return "a named pipe" if stat.S_ISFIFO(mode) and not is_open else ""


def _read(path: Path) -> bytes:
    if what := why_no_file(path):
        raise FormatError(f"it is {what}; allowed is the path of a file; check the path")
    with path.open("rb") as file:
        known_bytes = os.fstat(file.fileno()).st_size  # 0 of a pipe; a read asks for as much memory as it may fill
        data = file.read(min(known_bytes or MAX_FILE_BYTES, MAX_FILE_BYTES) + 1)
    if len(data) > MAX_FILE_BYTES:
        raise FormatError(f"larger than the {MAX_FILE_BYTES} bytes that are allowed; record fewer steps")
    return data


def _parse(data: bytes) -> dict[str, object]:
    if not data.strip():
        raise FormatError(f"the file is empty; {_REMEDY}")
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as problem:
        raise FormatError(f"not UTF-8 text (byte {problem.start}); {_REMEDY}") from None
    except RecursionError:
        raise FormatError(f"nested more deeply than any record is; {_REMEDY}") from None
    except ValueError as problem:
        raise FormatError(f"not JSON: {problem}; {_REMEDY}") from None
    if type(content) is not dict:
        raise FormatError(f"holds {shown(content)}; allowed is a JSON object; {_REMEDY}")
    return cast("dict[str, object]", content)


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        distinct: set[str] = set()
        for name, _ in pairs:
            if name in distinct:
                raise ValueError(f"the name {shown(name)} stands twice in one object")
            distinct.add(name)
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that records hold")


def _refuse_answer(content: dict[str, object]) -> None:
    """Raise FormatError for what a verb answered with --json, which is no record."""
    schema = content.get("schema")
    if isinstance(schema, str) and schema.startswith(ANSWERS):
        verb = schema.removeprefix(ANSWERS)
        said = "the answer of a command that failed" if verb == "error" else f"the answer of `elbowroom {verb} --json`"
        raise FormatError(
            f"given {said}; allowed is a record: a trace, a machine, a plan, a timeline or a curve; write one with -o "
            "(two answers of `elbowroom run --json` are compared by `elbowroom report`)"
        )


def _kind_of(magic: object, kinds: Sequence[type[R]]) -> type[R]:
    for kind in kinds:
        if magic == f"elbowroom.{_name_of(kind)}":
            return kind
    allowed = " or ".join(f"'elbowroom.{_name_of(kind)}'" for kind in kinds)
    given = "there is none" if magic is None else f"given {shown(magic)}"
    raise FormatError(f"magic: {given}; allowed is {allowed}; check that this is the file you meant")


def _checked_version(version: object, kind: type) -> int:
    newest = VERSIONS[_name_of(kind)]
    oldest = oldest_of(_name_of(kind), newest)
    allowed = f"{newest}" if oldest == newest else f"an int from {oldest} to {newest}"
    if type(version) is not int or version < oldest:
        raise FormatError(f"version: given {shown(version)}; allowed is {allowed}; {_REMEDY}")
    if version > newest:
        raise FormatError(
            f"version: given {shown(version)}, written by a newer elbowroom; allowed is {allowed}: upgrade"
        )
    return version


def write_whole(data: bytes, path: Path) -> None:
    """Write to a new file in the path's folder, then rename it; a pipe or a terminal is written to directly."""
    if path.exists() and not path.is_dir() and not stat.S_ISREG(path.stat().st_mode):
        path.write_bytes(data)
        return
    target = path.resolve()
    if target.is_dir():
        raise IsADirectoryError(0, "it is a directory")
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
