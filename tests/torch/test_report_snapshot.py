"""The memory snapshot of a report: what PyTorch's own tools read from it is what the timeline holds."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from elbowroom.errors import UsageError
from elbowroom.report import report
from tests.core.report_case import MIB, chain, swapping

viz: Any = pytest.importorskip("torch.cuda._memory_viz", reason="reads the snapshot as PyTorch does")
TRACE = chain()


def snapshot(folder: Path, *records: Any) -> dict[str, Any]:
    report(*records, out=folder / "step.pickle")
    return pickle.loads((folder / "step.pickle").read_bytes())


def peak_bytes(entries: list[dict[str, Any]]) -> int:
    """The most that is live at once, counted by address."""
    live: dict[int, int] = {}
    most = 0
    for entry in entries:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
            most = max(most, sum(live.values()))
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
    return most


def test_the_snapshot_of_a_trace_has_its_peak_and_what_is_live_at_its_end(tmp_path: Path) -> None:
    found = snapshot(tmp_path, TRACE)

    # 4 MiB of parameters, 6 outputs and 1 gradient of 32 MiB; the parameters are left
    assert peak_bytes(found["device_traces"][0]) == 228 * MIB
    assert sum(each["total_size"] for each in found["segments"]) == 4 * MIB


def test_with_a_plan_what_is_swapped_is_away(tmp_path: Path) -> None:
    found = snapshot(tmp_path, TRACE, swapping(TRACE))

    # as the simulated timeline: 4 outputs are away, 4 + 4 * 32
    assert peak_bytes(found["device_traces"][0]) == 132 * MIB
    swapped = [entry for entry in found["device_traces"][0] if entry["frames"][0]["filename"].startswith("storage 1,")]
    assert [entry["action"] for entry in swapped] == ["alloc", "free_requested", "free_completed"] * 2


def test_pytorch_reads_it(tmp_path: Path) -> None:
    found = snapshot(tmp_path, TRACE)

    assert "4.0MiB" in viz.segsum(found)
    shown = viz.trace(found)
    # a parameter, 6 outputs and 6 gradients are allocated, 12 of them freed in two entries each: 13 + 24
    assert "37 entries" in shown
    assert viz.trace_plot(found).lstrip().startswith("<!DOCTYPE html>")


def test_a_snapshot_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a memory snapshot shows the storages of one; give a trace"):
        report(swapping(TRACE), out=tmp_path / "step.pickle")
