"""Two steps side by side: which records make which side, what differs, and the page in a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from elbowroom.cli import main
from elbowroom.errors import UsageError
from elbowroom.plan import Plan
from elbowroom.report import Record
from elbowroom.report.compare_page import compare_page
from elbowroom.report.comparison import (
    Difference,
    Sides,
    action_differences,
    category_bytes,
    comparison_sentences,
    headline_differences,
    is_pair,
    module_differences,
    moved_differences,
    sides_of,
)
from elbowroom.simulate.simulate import simulate
from elbowroom.trace import Trace
from tests.core.report_case import DISK, MIB, chain, measured, swapping
from tests.core.test_report import HOSTILE
from tests.core.test_report_page import in_browser, seen

TRACE = chain()
FOUR, TWO = swapping(TRACE), swapping(TRACE, layers=4, budget_bytes=200 * MIB)
"""Plans that swap the outputs of four and of two layers: peaks of 132 and 164 MiB."""


def two_plans() -> Sides:
    return sides_of({"trace.json": TRACE, "machine.json": DISK, "four.json": FOUR, "two.json": TWO})


def rows(differences: object) -> dict[str, tuple[str, str, str]]:
    return {row.name: (row.first, row.second, row.difference) for row in differences}  # type: ignore[attr-defined]


def test_two_plans_of_one_trace_are_simulated_and_compared() -> None:
    sides = two_plans()

    assert [(side.name, side.subject.plan, side.line.source) for side in sides] == [
        ("four", FOUR, "simulated"),
        ("two", TWO, "simulated"),
    ]
    found = rows(headline_differences(sides))
    # four outputs and the parameter lie on the device, or five of them
    assert found["peak allocated"] == ("132.0 MiB", "164.0 MiB", "+32.0 MiB (+24.2%)")
    assert found["swapped out"] == ("128.0 MiB", "64.0 MiB", "-64.0 MiB (-50.0%)")
    assert found["stall"] == ("0 ns", "0 ns", "equal")


def test_the_answer_is_said_with_the_kind_of_its_figures() -> None:
    said = comparison_sentences(two_plans())

    assert said[0] == "two holds 32.0 MiB more at the peak than four: 164.0 MiB against 132.0 MiB, simulated."
    assert said[1] == "Both steps take 640.0 ms, simulated."
    assert said[2] == "Their budgets are 140.0 MiB and 200.0 MiB."


def test_what_differs_adds_up_by_category_and_by_module() -> None:
    sides = two_plans()

    by_category = category_bytes(sides)
    assert [sum(sizes[half] for sizes in by_category.values()) for half in (0, 1)] == [132 * MIB, 164 * MIB]
    by_module = list(module_differences(sides))
    signed = [parse_mib(row.difference) for row in by_module]
    assert sum(signed) == 32  # MiB: all that differs at the two peaks
    assert all(row.first != row.second for row in by_module)


def parse_mib(difference: str) -> float:
    found = re.match(r"([+-])([0-9.]+) MiB", difference)
    assert found, difference
    return float(found[1] + found[2])


def test_what_is_moved_is_compared_by_kind_and_way() -> None:
    assert list(moved_differences(two_plans())) == [
        Difference(
            name="activation, device to disk", first="128.0 MiB", second="64.0 MiB", difference="-64.0 MiB (-50.0%)"
        ),
        Difference(
            name="activation, disk to device", first="128.0 MiB", second="64.0 MiB", difference="-64.0 MiB (-50.0%)"
        ),
    ]


def test_storages_that_the_plans_treat_differently_are_named() -> None:
    # the outputs of layers 2 and 3 are swapped by the first plan alone
    found = [(one.storage, one.action, other.action) for one, other in action_differences(two_plans())]

    assert found == [(3, "swap", "keep"), (4, "swap", "keep")]


def test_two_runs_of_one_plan_are_compared_as_they_were_measured() -> None:
    slow = measured(TRACE, FOUR)
    fast = replace(simulate(TRACE, DISK, FOUR), source="measured")

    sides = sides_of({"trace.json": TRACE, "plan.json": FOUR, "a.timeline.json": slow, "b.timeline.json": fast})

    assert [(side.name, side.line.source, side.subject.plan) for side in sides] == [
        ("a", "measured", FOUR),
        ("b", "measured", FOUR),
    ]


def test_records_of_two_traces_go_to_the_side_of_their_trace() -> None:
    other = chain(layers=4)
    plan = swapping(other, layers=4)

    sides = sides_of({"b": other, "a": TRACE, "for-a": FOUR, "for-b": plan, "machine": DISK})

    assert [(side.subject.trace, side.subject.plan) for side in sides] == [(other, plan), (TRACE, FOUR)]
    assert list(action_differences(sides)) == []


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"t": TRACE, "m": DISK, "a": FOUR, "b": TWO, "line": simulate(TRACE, DISK, FOUR)}, "could be of either"),
        ({"t": TRACE, "a": FOUR, "b": TWO}, "without timelines of one source"),
        ({"t": TRACE, "m": DISK, "a": FOUR, "b": TWO, "c": FOUR}, "given 3 records of the kind plan"),
        ({"t": TRACE, "u": chain(layers=3), "v": chain(layers=4), "m": DISK}, "given records of 3 traces"),
        ({"t": TRACE, "u": chain(layers=3), "m": DISK, "a": FOUR, "b": TWO}, "two records of one kind for one trace"),
    ],
)
def test_records_that_could_be_of_either_side_are_refused(named: dict[str, Record], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sides_of(named)


def test_records_of_one_step_are_no_pair() -> None:
    assert not is_pair([TRACE, DISK, FOUR, simulate(TRACE, DISK, FOUR), measured(TRACE, FOUR)])
    assert is_pair([TRACE, DISK, FOUR, TWO])


def test_a_page_of_two_steps_escapes_every_name(tmp_path: Path) -> None:
    trace = chain(name=HOSTILE)
    plans = swapping(trace), swapping(trace, layers=4, budget_bytes=200 * MIB)

    page = compare_page(sides_of({"t": trace, "m": DISK, f"{HOSTILE}.json": plans[0], "b": plans[1]}))

    assert "<img" not in page
    assert len(re.findall(r"</script>", page)) == 3


def written(folder: Path, **records: Trace | Plan) -> list[str]:
    DISK.save(folder / "machine.json")
    for name, record in records.items():
        record.save(folder / f"{name}.json")
    return [str(folder / f"{name}.json") for name in ("machine", *records)]


def test_the_command_compares_on_the_terminal_in_json_and_as_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = written(tmp_path, trace=TRACE, four=FOUR, two=TWO)

    assert main(["report", *files]) == 0
    shown = capsys.readouterr().out
    assert "two holds 32.0 MiB more at the peak than four" in shown
    assert re.search(r"peak allocated +132.0 MiB +164.0 MiB +\+32.0 MiB", shown)

    assert main(["report", "--json", *files]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "elbowroom.answer.comparison"
    assert answer["names"] == ["four", "two"]
    assert [step["peak_allocated_bytes"] for step in answer["steps"]] == [132 * MIB, 164 * MIB]

    assert main(["report", *files, "-o", str(tmp_path / "compare.html")]) == 0
    assert "<h2" in (tmp_path / "compare.html").read_text("utf-8")
    assert main(["report", *files, "-o", str(tmp_path / "compare.txt")]) == 2
    assert "allowed is a name ending in .html" in capsys.readouterr().err


def test_a_file_that_is_given_twice_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine, trace, four = written(tmp_path, trace=TRACE, four=FOUR)

    assert main(["report", machine, trace, four, four]) == 2
    assert f"given {four} twice" in capsys.readouterr().err


def test_two_timelines_are_a_page_that_compares_them(tmp_path: Path) -> None:
    for name, line in (("a", measured(TRACE, FOUR)), ("b", measured(TRACE, TWO))):
        line.save(tmp_path / f"{name}.json")

    code = main(["report", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "-o", str(tmp_path / "two.html")])

    assert code == 0
    assert "b holds 32.0 MiB more at the peak than a" in (tmp_path / "two.html").read_text("utf-8")


@in_browser
def test_both_lanes_have_one_axis_and_bars_one_scale(tmp_path: Path) -> None:
    # given a step of 640 ms, and one that waits: the shorter's last bar ends before the end of the chart
    slow_disk = replace(DISK, links=(replace(DISK.links[0], out_bytes_per_s=50 * MIB, back_bytes_per_s=50 * MIB),))
    waiting = replace(simulate(TRACE, slow_disk, FOUR), source="measured")
    sides = sides_of({"t": TRACE, "plan": FOUR, "a": measured(TRACE, FOUR), "b": waiting})
    page = compare_page(sides)

    ends = "(() => { const data = JSON.parse(document.getElementById('data').textContent);"
    ends += " return [data.lanes.map((it) => it.step_ns), data.memory.at_ns.at(-1)] })()"
    steps, end = seen(tmp_path, page, ends, 1000)  # type: ignore[misc]
    assert steps == [640_000_000, waiting.step_ns]
    assert end == waiting.step_ns > 640_000_000

    canvases = "[...document.querySelectorAll('canvas')].map((it) => it.ariaLabel.split('.')[0])"
    assert seen(tmp_path, page, canvases, 1000) == [
        "Line chart of memory over two steps",
        "Bars of what runs when, on each lane",
    ]
    bars = "[...document.querySelectorAll('svg[aria-label^=Bytes] rect')].map((it) => Number(it.getAttribute('width')))"
    widths = seen(tmp_path, compare_page(two_plans()), bars, 1000)
    assert isinstance(widths, list)
    # per category the first and the second plan's, in proportion to their bytes
    sizes = [size for pair in category_bytes(two_plans()).values() for size in pair if size]
    assert widths == pytest.approx([widths[0] * size / sizes[0] for size in sizes], abs=0.2)


@in_browser
def test_a_page_of_two_steps_fits_a_narrow_window(tmp_path: Path) -> None:
    trace = chain(name="encoder.a_module_with_quite_a_long_path.of_names.block.layer")
    plans = {"a_plan_with_a_long_name.json": swapping(trace), "b": swapping(trace, layers=4, budget_bytes=200 * MIB)}

    page = compare_page(sides_of({"trace": trace, "machine": DISK, **plans}))

    assert seen(tmp_path, page, "document.documentElement.scrollWidth <= innerWidth", 400) is True
