"""Storages between a GPU and the disk past the host: whether this machine offers it, and how fast it is."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

SIZE_BYTES = 256 << 20
RUNS = 3
Report = dict[str, Any]


def direct(directory: str | None = None) -> Report:
    """Rates of the way past the host, the fastest of a few; {"refused": why} where the machine does not offer it."""
    import torch

    from elbowroom.engine.tiers.gds import DIRECT_PIECE_BYTES, DirectFile, open_direct

    device = torch.device("cuda", 0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = open_direct(directory, 2 * SIZE_BYTES, device)
    where = directory or tempfile.gettempdir()
    if found is None:
        return {"directory": where, "refused": str(told[-1].message)}
    storage = torch.ones(SIZE_BYTES, dtype=torch.uint8, device=device).untyped_storage()
    torch.cuda.synchronize(device)
    slot = found.file.reserve(SIZE_BYTES)

    def moved(move: Callable[[DirectFile], Callable[..., None]]) -> int:
        """Bytes per second."""
        times: list[int] = []
        for _ in range(RUNS):
            begin_ns = time.perf_counter_ns()
            for start in range(0, SIZE_BYTES, DIRECT_PIECE_BYTES):
                move(found)(storage[start : start + DIRECT_PIECE_BYTES], slot.offset + start)
            times.append(time.perf_counter_ns() - begin_ns)
        return SIZE_BYTES * 10**9 // min(times)

    report = {
        "directory": where,
        "size_bytes": SIZE_BYTES,
        "piece_bytes": DIRECT_PIECE_BYTES,
        "out_bytes_per_s": moved(lambda file: file.write),
        "back_bytes_per_s": moved(lambda file: file.read),
    }
    found.close()
    return report
