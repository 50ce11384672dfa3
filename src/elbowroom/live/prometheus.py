"""Prometheus: the figures of a run in the text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).

Names follow prometheus.io/docs/practices/naming: base units in the name, "_total" at the end of what only grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elbowroom.timeline import MODES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MOVED = {"swapped_out": "left the device", "swapped_back": "came back", "recomputed": "were rebuilt"}
"""What happened to storages, by the first part of a metric's name."""


def metrics(figures: Mapping[str, Any]) -> str:
    """Return the figures of `LiveFigures.as_json` as metrics."""
    return "".join(_lines(figures))


def _lines(figures: Mapping[str, Any]) -> Iterator[str]:
    device, totals = _labels(device=figures["device"]), figures["totals"]
    text = "Memory that the device tier holds; in RAM, the most that a recorded step held."
    yield from _metric("device_bytes", "gauge", text, {device: figures["device_bytes"]})
    resident = {"": figures["resident_bytes"]}
    yield from _metric("resident_bytes", "gauge", "Resident memory of the process.", resident)
    yield from _metric("budget_bytes", "gauge", "Memory that it may hold.", {device: figures["budget_bytes"]})
    planned = {device: figures["planned_peak_bytes"]}
    yield from _metric("planned_peak_bytes", "gauge", "The most that the plan in force holds; 0 without one.", planned)
    lower = {_labels(tier=tier): size for tier, size in figures["lower_bytes"].items()}
    yield from _metric("lower_tier_bytes", "gauge", "Storages that lie on a lower tier.", lower)
    pinned = {"": figures["pinned_bytes"]}
    yield from _metric("pinned_bytes", "gauge", "Page-locked host memory.", pinned)
    modes = {_labels(mode=mode): int(mode == figures["mode"]) for mode in MODES}
    yield from _metric("step_mode", "gauge", "1 for what the present step is, or else the last one.", modes)
    if figures["last_step_ns"] is not None:
        took = {"": figures["last_step_ns"] / 1e9}
        yield from _metric("last_step_seconds", "gauge", "Time of the last step.", took)
    yield from _metric("steps_total", "counter", "Steps that have ended.", {"": totals["steps"]})
    stalled = {"": totals["stall_ns"] / 1e9}
    yield from _metric("stall_seconds_total", "counter", "Time that steps waited for transfers.", stalled)
    for name, what in MOVED.items():
        moved = {"": totals[f"{name}_bytes"]}
        yield from _metric(f"{name}_bytes_total", "counter", f"Bytes of storages that {what}.", moved)
    differed = {"": totals["mismatches"]}
    yield from _metric("mismatches_total", "counter", "Saved storages that a plan did not expect.", differed)


def _metric(name: str, kind: str, text: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP elbowroom_{name} {text}\n# TYPE elbowroom_{name} {kind}\n"
    for labels, value in values.items():
        yield f"elbowroom_{name}{labels} {value}\n"


def _labels(**values: str) -> str:
    """Return labels in braces; a value's backslashes, quotes and line ends are escaped."""
    escaped = {
        name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in values.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
