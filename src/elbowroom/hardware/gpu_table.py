"""A GPU as a TOML table: what its fields may hold, and where each figure comes from.

The form is described in docs/machines.md. A table is not trusted. Unknown fields, wrong types, figures out of range and
unlisted sources are errors: a FormatError names the file and the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn, TypeVar, cast, final

from elbowroom.errors import FormatError, UsageError
from elbowroom.files.field_rules import is_unicode, shown
from elbowroom.units import parse_bytes

T = TypeVar("T")

DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")
"""Element types that have a rate."""

UNKNOWN = "unknown"
GIVEN = "given"
"""Source of a figure in a user's own table that names none."""

ASSUMED = "assumed"
"""Source of a value that stands in for a figure that a table does not have."""

ASSUMED_HOST_BYTES = 64 * 2**30
ASSUMED_DISK_BYTES = 2**40
ASSUMED_LATENCY_NS = 10_000

_MOST = 2**62
"""Largest figure: it leaves room in 63 bits for sums."""

_FIELDS = (
    *("name", "title", "aliases", "capacity_gib", "unified", "source", "total_bytes", "compute_capability"),
    *("multiprocessors", "rates", "memory_bytes_per_s", "link", "board_watts", "idle_watts"),
    *("context_bytes", "host_bytes", "disk_bytes"),
)
_EAGER_FIELDS = ("least_bytes", "most_bytes", "source")
_OUTSIDE_FIELDS = ("least_bytes", "likely_bytes", "most_bytes", "source")
_LINK_FIELDS = ("out_bytes_per_s", "back_bytes_per_s", "latency_ns", "source")
_SIZES = "a number above 0, or a size such as '24124 MiB'"
_NUMBERS = "a whole number above 0"


class Figure(NamedTuple):
    """One figure of a GPU.

    Attributes:
        value: in the unit that its field's name says.
        source: key of the table's sources; "given" for a user's own table that names none, "assumed" for a value that
            stands in for a missing figure.
    """

    value: int
    source: str


class LinkKind(NamedTuple):
    """A link between device and host, with the rates of copies over it.

    Attributes:
        name: such as "pcie-4-x16", or `GIVEN`.
        out_bytes_per_s: rate from device to host.
        back_bytes_per_s: rate from host to device.
        latency_ns: fixed cost of one copy.
        source: source of the rates.
    """

    name: str
    out_bytes_per_s: int
    back_bytes_per_s: int
    latency_ns: int
    source: str


class Eager(NamedTuple):
    """Memory of a process before its work if CUDA loads all kernels at once.

    Attributes:
        since: the lowest compute capability it was reported for, major * 10 + minor.
        least_bytes: the least that was reported.
        most_bytes: the most that was reported.
        source: source of the two.
    """

    since: int
    least_bytes: int
    most_bytes: int
    source: str


class OutsideBytes(NamedTuple):
    """Memory of a process outside torch's allocator if CUDA loads kernels at their first use.

    Attributes:
        since: the lowest compute capability it stands for, major * 10 + minor.
        least_bytes, likely_bytes, most_bytes: a lower bound, the median and an upper bound of most reports.
        source: source of the three.
    """

    since: int
    least_bytes: int
    likely_bytes: int
    most_bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What is known of a GPU; a figure that is not known is None.

    Attributes:
        name: short name, by which it is looked up.
        title: its name in torch.
        aliases: other names.
        capacity_gib: capacity as sold, 0 if it is not given.
        unified: whether the host's memory is the device's.
        total_bytes: device memory as the driver reports it.
        compute_capability: major * 10 + minor.
        multiprocessors: streaming multiprocessors.
        rates: dense operations per second, by dtype.
        memory_bytes_per_s: bandwidth of the device's memory.
        link: way to the host.
        board_watts: power that the whole board may draw.
        idle_watts: power that it draws while a process has a context and computes next to nothing.
        context_bytes: a process's CUDA context before the first kernel.
        host_bytes: host memory of the computer it is in.
        disk_bytes: room on that computer's disk.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    capacity_gib: int
    unified: bool
    total_bytes: Figure
    compute_capability: Figure
    multiprocessors: Figure | None
    rates: tuple[tuple[str, Figure], ...]
    memory_bytes_per_s: Figure | None
    link: LinkKind | None
    board_watts: Figure | None
    idle_watts: Figure | None
    context_bytes: Figure | None
    host_bytes: Figure
    disk_bytes: Figure


def gpu_of(
    where: str, name: str, table: object, links: Mapping[str, LinkKind], sources: Collection[str], source: str = ""
) -> Gpu:
    """The GPU of a table.

    Args:
        where: what errors begin with, such as the file's path.
        name: the GPU's, unless the table says another.
        table: as tomllib read it.
        links: kinds that `link` may name.
        sources: keys that figures may name as their source.
        source: of figures without one, where the table names none either.

    Raises:
        FormatError: the table is not of this form.
    """
    row = _Row(where, table, sources, source)
    row.check_names(_FIELDS)
    gpu = Gpu(
        name=row.text("name", name),
        title=row.text("title", row.text("name", name)),
        aliases=row.texts("aliases"),
        capacity_gib=row.plain("capacity_gib", _whole, _NUMBERS) or 0,
        unified=row.plain("unified", _truth, "true or false") or False,
        total_bytes=row.needed("total_bytes", _size, _SIZES),
        compute_capability=row.needed("compute_capability", _capability, "major and minor, such as '8.6'"),
        multiprocessors=row.figure("multiprocessors", _whole, _NUMBERS),
        rates=_rates(row),
        memory_bytes_per_s=row.figure("memory_bytes_per_s", _size, _SIZES),
        link=_link(row, links),
        board_watts=row.figure("board_watts", _whole, _NUMBERS),
        idle_watts=row.figure("idle_watts", _whole, _NUMBERS),
        context_bytes=row.figure("context_bytes", _size, _SIZES),
        host_bytes=row.figure("host_bytes", _size, _SIZES) or Figure(ASSUMED_HOST_BYTES, ASSUMED),
        disk_bytes=row.figure("disk_bytes", _size, _SIZES) or Figure(ASSUMED_DISK_BYTES, ASSUMED),
    )
    _check_power(row, gpu)
    if gpu.context_bytes and gpu.context_bytes.value >= gpu.total_bytes.value:
        row.refuse("context_bytes", gpu.context_bytes.value, f"less than total_bytes, which is {gpu.total_bytes.value}")
    return gpu


def _check_power(row: _Row, gpu: Gpu) -> None:
    """Refuse an idle power that is not below the board's."""
    idle, board = gpu.idle_watts, gpu.board_watts
    if idle and board is None:
        row.refuse("idle_watts", idle.value, "given with board_watts")
    if idle and board and idle.value >= board.value:
        row.refuse("idle_watts", idle.value, f"less than board_watts, {board.value}")


def link_of(where: str, name: str, table: object, sources: Collection[str], source: str = "") -> LinkKind:
    """The kind of link of a table with out_bytes_per_s, back_bytes_per_s, latency_ns and source.

    Raises:
        FormatError: the table is not of this form.
    """
    row = _Row(where, table, sources, source)
    row.check_names(_LINK_FIELDS)
    return LinkKind(
        name,
        row.needed("out_bytes_per_s", _size, _SIZES).value,
        row.needed("back_bytes_per_s", _size, _SIZES).value,
        row.plain("latency_ns", _whole, _NUMBERS) or ASSUMED_LATENCY_NS,
        row.source_of({}, "source"),
    )


def eager_of(where: str, capability: str, table: object, sources: Collection[str]) -> Eager:
    """The row of a compute capability, with least_bytes, most_bytes and source.

    Raises:
        FormatError: the table is not of this form.
    """
    row = _Row(where, table, sources, "")
    row.check_names(_EAGER_FIELDS)
    since = _since(row, capability)
    least, most = row.rising("least_bytes", "most_bytes")
    return Eager(since, least, most, row.source)


def outside_of(where: str, capability: str, table: object, sources: Collection[str]) -> OutsideBytes:
    """The row of a compute capability, with least_bytes, likely_bytes, most_bytes and source.

    Raises:
        FormatError: the table is not of this form.
    """
    row = _Row(where, table, sources, "")
    row.check_names(_OUTSIDE_FIELDS)
    since = _since(row, capability)
    least, likely, most = row.rising("least_bytes", "likely_bytes", "most_bytes")
    return OutsideBytes(since, least, likely, most, row.source)


def _since(row: _Row, capability: str) -> int:
    since = _capability(capability)
    if since is None:
        row.refuse("capability", capability, "major and minor, such as '8.0'")
    return since


def table_of(where: str, value: object) -> dict[str, object]:
    """A value that must be a TOML table.

    Raises:
        FormatError: it is something else.
    """
    if type(value) is not dict:
        raise FormatError(f"{where}: given {shown(value)}; allowed is a table; its form is in docs/machines.md")
    return cast("dict[str, object]", value)


def _rates(row: _Row) -> tuple[tuple[str, Figure], ...]:
    given = row.table.get("rates", UNKNOWN)
    if given == UNKNOWN:
        return ()
    rates = _Row(f"{row.where}: rates", given, row.sources, row.source)
    rates.check_names((*DTYPES, "source"))
    found = [(dtype, rates.figure(dtype, _whole, _NUMBERS)) for dtype in DTYPES]
    return tuple((dtype, figure) for dtype, figure in found if figure)


def _link(row: _Row, links: Mapping[str, LinkKind]) -> LinkKind | None:
    given = row.table.get("link", UNKNOWN)
    if given == UNKNOWN:
        return None
    if type(given) is dict:
        return link_of(f"{row.where}: link", GIVEN, cast("object", given), row.sources, row.source)
    if type(given) is not str or given not in links:
        row.refuse("link", given, f"one of {', '.join(links)}, or a table with {', '.join(_LINK_FIELDS[:2])}")
    return links[given]


@final
class _Row:
    """A table that is being read, and the source of its figures that name none."""

    def __init__(self, where: str, table: object, sources: Collection[str], source: str) -> None:
        self.where: Final = where
        self.table: Final = table_of(where, table)
        self.sources: Final = sources
        self.source: Final = self.source_of(self.table, "source", source)

    def refuse(self, field: str, given: object, allowed: str) -> NoReturn:
        """Raise the FormatError of one field."""
        raise FormatError(
            f"{self.where}: {field}: given {shown(given)}; allowed is {allowed}; its form is in docs/machines.md"
        )

    def check_names(self, allowed: Collection[str]) -> None:
        """Refuse names that are not fields: a misspelt one would be an unknown figure."""
        for name in self.table:
            if name not in allowed:
                self.refuse("field", name, f"one of {', '.join(allowed)}")

    def source_of(self, table: Mapping[str, object], field: str, default: str | None = None) -> str:
        """The source that a table names, else the default, else this row's."""
        source = table.get("source", self.source if default is None else default)
        if type(source) is not str or (source not in self.sources and source != default):
            self.refuse(field, source, "a key of the table [sources]")
        return source

    def plain(self, field: str, parse: Callable[[object], T | None], allowed: str) -> T | None:
        """The value of a field without a source; None where it is not there."""
        if field not in self.table:
            return None
        value = parse(self.table[field])
        if value is None:
            self.refuse(field, self.table[field], allowed)
        return value

    def figure(self, field: str, parse: Callable[[object], int | None], allowed: str) -> Figure | None:
        """A figure and its source; None where it is unknown or not there."""
        given, source = self.table.get(field, UNKNOWN), self.source
        if type(given) is dict:
            table = cast("dict[str, object]", given)
            if sorted(table) != ["source", "value"]:
                self.refuse(field, table, "a value, or a table of value and source")
            given, source = table["value"], self.source_of(table, f"{field}.source")
        if given == UNKNOWN:
            return None
        value = parse(given)
        if value is None:
            self.refuse(field, given, f"{allowed}, or '{UNKNOWN}'")
        if not source:
            self.refuse(field, given, "a figure with its source: {value = ..., source = ...}")
        return Figure(value, source)

    def needed(self, field: str, parse: Callable[[object], int | None], allowed: str) -> Figure:
        """Return a figure that must be there."""
        figure = self.figure(field, parse, allowed)
        if figure is None:
            self.refuse(field, self.table.get(field), f"{allowed}: this one must be known")
        return figure

    def rising(self, *fields: str) -> list[int]:
        """Sizes that must be known, none less than the one before it."""
        values = [self.needed(field, _size, _SIZES).value for field in fields]
        for field, value, next_field, next_value in zip(fields, values, fields[1:], values[1:], strict=False):
            if value > next_value:
                self.refuse(field, value, f"at most {next_field}, which is {next_value}")
        return values

    def text(self, field: str, default: str) -> str:
        """A name of at least one character."""
        value = self.table.get(field, default)
        if type(value) is not str or not value.strip() or not is_unicode(value):
            self.refuse(field, value, "text")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of names."""
        given = self.table.get(field, [])
        values = cast("list[object]", given) if type(given) is list else [None]
        if not all(type(value) is str for value in values):
            self.refuse(field, cast("object", given), "a list of text")
        return tuple(cast("list[str]", values))


def _whole(value: object) -> int | None:
    """A whole number above 0, also as 1.5e9."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value <= _MOST else None


def _size(value: object) -> int | None:
    """A whole number, or a size as text."""
    if type(value) is not str:
        return _whole(value)
    try:
        return _whole(parse_bytes(value))
    except UsageError:
        return None


def _capability(value: object) -> int | None:
    """Major * 10 + minor of "8.6" or 8.6."""
    found = re.fullmatch(r"(\d{1,2})\.(\d)", str(value), re.ASCII) if type(value) in (str, float) else None
    return int(found[1]) * 10 + int(found[2]) or None if found else None


def _truth(value: object) -> bool | None:
    return value if type(value) is bool else None
