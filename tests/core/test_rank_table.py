"""The report of several ranks: a row each, and the rank that the others wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from elbowroom.cli import main
from elbowroom.errors import UsageError
from elbowroom.report.rank_table import rank_times, ranks_rendered, waited_for
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
    assert "none waits clearly less than the others" in text_of(ranks_rendered(ranks, "simulated"))


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
    assert main(["report", *files, "-o", str(tmp_path / "page.html")]) == 2
    assert "--out: given with timelines of 3 ranks" in capsys.readouterr().err
