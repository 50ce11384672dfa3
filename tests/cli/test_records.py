"""The verb that reads and describes: report."""

from __future__ import annotations

from pathlib import Path

import pytest

from elbowroom.cli import main
from elbowroom.simulate.simulate import simulate
from elbowroom.timeline import Timeline
from tests.cli.answers import answered
from tests.core.report_case import DISK, MIB, chain, measured, swapping


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    trace = chain()
    plan = swapping(trace)
    records = {
        "trace": trace,
        "machine": DISK,
        "plan": plan,
        "simulated": simulate(trace, DISK, plan),
        "measured": measured(trace, plan),
    }
    for name, record in records.items():
        record.save(tmp_path / f"{name}.json")
    return [str(tmp_path / f"{name}.json") for name in records]


def test_report_shows_records_on_the_screen(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *files]) == 0

    out = capsys.readouterr().out
    assert "of 6 saved storages: 64.0 MiB kept (2), 128.0 MiB swapped to disk (4)" in out
    assert "\x1b" not in out


def test_report_writes_a_page_and_nothing_else(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"

    assert main(["report", *files, "-o", str(page)]) == 0

    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert capsys.readouterr().out == ""


def test_report_answers_in_json(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--json", *files]) == 0

    answer = answered(capsys.readouterr().out, "report")
    assert (answer["budget_bytes"], answer["swaps"]) == (140 * MIB, 4)
    # see test_report.py for the arithmetic
    assert answer["everything_kept"]["peak_allocated_bytes"] == 228 * MIB
    assert answer["simulated"]["peak_allocated_bytes"] == 132 * MIB
    assert answer["measured"]["swapped_out_bytes"] == 4 * 32 * MIB


def test_report_refuses_an_ending_before_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "nowhere.json", "-o", "report.pdf"]) == 2

    assert "--out: given 'report.pdf'; allowed are names ending in .html" in capsys.readouterr().err


def test_report_writes_the_timeline_as_a_record(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run.timeline.json"

    assert main(["report", *files, "-o", str(out)]) == 0

    assert Timeline.load(out).source == "measured"
