"""The rig (tools/rig): PyTorch's real caching allocator without a GPU. ELBOWROOM_RIG names its folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from elbowroom.machine import Machine, Tier
from tests.core.allocator_streams import Stream

NAMES = ("out_of_memory", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "segments", "retries")
COLUMNS = ("status", "allocated", "reserved", "active", "requested", "segments", "retries")
AT_END = {
    "allocated_peak": "allocated_bytes.all.peak",
    "reserved_peak": "reserved_bytes.all.peak",
    "active_peak": "active_bytes.all.peak",
    "requested_peak": "requested_bytes.all.peak",
    "segments_peak": "segment.all.peak",
    "inactive_split": "inactive_split_bytes.all.current",
    "blocks": "allocation.all.current",
    "small_allocated": "allocated_bytes.small_pool.current",
    "small_reserved": "reserved_bytes.small_pool.current",
    "large_allocated": "allocated_bytes.large_pool.current",
    "large_reserved": "reserved_bytes.large_pool.current",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
    "device_alloc": "num_device_alloc",
    "device_free": "num_device_free",
}
"""Columns of the driver, by what torch.cuda.memory_stats calls them."""
WORDS = {"record_stream": "record", "synchronize": "sync"}


def machine_of(capacity_bytes: int, compute_capability: int, multiprocessors: int) -> Machine:
    """The device of the rig, for an estimate of what runs on it."""
    return Machine(
        name="rig",
        tiers=(Tier(name="device", capacity_bytes=capacity_bytes),),
        links=(),
        allocator="",
        compute_capability=compute_capability,
        multiprocessors=multiprocessors,
    )


def rig_folder() -> Path | None:
    """Where the rig was built; None where ELBOWROOM_RIG is not set."""
    folder = os.environ.get("ELBOWROOM_RIG")
    return Path(folder) if folder else None


def answers(rig: Path, stream: Stream) -> tuple[dict[str, list[int]], dict[str, int]]:
    """What the real allocator says of a stream.

    Returns:
        After each event, by the names of `Replay`; and at the end, by those of `torch.cuda.memory_stats`.
    """
    lines = [" ".join(map(str, (WORDS.get(event[0], event[0]), *event[1:]))) for event in stream.events]
    driver = str(rig / "out" / "driver")
    done = subprocess.run(
        [driver], input="\n".join(lines) + "\n", env=_environment(stream), capture_output=True, text=True, check=True
    )
    header, *rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(rows) == len(lines), f"{len(rows)} answers for {len(lines)} events: {done.stderr[-2000:]}"
    assert not any(row[0] == "ERROR" for row in rows), done.stderr[-2000:]
    table: dict[str, tuple[Any, ...]] = dict(zip(header, zip(*rows, strict=True), strict=True))
    told = {name: [int(value) for value in table[column]] for name, column in zip(NAMES[1:], COLUMNS[1:], strict=True)}
    at_end = {name: int(table[column][-1]) for column, name in AT_END.items()}
    return {"out_of_memory": [int(status == "OOM") for status in table["status"]], **told}, at_end


def _environment(stream: Stream) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTORCH_")}
    return env | {
        "PYTORCH_CUDA_ALLOC_CONF": stream.settings,
        "FAKECUDA_CAPACITY": str(stream.capacity_bytes),
        "FAKECUDA_CONTEXT": "0",
        "FAKECUDA_VA": "reuse",
        "FAKECUDA_EVENTS": "done" if stream.events_done == "at once" else "manual",
    }
