"""The report of several ranks: a row each, and the rank that the others wait for."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

import pytest

from elbowroom.cli import main
from elbowroom.errors import FormatError, UsageError
from elbowroom.report.rank_table import rank_times, ranks_rendered, run_times, waited_for
from elbowroom.timeline import Curve, Source, Span, Timeline
from tests.cli.answers import answered
from tests.core.test_answer import text_of

MS = 10**6


def rank(busy_ms: int, wait_ms: int, source: Source = "simulated", peak: int = 2**30) -> Timeline:
    """A step that computes, then waits for a collective."""
    spans = (
        Span(lane="compute", kind="op", name="aten.mm", start_ns=0, end_ns=busy_ms * MS, op=0),
        Span(lane="compute", kind="wait", name="w", start_ns=busy_ms * MS, end_ns=(busy_ms + wait_ms) * MS, op=1),
    )
    curve = Curve(tier="device", kind="allocated", at_ns=(0,), size_bytes=(peak,))
    return Timeline(source=source, trace_id="", step_ns=(busy_ms + wait_ms) * MS, spans=spans, curves=(curve,))


def test_the_rank_that_waits_least_is_the_one_that_is_waited_for() -> None:
    ranks = rank_times({"a": rank(60, 40), "b": rank(95, 5), "c": rank(50, 50)})

    assert (late := waited_for(ranks)) is not None
    assert late.name == "b"
    assert (ranks[0].step_ns, ranks[0].busy_ns, ranks[0].wait_ns) == (100 * MS, 60 * MS, 40 * MS)
    text = " ".join(text_of(ranks_rendered(ranks, "simulated")).split())
    assert "the others wait for b, which waits 5.0 ms of its step and they up to 50.0 ms" in text


def test_equal_ranks_wait_for_no_one() -> None:
    ranks = rank_times({"a": rank(60, 40), "b": rank(60, 40)})

    assert waited_for(ranks) is None
    assert "no rank makes the others wait by a clear part of a step" in text_of(ranks_rendered(ranks, "simulated"))


def test_a_thousand_ranks_are_a_table_of_those_that_wait_least() -> None:
    ranks = rank_times({f"rank{n}": rank(1000, n) for n in range(1000)})

    text = text_of(ranks_rendered(ranks, "measured"))

    assert [line.split()[0] for line in text.splitlines() if line.startswith("rank") and "GiB" in line] == [
        f"rank{n}" for n in range(16)
    ]
    assert "984 more ranks" in text


def test_simulated_and_measured_ranks_are_not_mixed() -> None:
    with pytest.raises(UsageError, match="some simulated and some measured"):
        rank_times({"a": rank(1, 1), "b": rank(1, 1), "c": rank(1, 1, "measured")})


def test_report_takes_the_timelines_of_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / f"{name}.json") for name in "abc"]
    for path, line in zip(files, (rank(60, 40), rank(95, 5), rank(50, 50)), strict=True):
        line.save(path)

    assert main(["report", *files, "--json"]) == 0
    found = answered(capsys.readouterr().out, "ranks")
    assert (found["waited_for"], found["source"]) == (files[1], "simulated")
    assert [each["wait_ns"] for each in found["ranks"]] == [40 * MS, 5 * MS, 50 * MS]

    assert main(["report", *files]) == 0
    assert "3 ranks, simulated: the others wait for" in " ".join(capsys.readouterr().out.split())
    assert main(["report", *files, "-o", str(tmp_path / "ranks.txt")]) == 2
    assert "with 3 ranks; allowed is a name ending in .html" in capsys.readouterr().err


def test_ranks_have_a_page_that_says_who_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / f"{name}.json") for name in ("a", "b<i>", "c")]
    for path, line in zip(files, (rank(60, 40), rank(95, 5), rank(50, 50)), strict=True):
        line.save(path)

    assert main(["report", *files, "-o", str(tmp_path / "page.html")]) == 0

    page = (tmp_path / "page.html").read_text("utf-8")
    assert capsys.readouterr().out == ""
    assert f"the others wait for {escape(files[1])}, which waits 5.0 ms of its step and they up to 50.0 ms." in page
    assert "b<i>" not in page
    assert page.count("Time that a rank waits for the others, of a step") > 0
    cells = re.findall(r'<tr><th scope="row">([^<]*)</th><td>([^<]*)</td><td>([^<]*)</td>', page)
    assert cells == [(escape(files[n]), "1.00 GiB", "100.0 ms") for n in (1, 0, 2)]  # who waits least comes first


def run_of(stalls_ms: tuple[int, ...]) -> dict[str, Any]:
    """What a run writes, cut to what is read: steps of 100 ms."""
    steps = [{"step_ns": 100 * MS, "stall_ns": stall * MS} for stall in stalls_ms]
    peaks = {"measured_peak_allocated_bytes": 2**30, "measured_peak_bytes": 2**31}
    return {"schema": "elbowroom.answer.run", "version": 1, "steps": steps, **peaks}


def test_the_rank_of_a_run_that_stalls_longest_is_the_one_that_is_waited_for() -> None:
    ranks = run_times({"a": run_of((90, 2, 3)), "b": run_of((0, 30, 40))})

    # medians of 3 and 30 ms: a first step that is observed does not count
    assert [each.stall_ns for each in ranks] == [3 * MS, 30 * MS]
    assert (late := waited_for(ranks)) is not None
    assert (late.name, late.wait_ns, late.peak_reserved_bytes) == ("b", None, 2**31)
    assert "wait for b, which stalls longest for copies, 30.0 ms" in " ".join(
        text_of(ranks_rendered(ranks, "measured")).split()
    )


def test_the_rank_of_a_run_that_waits_least_is_the_one_that_is_waited_for_if_waits_were_measured() -> None:
    # b stalls for copies, and a computes for longer
    runs = {"a": run_of((0,)) | {"measured_wait_ns": 5 * MS}, "b": run_of((30,)) | {"measured_wait_ns": 60 * MS}}

    ranks = run_times(runs)

    assert (late := waited_for(ranks)) is not None
    assert (late.name, late.wait_ns) == ("a", 5 * MS)
    # a rank without a measured step leaves what they stall for
    without = run_times(runs | {"c": run_of((0,)) | {"measured_wait_ns": None}})
    assert [each.wait_ns for each in without] == [None] * 3


def test_report_takes_the_runs_of_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"run.rank{n}.json" for n in range(2)]
    for path, stall in zip(files, (5, 40), strict=True):
        path.write_text(json.dumps(run_of((stall,))))

    assert main(["report", *map(str, files), "--json"]) == 0
    found = answered(capsys.readouterr().out, "ranks")
    assert (found["source"], found["waited_for"]) == ("measured", str(files[1]))

    files[1].write_text("[]")
    assert main(["report", *map(str, files)]) == 2, "one of them is something else"


def test_a_run_without_steps_is_refused() -> None:
    with pytest.raises(FormatError, match="a: no figures of a run with steps in it"):
        run_times({"a": run_of(())})
