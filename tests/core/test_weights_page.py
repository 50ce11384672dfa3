"""The tables of weights in docs/benchmarks.md have what the newest result files hold, and each row fits its card."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the benchmark imports it")
from benchmarks.results import RESULTS, newest_results
from benchmarks.table import weights_table
from benchmarks.weights import beside_peers, published
from benchmarks.weights.__main__ import CARDS, CASE, DOCS, GPUS, table


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    return newest_results(RESULTS)


def test_the_tables_are_those_of_the_newest_results(results: dict[str, dict[str, Any]]) -> None:
    page = DOCS.read_text("utf-8")

    assert table(results[CASE]) in page
    assert weights_table(results["demo_weights"]) in page
    assert published.table(results[published.CASE]) in page
    assert beside_peers.table(results[beside_peers.CASE]) in page


def test_every_shape_trains_within_its_card_on_every_gpu_and_within_the_ram(results: dict[str, dict[str, Any]]) -> None:
    rows = results[CASE]["rows"]

    assert [(row["shape"], row["gpu"]) for row in rows] == [(shape, gpu) for shape in CARDS for gpu in GPUS]
    for row in rows:
        assert row["plan"]["fits"], row
        assert row["plan"]["needed_bytes"] <= CARDS[row["shape"]]
        assert row["plan"]["host_bytes"] <= row["ram_bytes"]
        assert row["plan"]["step_ns"] >= row["plan"]["kept_step_ns"] > 0


def test_each_published_step_has_ours_within_the_same_bytes(results: dict[str, dict[str, Any]]) -> None:
    rows = results[published.CASE]["rows"]

    assert {row["peer"]: (row["step_ns"], row["size_bytes"]) for row in rows} == published.PUBLISHED
    for row in rows:
        assert row["plan"]["fits"], row
        assert row["plan"]["step_ns"] >= row["plan"]["kept_step_ns"] > 0


def test_the_demo_stayed_below_a_third_of_its_weights_with_equal_numbers(results: dict[str, dict[str, Any]]) -> None:
    run = results["demo_weights"]["run"]

    assert run["training_bytes"] >= 3 * run["limit_bytes"]
    assert (run["bit_equal"], run["loss_fell"], run["limited"]["failed"]) == (True, True, True)
