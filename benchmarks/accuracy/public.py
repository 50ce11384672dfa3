"""Memory that others measured on GPUs, beside the estimate; benchmarks/accuracy/tables/ has a module a table."""

from __future__ import annotations

import importlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy.runner import child
from benchmarks.accuracy.tables.row import Row

Record = dict[str, Any]
TABLES = ("schedtune", "segmentation", "xmem", "litgpt", "qwen", "torchtune", "torchtitan", "detectron2")
STEPS = 2
"""Optimizer states are there in the second step; sizes do not change."""


def asked(
    data: Path, limit_s: int, only: list[str] | None, cases: list[str] | None
) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Id and maker of a record for each job of the tables, and one for the rows of a table that cannot be run again.

    Args:
        data: folder of the tables.
        limit_s: time for a job.
        only: names of tables; None for all.
        cases: ids that have one of these in them; None for all.
    """
    for table in TABLES:
        if only and table not in only:
            continue
        rows: list[Row] = list(importlib.import_module(f"benchmarks.accuracy.tables.{table}").rows(data))
        jobs: dict[str, list[Row]] = {}
        for row in rows:
            if row.spec:
                jobs.setdefault(json.dumps(row.spec), []).append(row)
        left_out = [{"id": row.id, "reason": row.reason} for row in rows if not row.spec]
        if left_out:
            name = f"{table}-left-out"
            yield name, lambda n=name, t=table, r=left_out: {"id": n, "family": t, "measured": {}, "left_out": r}
        for members in jobs.values():
            if cases and not any(each in members[0].id for each in cases):
                continue
            yield members[0].id, lambda t=table, m=members: _record(t, m, limit_s)


def _record(table: str, rows: list[Row], limit_s: int) -> Record:
    request = {"mode": "public", "table": table, "spec": rows[0].spec, "rows": [asdict(row) for row in rows]}
    return {"id": rows[0].id, "family": table, "measured": {}, **child(request, limit_s)}


def run(*, table: str, spec: Record, rows: list[Record]) -> Record:
    """One job, captured once for each kind of GPU it was measured on, and estimated for each."""
    import torch

    from benchmarks.accuracy.rank_rivals import rivals_of
    from elbowroom.capture.job_rank import JobRank
    from elbowroom.capture.virtual import VirtualDevice
    from elbowroom.machine import Machine
    from elbowroom.trace import Trace

    torch.set_num_threads(1)
    job = JobRank.of(0, spec["ranks"]) if "ranks" in spec else None
    beside = {} if job is None else rivals_of(table, spec)  # before the virtual device: each makes groups of its own
    os.environ.update({} if job is None else job.environment())
    module = importlib.import_module(f"benchmarks.accuracy.tables.{table}")
    alike: dict[str, str] = getattr(module, "CAPTURED_ON", {})
    traces: dict[str, Trace] = {}
    done: list[Record] = []
    for given in rows:
        kind = alike.get(given["gpu"], given["gpu"])
        if kind not in traces:
            with VirtualDevice(Machine.of(kind), STEPS, job=job) as device:
                module.train(**spec)
            traces[kind] = device.trace()
        loading, allocator = getattr(module, "LOADING", "lazy"), getattr(module, "ALLOCATOR", "")
        done.append(_estimated(given, traces[kind], loading, allocator))
    if job is not None:
        done = [{**row, "rivals": beside} for row in done]
    remarks = {(each.kind, each.name): each.count for trace in traces.values() for each in trace.remarks}
    return {"rows": done, "remarks": [[kind, name, count] for (kind, name), count in remarks.items()]}


def _estimated(given: Record, trace: Any, loading: Any, allocator: str) -> Record:
    """A row with its estimate; its settings of the allocator are torch's own, unless some are given."""
    from elbowroom.answers.estimate import estimate
    from elbowroom.machine import Machine

    machine = Machine.of(given["gpu"], loading=loading)
    found = estimate(trace, replace(machine, allocator=allocator or machine.allocator), plans=False)
    within = [a - b for a, b in zip(found.peak_device, found.outside, strict=True)]
    peaks = {"allocated": found.peak_allocated, "reserved": found.peak_reserved, "device": found.peak_device}
    row = {key: value for key, value in given.items() if key not in ("spec", "reason")}
    row |= {"estimate": {"within": within, **{level: list(peak) for level, peak in peaks.items()}}}
    if given["late"]:
        row["reading_bytes"] = _reading_bytes(trace, Machine.of(given["gpu"]))
    row |= {"fits": found.fits, "sure": found.sure, "needed_bytes": found.needed_bytes}
    if loading == "eager":
        lazily = Machine.of(given["gpu"])
        outside = (lazily.outside_range_bytes[0], lazily.outside_bytes, lazily.outside_range_bytes[1])
        row["lazy_device_bytes"] = [a + b for a, b in zip(within, outside, strict=True)]
    return row


def _reading_bytes(trace: Any, machine: Any) -> tuple[int, int]:
    """Least and most that the driver's figure, less a first sample, has beside what is reserved.

    All of the model may be missing, and what is loaded beside a bare context may be in it.
    """
    from elbowroom.allocator import replay
    from elbowroom.allocator.settings import as_set_by_script

    weights = ("parameter", "buffer")
    model = itertools.takewhile(lambda event: trace.storages[event.storage].category in weights, trace.events)
    events = [("alloc", event.storage, event.size_bytes) for event in model]
    loaded = replay(events, as_set_by_script(machine, trace).allocator)
    least, most = machine.outside_range_bytes
    return -loaded.peak_reserved_bytes, most - least
