"""Measured memory outside torch's allocator on this computer's GPU: measured once, and kept for this user.

It is kept in a small JSON file in the user's cache folder. That is ELBOWROOM_CACHE_DIR, else XDG_CACHE_HOME or
LOCALAPPDATA, else ~/.cache. A file that cannot be read, or holds something else, counts as no measurement.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal, NamedTuple, cast

from elbowroom.files.cache_folder import cache_folder
from elbowroom.files.record_files import write_whole

LOADING_VARIABLE = "CUDA_MODULE_LOADING"
_MAGIC, _VERSION = "elbowroom.outside", 1
_MAX_BYTES = 2**20
_MOST = 2**50

Key = tuple[str, str]


class MeasuredOutside(NamedTuple):
    """Bytes outside the allocator.

    Attributes:
        context_bytes: bytes before the first kernel.
        outside_bytes: bytes after a small training step.
    """

    context_bytes: int
    outside_bytes: int

    @property
    def most_bytes(self) -> int:
        """The most that a training with other kernels may take: kernels and libraries count twice."""
        return self.outside_bytes + max(0, self.outside_bytes - self.context_bytes)


def loading() -> Literal["lazy", "eager"]:
    """Return when CUDA loads kernels in this environment."""
    return "eager" if os.environ.get(LOADING_VARIABLE, "").upper() == "EAGER" else "lazy"


def path() -> Path:
    """Return the path of the file."""
    return cache_folder() / "outside.json"


def of(gpu: str) -> MeasuredOutside | None:
    """Return the measurement of a GPU of this name, with kernels loaded as they are now; None if there is none."""
    return _read().get((gpu, loading()))


def keep(gpu: str, measured: MeasuredOutside) -> Path:
    """Keep a measurement, replacing an earlier one of the same GPU.

    Raises:
        OSError: the file cannot be written.
    """
    known = _read() | {(gpu, loading()): measured}
    rows = [{"gpu": name, "loading": when, **each._asdict()} for (name, when), each in sorted(known.items())]
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"magic": _MAGIC, "version": _VERSION, "measured": rows}, indent=1) + "\n"
    write_whole(text.encode(), file)
    return file


def _read() -> dict[Key, MeasuredOutside]:
    try:
        with path().open("rb") as file:
            content: object = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    fields = cast("dict[str, object]", content)
    rows = fields.get("measured")
    if fields.get("magic") != _MAGIC or fields.get("version") != _VERSION or not isinstance(rows, list):
        return {}
    return dict(entry for row in cast("list[object]", rows) if (entry := _entry(row)))


def _entry(row: object) -> tuple[Key, MeasuredOutside] | None:
    if not isinstance(row, dict):
        return None
    fields = cast("dict[str, object]", row)
    gpu, when = fields.get("gpu"), fields.get("loading")
    sizes = [fields.get(name) for name in MeasuredOutside._fields]
    if not isinstance(gpu, str) or not isinstance(when, str):
        return None
    if not all(type(size) is int and 0 <= size < _MOST for size in sizes):
        return None
    context_bytes, outside_bytes = cast("list[int]", sizes)
    return ((gpu, when), MeasuredOutside(context_bytes, outside_bytes)) if context_bytes <= outside_bytes else None
