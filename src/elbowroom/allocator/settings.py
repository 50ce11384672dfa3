"""Settings of the allocators, as in the environment variable PYTORCH_ALLOC_CONF."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from elbowroom.errors import UsageError
from elbowroom.files.field_rules import shown
from elbowroom.machine import Machine
from elbowroom.trace import Trace

KIB, MIB = 2**10, 2**20
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables in which torch looks for the settings: the first that is set counts."""

UNLIMITED = 2**63 - 1
"""Size that stands for "no limit"."""

INTERVALS = 16
"""Number of powers of two, from 1 MiB on, that `roundup_power2_divisions` distinguishes; smaller sizes count as 1 MiB.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """Settings of the allocators of PyTorch 2.11 to 2.13. Sizes are in bytes.

    Attributes:
        max_split_bytes: blocks of this size and more are not split, nor given to smaller requests.
        max_non_split_rounding_bytes: a block of `max_split_bytes` or more serves a request only if it is less than
            this much larger; by default a large segment.
        roundup_divisions: per power of two from 1 MiB on, the parts it is divided into for rounding; 0 for none.
        garbage_collection_threshold: share of the allowed bytes above which old free blocks are given back; 0 is never.
        memory_fraction: share of the device's memory that the process may reserve.
        expandable_segments: whether each pool and stream has one growing segment instead of many fixed ones.
        large_segment_bytes: size of the segments shared by requests above 1 MiB and below 10 MiB.
    """

    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = 20 * MIB
    roundup_divisions: tuple[int, ...] = (0,) * INTERVALS
    garbage_collection_threshold: float = 0.0
    memory_fraction: float = 1.0
    expandable_segments: bool = False
    large_segment_bytes: int = 20 * MIB


def set_in(environment: Mapping[str, str]) -> str:
    """Return the settings of an environment, as text; "" if there are none."""
    return next((environment[name] for name in VARIABLES if environment.get(name)), "")


def as_set_by_script(machine: Machine, trace: Trace) -> Machine:
    """Return the machine with the settings that the trace's script makes itself, if it does: they take precedence."""
    made = [remark.name for remark in trace.remarks if remark.kind == "allocator_settings"]
    return replace(machine, allocator=made[-1]) if made and machine.allocator != "exact" else machine


def parse_settings(text: str) -> AllocatorSettings:
    """Read settings.

    >>> parse_settings("max_split_size_mb:64, expandable_segments:True").max_split_bytes
    67108864

    Args:
        text: pairs key:value with commas between them; a value may be a list in brackets. If a key is given twice, the
            last value counts. "" is the defaults.

    Raises:
        UsageError: a key that is not known, or a value that is not allowed.
    """
    settings, given = AllocatorSettings(), set[str]()
    for item in _items(text):
        key, colon, value = item.partition(":")
        if key not in _READERS:
            _refuse(key, "a key among " + ", ".join(sorted(_READERS)), text)
        if not colon or not value:
            _refuse(item, f"{key}:VALUE", text)
        given.add(key)
        settings = _READERS[key](settings, value, f"{key}:{value}")
    return _with_large_segments(settings, given, text)


def _items(text: str) -> list[str]:
    """Split at the commas outside brackets; blanks do not count."""
    items, depth = [""], 0
    for character in "".join(text.split()):
        depth += (character == "[") - (character == "]")
        if character == "," and not depth:
            items.append("")
        else:
            items[-1] += character
        if depth not in (0, 1):
            _refuse(text, "a list as in [256:1,512:2,>:4], not nested", text)
    if depth:
        _refuse(text, "a list that ends with ]", text)
    return [item for item in items if item]


def _refuse(given: str, allowed: str, text: str = "") -> NoReturn:
    where = f" in {shown(text)}" if text and text != given else ""
    raise UsageError(
        f"allocator settings: given {shown(given)}{where}; allowed is {allowed}; "
        "write them as PYTORCH_ALLOC_CONF, such as max_split_size_mb:128,garbage_collection_threshold:0.8"
    )


Reader = Callable[[AllocatorSettings, str, str], AllocatorSettings]


def _megabytes(field: str | None, least: int) -> Reader:
    """Make a reader of a whole number of MiB, at least `least`."""

    def read(settings: AllocatorSettings, value: str, item: str) -> AllocatorSettings:
        if not value.isascii() or not value.isdigit() or len(value) > 12 or int(value) < least:
            _refuse(item, f"a whole number of MiB, at least {least}")
        return replace(settings, **{field: min(int(value) * MIB, UNLIMITED)}) if field else settings

    return read


def _share(field: str, ends_too: bool) -> Reader:
    """Make a reader of a number between 0 and 1; with `ends_too`, 0 and 1 are allowed."""

    def read(settings: AllocatorSettings, value: str, item: str) -> AllocatorSettings:
        try:
            share = float(value)
        except ValueError:
            share = -1.0
        if not (0 < share < 1 or (ends_too and share in (0, 1))):
            _refuse(item, "a number from 0 to 1" if ends_too else "a number above 0 and below 1")
        return replace(settings, **{field: share})

    return read


def _flag(field: str | None) -> Reader:
    """Make a reader of True or False."""

    def read(settings: AllocatorSettings, value: str, item: str) -> AllocatorSettings:
        if value not in ("True", "False"):
            _refuse(item, "True or False, spelt like this")
        return replace(settings, **{field: value == "True"}) if field else settings

    return read


def _backend(settings: AllocatorSettings, value: str, item: str) -> AllocatorSettings:
    if value != "native":
        _refuse(item, "native: cudaMallocAsync is the driver's own allocator, which has no model here")
    return settings


def _threads(settings: AllocatorSettings, value: str, item: str) -> AllocatorSettings:
    if not value.isdigit() or not _is_power_of_two(int(value)):
        _refuse(item, "a power of two")
    return settings


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _divisions(settings: AllocatorSettings, value: str, item: str) -> AllocatorSettings:
    """Read one number for all sizes, or [MiB:number,...,>:number]: each counts up to the next size that is named."""
    if not value.startswith("["):
        return replace(settings, roundup_divisions=(_division(value, item, least=1),) * INTERVALS)
    divisions, last, is_first = [0] * INTERVALS, 0, True
    for pair in value[1:-1].split(","):
        start, colon, parts = pair.partition(":")
        if not colon:
            _refuse(item, "pairs as in [256:1,512:2,>:4]")
        number = _division(parts, item, least=0)
        if start == ">":
            divisions[last + 1 :] = [number] * (INTERVALS - last - 1)
            continue
        if not start.isdigit() or not _is_power_of_two(int(start)):
            _refuse(item, "powers of two (of MiB) before the colons, or >")
        index = min(int(start).bit_length() - 1, INTERVALS - 1)
        if is_first:
            divisions[:index] = [number] * index
        divisions[index], last, is_first = number, index, False
    return replace(settings, roundup_divisions=tuple(divisions))


def _division(value: str, item: str, least: int) -> int:
    number = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else -1
    if not _is_power_of_two(number) and not number == least == 0:
        _refuse(item, "a power of two" + (", or 0 for no rounding," if least == 0 else "") + " as the divisions")
    return number


def _with_large_segments(settings: AllocatorSettings, given: set[str], text: str) -> AllocatorSettings:
    """Return the settings, with the default of those that a large segment sets; refuse sizes below a large segment."""
    least = settings.large_segment_bytes
    if "max_non_split_rounding_mb" not in given:
        settings = replace(settings, max_non_split_rounding_bytes=least)
    for name, size in (
        ("max_split_size_mb", settings.max_split_bytes),
        ("max_non_split_rounding_mb", settings.max_non_split_rounding_bytes),
    ):
        if size < least:
            _refuse(f"{name}:{size // MIB}", f"at least {least // MIB}, the size of a large segment", text)
    return settings


_READERS: dict[str, Reader] = {
    "backend": _backend,
    "expandable_segments": _flag("expandable_segments"),
    "garbage_collection_threshold": _share("garbage_collection_threshold", ends_too=False),
    "large_segment_size_mb": _megabytes("large_segment_bytes", 11),
    "max_non_split_rounding_mb": _megabytes("max_non_split_rounding_bytes", 1),
    "max_split_size_mb": _megabytes("max_split_bytes", 1),
    "per_process_memory_fraction": _share("memory_fraction", ends_too=True),
    "roundup_power2_divisions": _divisions,
    # These change times or host memory, not how many bytes the device holds.
    "graph_capture_record_stream_reuse": _flag(None),
    "pinned_free_catch_all": _flag(None),
    "pinned_max_cached_size_mb": _megabytes(None, 0),
    "pinned_max_round_threshold_mb": _megabytes(None, 0),
    "pinned_num_register_threads": _threads,
    "pinned_reserve_segment_size_mb": _megabytes(None, 0),
    "pinned_use_background_threads": _flag(None),
    "pinned_use_cuda_host_register": _flag(None),
    "release_lock_on_cudamalloc": _flag(None),
    "throw_on_cudamalloc_oom": _flag(None),
}
