"""The tables of docs/energy.md have what the newest result file holds, and the result is of the published tables."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the benchmark imports it")
from benchmarks.energy.__main__ import CASE, DOCS, PLANNED, shares, with_tables
from benchmarks.results import RESULTS, newest_results


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return newest_results(RESULTS)[CASE]


def test_the_tables_are_those_of_the_newest_result(result: dict[str, Any]) -> None:
    page = DOCS.read_text("utf-8")
    assert with_tables(page, result) == page


def test_the_shares_are_those_of_the_excerpt(result: dict[str, Any]) -> None:
    assert result["shares"] == shares()


def test_two_published_tables_are_compared(result: dict[str, Any]) -> None:
    rows = result["published"]

    assert {row["source"] for row in rows} == {"Zeus", "YeQiao"}
    for row in rows:
        energy, joules = row["energy"], row["published_ns"] * row["published_watts"] / 1e9
        assert 0 < energy["least"] <= energy["likely"] <= energy["most"]
        assert row["published_millijoules"] == pytest.approx(1e3 * joules, rel=1e-4)


def test_a_plan_by_energy_takes_no_more_joules_than_one_by_time(result: dict[str, Any]) -> None:
    assert [(row["case"], row["gpu"], row["share"]) for row in result["plans"]] == list(PLANNED)
    for row in result["plans"]:
        assert row["energy"]["energy"]["likely"] <= row["time"]["energy"]["likely"]
