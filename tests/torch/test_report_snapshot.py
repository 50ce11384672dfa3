"""The memory snapshot of a report: what PyTorch's own tools read from it is what the timeline holds."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import elbowroom as er
from elbowroom.answers.estimate import estimate
from elbowroom.errors import UsageError
from elbowroom.machine import Machine
from elbowroom.report import report
from elbowroom.trace import Event, Save, Step, Trace
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


def reserved_bytes(entries: list[dict[str, Any]]) -> list[int]:
    """What the segments hold after each entry that takes or gives one back; each is where no other one is."""
    held: dict[int, int] = {}
    found: list[int] = []
    for entry in entries:
        start, end = entry["addr"], entry["addr"] + entry["size"]
        if entry["action"] in ("segment_alloc", "segment_map"):
            assert all(end <= at or at + size <= start for at, size in held.items())
            held[start] = entry["size"]
        elif entry["action"] in ("segment_free", "segment_unmap"):
            assert held.pop(start) == entry["size"]
        elif entry["action"] == "alloc":  # a block lies in segments that are there
            inside = (min(end, at + size) - max(start, at) for at, size in held.items())
            assert sum(each for each in inside if each > 0) == entry["size"]
            continue
        else:
            continue
        found.append(sum(held.values()))
    return found


def test_a_trace_of_a_gpu_has_the_segments_of_its_allocator(tmp_path: Path) -> None:
    # the first 4 MiB get a segment of 20 MiB; 6 outputs and a gradient of 32 MiB one each, which later ones take again
    trace = replace(TRACE, device="cuda:0")

    found = snapshot(tmp_path, trace, Machine.of("t4"))

    entries = found["device_traces"][0]
    assert reserved_bytes(entries) == [20 * MIB + number * 32 * MIB for number in range(8)]
    assert peak_bytes(entries) == 228 * MIB
    assert reserved_bytes(entries)[-1] == estimate(trace, Machine.of("t4")).peak_reserved_bytes
    # at the end 4 MiB of 244 MiB are allocated, in the first segment, and the rest of it is free
    assert sum(each["total_size"] for each in found["segments"]) == 244 * MIB
    assert sum(each["allocated_size"] for each in found["segments"]) == 4 * MIB
    first = min(found["segments"], key=lambda each: each["address"])
    assert [(block["size"], block["state"]) for block in first["blocks"]] == [
        (4 * MIB, "active_allocated"),
        (16 * MIB, "inactive"),
    ]


def test_with_a_plan_the_snapshot_is_of_the_step_that_follows_it(tmp_path: Path) -> None:
    # two equal steps on a GPU; the plan is for the second
    one = replace(TRACE, device="cuda:0")
    trace = twice(one)
    first = trace.steps[-1].first_op
    plan = swapping(replace(trace, saves=trace.saves[6:]))
    plan = replace(plan, trace_id=trace.id)
    assert {swap.out_after_op >= first for swap in plan.swaps} == {True}

    kept = snapshot(tmp_path, trace)["device_traces"][0]
    planned = snapshot(tmp_path, trace, plan)["device_traces"][0]

    # as above: 228 MiB in segments of 244 MiB, and under the plan 4 + 4 * 32 in 20 + 4 * 32
    assert (peak_bytes(kept), max(reserved_bytes(kept))) == (228 * MIB, 244 * MIB)
    assert (peak_bytes(planned), max(reserved_bytes(planned))) == (132 * MIB, 148 * MIB)


def twice(trace: Trace) -> Trace:
    """A trace of a step as two steps: the second has storages of its own but for the parameter, which is the first."""
    ops, storages, saves = len(trace.ops), len(trace.storages), trace.saves

    def later(storage: int) -> int:
        return storage + storages - 1 if storage else 0

    again = [replace(op, reads=tuple(map(later, op.reads)), writes=tuple(map(later, op.writes))) for op in trace.ops]
    events = [Event(e.op + ops, later(e.storage), e.size_bytes) for e in trace.events if e.storage]
    moved = [
        Save(
            storage=later(save.storage),
            saved_at=save.saved_at + ops,
            idle_from=None if save.idle_from is None else save.idle_from + ops,
            read_at=tuple(at + ops for at in save.read_at),
        )
        for save in saves
    ]
    return replace(
        trace,
        ops=(*trace.ops, *again),
        storages=(*trace.storages, *trace.storages[1:]),
        events=(*trace.events, *events),
        saves=(*saves, *moved),
        steps=(Step(0, ops), Step(ops, 2 * ops)),
    )


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:20"])
def test_the_segments_of_a_captured_training_reserve_what_its_estimate_says(tmp_path: Path, settings: str) -> None:
    trace = er.capture(small_training, machine="t4", steps=3)
    machine = replace(Machine.of("t4"), allocator=settings)

    found = snapshot(tmp_path, trace, machine)

    entries = found["device_traces"][0]
    answer = estimate(trace, machine, plans=False)
    assert max(reserved_bytes(entries)) == answer.peak_reserved_bytes
    expands = settings.startswith("expandable")
    assert {each["is_expandable"] for each in found["segments"]} == {expands}
    assert ("segment_map" if expands else "segment_alloc") in {each["action"] for each in entries}
    # what is live at the end lies in the segments, and PyTorch's own tools read all of it
    live = [block for each in found["segments"] for block in each["blocks"] if block["state"] == "active_allocated"]
    assert live
    for each in found["segments"]:
        assert each["total_size"] == sum(block["size"] for block in each["blocks"])
        places = [block["address"] for block in each["blocks"]]
        assert places == sorted(places)
        assert places[0] == each["address"]
    assert viz.segsum(found)
    assert f"{len(entries)} entries" in viz.trace(found)
    for plot in (viz.trace_plot(found), viz.trace_plot(found, plot_segments=True), viz.segment_plot(found)):
        assert plot.lstrip().startswith("<!DOCTYPE html>")
    flames = viz.memory(found, format_flamegraph=lambda lines: lines)
    assert "storage " in flames
    assert viz.segments(found, format_flamegraph=lambda lines: lines)


def small_training() -> Callable[[], None]:
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 8)).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.zeros(512, 2048, device="cuda")).sum().backward()
        optimizer.step()

    return step


def test_a_snapshot_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a memory snapshot shows the storages of one; give a trace"):
        report(swapping(TRACE), out=tmp_path / "step.pickle")
