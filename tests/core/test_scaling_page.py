"""docs/scaling.md has what the newest result file holds, and its published parts are what their sources give."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the benchmark imports it")
from benchmarks.results import RESULTS, newest_results
from benchmarks.scaling import late_ranks
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


@pytest.fixture(scope="module")
def late() -> dict[str, Any]:
    return newest_results(RESULTS)["late-ranks"]


@pytest.mark.parametrize("table", [late_ranks.pipeline_table, late_ranks.straggler_table])
def test_a_table_of_late_ranks_is_that_of_the_newest_result(table: Any, late: dict[str, Any]) -> None:
    assert table(late) in PAGE.read_text("utf-8")


def test_all_stages_of_a_pipeline_have_one_pace(late: dict[str, Any]) -> None:
    for row in late["pipelines"]:
        step, waits = row["step_ns"][0], row["wait_ns"]
        assert row["step_ns"] == [step] * row["stages"]
        # the last stage does most, so it waits less than stages that do equally much, and the first one more
        assert waits[-1] / step < row["formula_part"] < waits[0] / step
    steps = {(row["schedule"], row["micro_batches"]): row["step_ns"][0] for row in late["pipelines"]}
    for batches in late_ranks.MICRO_BATCHES:
        assert steps["Interleaved1F1B", batches] < steps["1F1B", batches] == steps["GPipe", batches]


def test_all_ranks_have_the_pace_of_the_slow_one(late: dict[str, Any]) -> None:
    for row in late["stragglers"]:
        assert row["step_ns"] == pytest.approx(row["alone_ns"], rel=1e-3)
        assert row["slow_step_ns"] == pytest.approx(row["alone_ns"], rel=1e-3)


def test_a_trace_on_other_ranks_has_groups_of_that_size() -> None:
    assert on_ranks(reduced(1), 4096, 8).communicators == (Communicator(4096, 8, 8),) * 2
    assert on_ranks(reduced(1), 4, 8).communicators == (Communicator(4, 4, 4),) * 2
