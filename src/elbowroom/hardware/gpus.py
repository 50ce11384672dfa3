"""GPUs by name: the table data/gpus.toml, and a user's own table of one GPU in the same form.

Case and separators of a name do not matter, nor do the words NVIDIA, GeForce and Tesla: "rtx4090", "RTX 4090" and
"NVIDIA GeForce RTX 4090" are the same. The table is read when the first name is looked up.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from elbowroom.errors import FormatError, UsageError
from elbowroom.files.field_rules import shown
from elbowroom.files.record_files import why_no_file
from elbowroom.hardware.gpu_table import (
    GIVEN,
    Eager,
    Gpu,
    LinkKind,
    OutsideBytes,
    eager_of,
    gpu_of,
    link_of,
    outside_of,
    table_of,
)

MAX_TABLE_BYTES = 2**20
"""Most bytes of a user's table. A larger file is refused before it is parsed."""

_NOISE = {"nvidia", "geforce", "tesla", "gpu", "generation"}
_NEAREST = 5
_LANES = 16


class FigureSource(NamedTuple):
    """Where figures come from.

    Attributes:
        title: title of the page or paper.
        url: its address; "" if there is only a title.
    """

    title: str
    url: str


class Database(NamedTuple):
    """The whole table.

    Attributes:
        gpus: the GPUs by name, in the order of the file.
        names: name of a GPU by the key of its name, its title and its aliases.
        links: kinds of links by name.
        outside: memory of a process outside the allocator, by rising compute capability.
        eager: memory of a process with all kernels loaded, by rising compute capability.
        sources: the sources by key.
    """

    gpus: Mapping[str, Gpu]
    names: Mapping[str, str]
    links: Mapping[str, LinkKind]
    outside: tuple[OutsideBytes, ...]
    eager: tuple[Eager, ...]
    sources: Mapping[str, FigureSource]


def key_of(name: str) -> str:
    """Reduce a name to its key: without case, separators and the words that all names have.

    >>> key_of("NVIDIA GeForce RTX 4090"), key_of("rtx-4090")
    ('rtx4090', 'rtx4090')
    """
    return "".join(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _NOISE)


def known(name: str) -> Gpu | None:
    """Look up a GPU by its name, as people write it or as torch and the driver report it; None if it is unknown."""
    found = database().names.get(key_of(name))
    return None if found is None else database().gpus[found]


def find(name: str) -> Gpu:
    """Look up a GPU by its name.

    Raises:
        UsageError: the name is unknown; the message offers the nearest names.
    """
    gpu = known(name)
    if gpu is None:
        raise UsageError(
            f"machine: given {shown(name)}, which is no GPU of the table; the nearest are {', '.join(nearest(name))}; "
            "allowed are 'here', the names that `elbowroom machine --list` shows, and the path of a .toml file "
            "(docs/machines.md); take one of these"
        )
    return gpu


def title_of(name: str) -> str:
    """Return the driver's name of a GPU of the table; other names stay as they are."""
    known = database().gpus.get(name)
    return name if known is None else known.title


def nearest(name: str) -> tuple[str, ...]:
    """Return the names of the GPUs whose name, title or alias is most like this one, the most alike first."""
    names = database().names
    alike = difflib.get_close_matches(key_of(name)[:80], names, n=4 * _NEAREST, cutoff=0)
    return tuple(dict.fromkeys(names[key] for key in alike))[:_NEAREST]


def pcie(generation: int, lanes: int) -> LinkKind | None:
    """Return the rates of copies over PCIe, by generation and number of lanes; None if these are not known."""
    links = database().links
    if generation < 1 or lanes < 1:
        return None
    link = links[f"pcie-{min(max(generation, 3), 5)}-x{_LANES}"]
    share = _LANES * 2 ** max(0, 3 - generation)  # each generation before the third has half the rate of its successor
    return link._replace(
        name=f"pcie-{generation}-x{lanes}",
        out_bytes_per_s=max(1, link.out_bytes_per_s * lanes // share),
        back_bytes_per_s=max(1, link.back_bytes_per_s * lanes // share),
    )


def eager(compute_capability: int) -> Eager:
    """Return the memory of a process before its work if CUDA loads all kernels at once.

    GPUs older than the oldest row have that row.
    """
    rows = database().eager
    return max((row for row in rows if row.since <= compute_capability), default=rows[0])


def outside(compute_capability: int) -> OutsideBytes:
    """Return the memory of a process outside the allocator; GPUs older than the oldest row have that row."""
    rows = database().outside
    return max((row for row in rows if row.since <= compute_capability), default=rows[0])


def read(path: str) -> Gpu:
    """Read the GPU of a user's own file: its fields at the top level, or as one table [gpu.NAME].

    Raises:
        FormatError: the file cannot be read, or is not of this form.
    """
    content = _parsed(path, _text(path))
    sources = {GIVEN, *dict(_sources(path, content.pop("sources", {})))}
    rows = dict(_rows(path, content))
    if len(rows) != 1:
        raise FormatError(f"{path}: given {len(rows)} GPUs; allowed is one in a file; leave {len(rows) - 1} out")
    ((name, row),) = rows.items()
    return gpu_of(path, name, row, database().links, sources, GIVEN)


@cache
def database() -> Database:
    """The table data/gpus.toml."""
    where = "gpus.toml"
    content = _parsed(where, resources.files("elbowroom").joinpath("data", where).read_text("utf-8"))
    sources = dict(_sources(where, content["sources"]))
    links = {
        name: link_of(f"{where}: links.{name}", name, row, sources)
        for name, row in table_of(where, content["links"]).items()
    }
    outside = sorted(
        outside_of(f"{where}: outside.{capability}", capability, row, sources)
        for capability, row in table_of(where, content["outside"]).items()
    )
    eager = sorted(
        eager_of(f"{where}: eager.{capability}", capability, row, sources)
        for capability, row in table_of(where, content["eager"]).items()
    )
    gpus = {
        name: gpu_of(f"{where}: gpu.{name}", name, row, links, sources)
        for name, row in table_of(where, content["gpu"]).items()
    }
    names = {key_of(alias): name for name, gpu in gpus.items() for alias in (name, gpu.title, *gpu.aliases)}
    return Database(gpus, names, links, tuple(outside), tuple(eager), sources)


def _rows(path: str, content: dict[str, object]) -> Iterator[tuple[str, object]]:
    if "gpu" not in content:
        yield Path(path).stem, content
        return
    if len(content) > 1:
        other = next(name for name in content if name != "gpu")
        raise FormatError(
            f"{path}: {shown(other)}: given outside [gpu.NAME]; allowed are the fields at the top, or in that table; "
            "move it into the table"
        )
    yield from table_of(f"{path}: gpu", content["gpu"]).items()


def _sources(where: str, content: object) -> Iterator[tuple[str, FigureSource]]:
    for key, row in table_of(f"{where}: sources", content).items():
        source = table_of(f"{where}: sources.{key}", row)
        title, url = source.get("title"), source.get("url", "")
        if type(title) is not str or type(url) is not str or not title or not set(source) <= {"title", "url"}:
            raise FormatError(
                f"{where}: sources.{key}: given {shown(source)}; allowed are title and url, both text; write a title"
            )
        yield key, FigureSource(title, url)


def _text(path: str) -> str:
    if what := why_no_file(path):
        raise FormatError(f"{path}: it is {what}; allowed is the path of a .toml file; check the path")
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_TABLE_BYTES + 1)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise FormatError(f"{path}: cannot be read: {reason}; check the path") from problem
    if len(data) > MAX_TABLE_BYTES:
        raise FormatError(f"{path}: larger than the {MAX_TABLE_BYTES} bytes that are allowed; write one GPU in it")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise FormatError(f"{path}: not UTF-8 text (byte {problem.start}); save it as UTF-8") from None


def _parsed(path: str, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise FormatError(f"{path}: nested more deeply than any table is; its form is in docs/machines.md") from None
    except ValueError as problem:
        raise FormatError(f"{path}: not TOML: {problem}; its form is in docs/machines.md") from None
