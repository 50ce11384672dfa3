"""report: figures derived once, text, an offline page that escapes everything, a Chrome trace."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elbowroom.errors import FormatError, UsageError
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.report import charts, figures, html, report, subject_of
from elbowroom.report.screen import PlainConsole
from elbowroom.report.terminal import rendered
from elbowroom.simulate.simulate import simulate
from elbowroom.timeline import Curve, Timeline
from elbowroom.trace import Trace
from tests.core.report_case import DISK, MIB, chain, measured, swapping

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"


def everything(name: str = "net") -> tuple[Trace, Machine, Plan, Timeline, Timeline]:
    trace = chain(name=name)
    plan = swapping(trace)
    return trace, DISK, plan, simulate(trace, DISK, plan), measured(trace, plan)


def test_the_text_shows_the_three_timelines_beside_each_other() -> None:
    text = report(*everything())

    assert re.search(r"everything kept, simulated +simulated +measured", text)
    # Kept: a parameter of 4 MiB, 6 outputs and 1 gradient of 32 MiB = 228 MiB. With 4 of the outputs away, each back
    # one tick before it is read: 4 + 2 outputs + the read one's gradient and the one before it = 4 + 4 * 32 = 132 MiB.
    assert re.search(r"peak allocated +228\.0 MiB +132\.0 MiB +132\.0 MiB", text)
    assert "of 6 saved storages: 64.0 MiB kept (2), 128.0 MiB swapped to disk (4)" in text
    assert "the simulated peak is the measured one, to the byte" in text


def test_a_narrow_terminal_folds_the_paths_of_modules_and_cuts_none() -> None:
    path = "encoder.layers_of_a_long_name.attention.output"
    console = PlainConsole(file=io.StringIO(), width=80, color_system=None)
    with console.capture() as captured:
        console.print(rendered(subject_of(*everything(path))))

    text = captured.get()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_text_is_plain_and_has_no_blanks_at_line_ends() -> None:
    text = report(*everything())

    assert "\x1b" not in text
    assert not re.search(r"[ \t]$", text, re.MULTILINE)


def test_the_peak_error_is_said_with_its_sign() -> None:
    trace, machine, plan, simulated, _ = everything()
    # 1 % of 132 MiB more, on the device's curve
    device = simulated.curves[0]
    larger = tuple(size + size // 100 for size in device.size_bytes)
    line = replace(simulated, source="measured", curves=(replace(device, size_bytes=larger), *simulated.curves[1:]))

    found = figures.accuracy(subject_of(trace, machine, plan, simulated, line))

    assert found == "the simulated peak is 1.3 MiB (0.99%) below the measured one"


def test_every_decision_on_a_storage_is_in_the_table() -> None:
    subject = subject_of(*everything())

    rows = {row.storage: row for row in figures.largest_storages(subject, 100)}

    assert rows[1].action == "swap"
    assert rows[1].detail == "to disk after op 0, back before op 10"
    assert (rows[1].made_by, rows[1].module) == ("aten.convolution.default", "net.0")
    # Idle from position 2 to its read at 11: 4 forward ops of 40 ms and 5 backward ops of 60 ms.
    assert rows[1].idle_ns == 460_000_000
    assert rows[0].made_by == "before the step"
    assert (rows[0].action, rows[0].detail) == ("keep", "not saved by autograd")
    assert rows[7].category == "temporary"


def test_rows_are_the_largest_first_and_no_more_than_asked() -> None:
    rows = figures.largest_storages(subject_of(chain()), 5)

    sizes = [row.size_bytes for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert len(rows) == 5


def test_what_a_plan_moves_comes_before_what_it_keeps() -> None:
    subject = subject_of(*everything())

    rows = figures.largest_storages(subject, 100)

    actions = [row.action for row in rows]
    moved = [action for action in actions if action != "keep"]
    assert moved
    assert len(moved) < len(actions)
    assert actions[: len(moved)] == moved
    for part in (rows[: len(moved)], rows[len(moved) :]):
        sizes = [row.size_bytes for row in part]
        assert sizes == sorted(sizes, reverse=True)
    assert rows[-1].decision == f"keep: {rows[-1].detail}"


@pytest.mark.parametrize("kinds", [(0,), (2,), (3,), (4,), (0, 1), (0, 2), (1, 3), (2, 3, 4)])
def test_any_part_of_the_records_can_be_reported(kinds: tuple[int, ...], tmp_path: Path) -> None:
    records = everything()

    text = report(*(records[kind] for kind in kinds), out=tmp_path / "part.html")

    assert text.strip()
    assert (tmp_path / "part.html").read_text("utf-8").startswith("<!doctype html>")


def test_the_page_needs_no_network() -> None:
    page = html.page(subject_of(*everything()))

    # the only address in it is the comment that names uPlot's origin
    assert set(re.findall(r"https?://[^\s\"')]+", page)) == {"https://github.com/leeoniya/uPlot"}
    assert "default-src 'none'" in page
    assert "<link" not in page
    assert not re.search(r"<script[^>]+src=", page)


def test_the_page_escapes_every_text_of_a_record() -> None:
    page = html.page(subject_of(*everything(HOSTILE)))

    assert "<img" not in page
    # three script elements end: data, library, ours
    assert len(re.findall(r"</script>", page)) == 3
    assert HOSTILE + ".0" in data_of(page)["lanes"][0]["lanes"][0]["texts"]


def data_of(page: str) -> dict[str, list[dict[str, list[dict[str, list[str]]]]]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_curves_share_one_axis_and_end_with_their_timeline() -> None:
    trace, machine, plan, simulated, _ = everything()
    shorter = Timeline(
        source="measured",
        trace_id=trace.id,
        step_ns=100,
        spans=(),
        curves=(Curve(tier="device", kind="allocated", at_ns=(0, 50), size_bytes=(7, 9)),),
    )

    memory = charts.memory(subject_of(trace, machine, plan, simulated, shorter))

    at_ns = memory["at_ns"]
    series = {entry["label"]: entry["size_bytes"] for entry in memory["series"]}  # type: ignore[attr-defined]
    assert isinstance(at_ns, list)
    assert {0, 50, 100, simulated.step_ns} <= set(at_ns)
    held = dict(zip(at_ns, series["allocated, measured"], strict=True))
    assert (held[0], held[50], held[100]) == (7, 9, 9)
    assert held[simulated.step_ns] is None


def test_thinning_keeps_the_ends_and_the_peak() -> None:
    # given a curve with one needle among 100,000 points
    values = np.zeros(100_000, np.int64)
    values[54_321] = 5
    curve = Curve(tier="device", kind="allocated", at_ns=tuple(range(100_000)), size_bytes=tuple(values.tolist()))

    times, thinned = charts.thin(curve)

    assert len(times) <= charts.MOST_POINTS
    assert (times[0], times[-1]) == (0, 99_999)
    assert times[thinned.argmax()] == 54_321


def test_a_plan_with_its_trace_and_machine_is_simulated(tmp_path: Path) -> None:
    trace, plan = chain(), swapping(chain())

    subject = subject_of(trace, DISK, plan)
    report(trace, DISK, plan, out=tmp_path / "step.trace.json")

    assert subject.simulated == simulate(trace, DISK, plan)
    counters = {each["name"] for each in json.loads((tmp_path / "step.trace.json").read_text("utf-8"))["traceEvents"]}
    assert {"device allocated", "disk allocated", "device budget"} <= counters
    # given a measured step, nothing is derived, and given another machine, no step of the plan is there
    assert subject_of(trace, DISK, plan, measured(trace, plan)).simulated is None
    alone = replace(DISK, tiers=DISK.tiers[:1], links=())
    assert subject_of(trace, alone, plan).simulated is None


def test_the_chrome_trace_has_a_process_per_timeline_and_microseconds(tmp_path: Path) -> None:
    report(*everything(), out=tmp_path / "step.trace.json")

    events = json.loads((tmp_path / "step.trace.json").read_text("utf-8"))["traceEvents"]

    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {1: "everything kept, simulated", 2: "simulated", 3: "measured"}
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    first = next(event for event in spans if event["args"].get("op") == 0)
    # 40 ms = 40,000 us
    assert (first["ts"], first["dur"], first["args"]["module"]) == (0, 40_000, "net.0")
    assert {event["cat"] for event in spans} >= {"op", "swap_out", "swap_back"}
    counters = [event for event in events if event["ph"] == "C" and event["pid"] == 2]
    assert max(event["args"]["bytes"] for event in counters if event["name"] == "device allocated") == 132 * MIB
    # the budget is a counter from the begin to the end of the step
    budgets = [(event["ts"], event["args"]["bytes"]) for event in counters if event["name"] == "device budget"]
    assert [size_bytes for _, size_bytes in budgets] == [140 * MIB] * 2
    assert budgets[0][0] == 0
    assert budgets[1][0] == max(event["ts"] + event["dur"] for event in spans)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_tables_have_the_curves_the_spans_and_the_storages_in_bytes_and_nanoseconds(tmp_path: Path) -> None:
    *records, plan, simulated, _ = everything()
    for ending in ("curves", "spans", "storages"):
        report(*records, plan, simulated, out=tmp_path / f"step.{ending}.csv")

    curves = [row for row in rows_of(tmp_path / "step.curves.csv") if row["timeline"] == "simulated"]
    of_device = [int(row["size_bytes"]) for row in curves if (row["tier"], row["kind"]) == ("device", "allocated")]
    assert max(of_device) == simulated.peak_allocated_bytes == 132 * MIB
    assert {row["tier"] for row in curves} == {"device", "disk"}
    spans = [row for row in rows_of(tmp_path / "step.spans.csv") if row["timeline"] == "simulated"]
    assert len(spans) == len(simulated.spans)
    assert (spans[0]["start_ns"], spans[0]["end_ns"], spans[0]["module"]) == ("0", "40000000", "net.0")
    moved = sum(int(row["size_bytes"]) for row in spans if row["kind"] == "swap_out")
    assert moved == simulated.swapped_out_bytes == 4 * 32 * MIB
    storages = rows_of(tmp_path / "step.storages.csv")
    # a parameter, 6 outputs and 6 gradients; 4 outputs are swapped
    assert (len(storages), [row["action"] for row in storages].count("swap")) == (13, 4)
    assert int(storages[0]["size_bytes"]) == 32 * MIB
    kept = next(row for row in storages if row["category"] == "parameter")
    assert (kept["action"], kept["idle_ns"], kept["made_by"]) == ("keep", "", "before the step")


def test_a_table_without_its_records_is_refused(tmp_path: Path) -> None:
    trace, _, _, simulated, _ = everything()

    with pytest.raises(UsageError, match="this table shows timelines; give a simulated or measured one"):
        report(trace, out=tmp_path / "x.curves.csv")
    with pytest.raises(UsageError, match="a table of storages shows those of one; give a trace"):
        report(simulated, out=tmp_path / "x.storages.csv")


def test_a_text_file_holds_what_is_returned(tmp_path: Path) -> None:
    text = report(*everything(), out=tmp_path / "step.txt")

    assert (tmp_path / "step.txt").read_text("utf-8") == text


def test_what_cannot_be_reported_is_refused_with_the_remedy(tmp_path: Path) -> None:
    trace, machine, plan, simulated, _ = everything()
    other = chain(layers=4)

    with pytest.raises(UsageError, match="given no record"):
        report()
    with pytest.raises(UsageError, match="two records of the kind simulated"):
        report(simulated, simulated)
    with pytest.raises(UsageError, match="given str; allowed are Trace, Machine, Plan, Timeline and Pareto"):
        report("trace.json")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the plan of trace"):
        report(other, machine, plan)
    with pytest.raises(
        UsageError, match=r"allowed are names ending in \.html, \.trace\.json, \.timeline\.json, \.txt, \.pickle"
    ):
        report(trace, out="report.pdf")
    with pytest.raises(UsageError, match="a Chrome trace shows timelines"):
        report(trace, out=tmp_path / "x.trace.json")
    with pytest.raises(FormatError, match="cannot be written: No such file or directory"):
        report(trace, out=tmp_path / "none" / "x.html")
