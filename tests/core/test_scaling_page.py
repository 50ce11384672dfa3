"""docs/scaling.md has what the newest result file holds, and its published parts are what their sources give."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the benchmark imports it")
from benchmarks.results import RESULTS, newest_results
from benchmarks.scaling.__main__ import PAGE, RANKS, on_ranks, published_table, study_table, swapped_table
from benchmarks.scaling.published import PUBLISHED
from elbowroom.hardware.interconnects import Communicator
from tests.core.test_overlap import reduced


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return newest_results(RESULTS)["scaling"]


@pytest.mark.parametrize("table", [published_table, study_table, swapped_table])
def test_a_table_of_the_page_is_that_of_the_newest_result(table: Any, result: dict[str, Any]) -> None:
    assert table(result) in PAGE.read_text("utf-8")


def test_at_least_three_published_tables_are_compared_each_with_its_source(result: dict[str, Any]) -> None:
    sources = {row["source"] for row in result["published"]}

    assert len(sources) >= 3
    assert [row["part"] for row in result["published"]] == pytest.approx([row.part for row in PUBLISHED])
    # ranks are never late in simulation: no row is slower than what was measured by more than a point
    assert all(-0.01 < row["simulated_part"] - row["part"] < 0.05 for row in result["published"])


def test_the_published_parts_follow_from_images_and_tokens() -> None:
    # torchtitan 5,605 of 5,762 tokens; DLPerf 4,372.33 of 2 * 2,244.24 images
    assert PUBLISHED[0].part == pytest.approx(0.9728, abs=1e-4)
    assert PUBLISHED[1].part == pytest.approx(0.9741, abs=1e-4)


def test_more_ranks_make_no_step_shorter(result: dict[str, Any]) -> None:
    for row in result["study"]:
        steps = [row["step_ns"][str(ranks)] for ranks in RANKS]
        assert steps == sorted(steps)
    for row in result["swapped"]:
        assert row["kept_step_ns"] <= row["step_ns_1"] <= row["step_ns_2"]


def test_a_trace_on_other_ranks_has_groups_of_that_size() -> None:
    assert on_ranks(reduced(1), 4096, 8).communicators == (Communicator(4096, 8, 8),) * 2
    assert on_ranks(reduced(1), 4, 8).communicators == (Communicator(4, 4, 4),) * 2
