"""Steps of a training on a real GPU: its allocator's own events beside those of the virtual device."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy import gpt
from benchmarks.accuracy.corpus import Line
from benchmarks.accuracy.figures import digest, first_difference, numbered
from elbowroom.allocator import replay
from elbowroom.capture.virtual import VirtualDevice
from elbowroom.machine import Machine

Row = dict[str, str]
WARM_UP = 5
SIZES = {"vocabulary": 10_000, "width": 1024, "layers": 24, "heads": 16, "hidden": 4096}
BATCH = 4


def run(*, data: str, name: str, tokens: int, autocast: bool) -> dict[str, Any]:
    """The sixth step of the model on the virtual device, beside the GPU's.

    Args:
        data: folder of the snapshots.
        name: of the snapshot.
        tokens: in a sequence.
        autocast: to bfloat16.
    """
    rows, final = _rows(Path(data) / f"{name}.events.csv.gz"), _rows(Path(data) / f"{name}.final_segments.csv.gz")
    device, begin = trained(tokens, autocast)
    ledger = device.ledger
    events = ledger.events[begin:]
    mine = numbered([("a" if size > 0 else "f", number, abs(size)) for _, number, size in events])
    ops = [f"{ledger.ops[op].name} [{ledger.ops[op].phase}] {ledger.ops[op].module}" for op, _, _ in events]
    theirs = numbered(_lines(rows))
    done = replay([("alloc", key, size) if size > 0 else ("free", key) for _, key, size in ledger.events])
    return {
        "measured": {"requested": _requested_peak(rows, final), "reserved": _reserved(final)},
        "simulated": {
            "requested": int(done.requested_bytes[begin - 1 :].max()),
            "reserved": int(done.reserved_bytes[begin - 1 :].max()),
            "allocated": int(done.allocated_bytes[begin - 1 :].max()),
        },
        "equal": digest(mine) == digest(theirs),
        "events": len(mine),
        "measured_events": len(theirs),
        "difference": first_difference(theirs, mine, ops),
    }


def trained(tokens: int, autocast: bool) -> tuple[VirtualDevice, int]:
    """The device after six steps, and the number of events before the last one."""
    with VirtualDevice(Machine.of("rtx4090"), None) as device:
        model = gpt.Gpt(tokens=tokens, **SIZES)
        model.to("cuda")
        optimizer = gpt.AdamW(model.parameters())
        shape = (BATCH, tokens)
        first, last, first_target, last_target = (
            torch.randint(0, SIZES["vocabulary"], (steps, *shape), device="cuda") for steps in (WARM_UP, 1, WARM_UP, 1)
        )
        for step in range(WARM_UP):
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                output = model(first[step])
                loss = gpt.cross_entropy(output, first_target[step])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        del output, loss  # pyright: ignore[reportPossiblyUnboundVariable]
        begin = len(device.ledger.events)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            output = model(last[0])
            loss = gpt.cross_entropy(output, last_target[0])
        loss.backward()
        optimizer.step()
        end = len(device.ledger.events)
    del device.ledger.events[end:]
    return device, begin


def _rows(path: Path) -> list[Row]:
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def _lines(rows: list[Row]) -> list[Line]:
    """Allocations and frees; a storage is known by its address while it lives."""
    ids: dict[int, int] = {}
    found: list[Line] = []
    for row in rows:
        address, size = int(row["addr_minus_base"]), int(row["size"])
        if row["action"] == "alloc":
            ids[address] = len(found)
            found.append(("a", ids[address], size))
        elif row["action"] == "free_requested":
            found.append(("f", ids.pop(address, -1 - address), size))
    return found


def _requested_peak(rows: list[Row], final: list[Row]) -> int:
    """Most bytes asked for and not yet freed, found back from what is held at the end."""
    level = sum(int(row["requested_size"]) for row in final if row["state"] == "active_allocated")
    peak = level
    for row in reversed(rows):
        if row["action"] == "alloc":
            level -= int(row["size"])
        elif row["action"] == "free_requested":
            level += int(row["size"])
        peak = max(peak, level)
    return peak


def _reserved(final: list[Row]) -> int:
    return sum({row["segment_addr_minus_base"]: int(row["segment_size"]) for row in final}.values())
