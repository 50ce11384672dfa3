"""What benchmarks.limits makes of a sweep of hard limits."""

from __future__ import annotations

from typing import Any

from benchmarks.limits import sweeps

MIB = 2**20


def point(mib: int, outcome: str = "trained", steps: int = 8) -> dict[str, Any]:
    return {"limit_bytes": mib * MIB, "outcome": outcome, "steps": steps}


def test_a_sweep_has_twelve_limits_at_equal_ratios() -> None:
    # when 12 limits lie between 500 MiB and 4000 MiB
    limits = sweeps.at_equal_ratios(500 * MIB, 4000 * MIB)
    # then the ratio of two is (4000 / 500) ** (1 / 11) = 1.208: 500, 604, ..., 4000
    assert [each // MIB for each in (*limits[:2], limits[-1])] == [500, 604, 4000]
    assert len(limits) == 12


def test_the_least_limit_is_the_smallest_that_was_met_and_failures_above_it_count() -> None:
    points = [point(400, "Infeasible", 0), point(500), point(600, "OutOfMemoryError", 1), point(700)]
    assert sweeps.least_of(points) == 500 * MIB
    assert sweeps.failures_above(points) == [points[2]]
    assert sweeps.least_of(points[:1]) is None
    assert sweeps.failures_above(points[:1]) == []


def test_only_refusals_before_the_first_step_are_what_a_person_should_get() -> None:
    points = [point(400, "Infeasible", 0), point(450, "Infeasible", 2), point(500, "OutOfMemoryError", 0), point(600)]
    assert sweeps.out_of_memory(points) == [points[2]]
    assert list(sweeps.steps_lost(points)) == [points[1]]


def test_the_search_goes_down_from_a_lowest_limit_that_is_met() -> None:
    # 0.85 * 1000 = 850
    assert sweeps.next_limit([point(1000), point(2000)]) == 850 * MIB


def test_the_search_halves_between_a_failure_and_the_least_limit_until_they_are_close() -> None:
    # the geometric mean of 400 and 900 is 600
    assert sweeps.next_limit([point(400, "Infeasible"), point(900)]) == 600 * MIB
    # 412 is within 1.03 * 400
    assert sweeps.next_limit([point(400, "Infeasible"), point(412)]) is None


def test_nothing_is_searched_for_where_no_limit_is_met() -> None:
    assert sweeps.next_limit([point(400, "Infeasible")]) is None


def test_a_training_that_held_more_than_its_budget_did_not_end_well_whatever_it_said() -> None:
    # 1 % of 400 MiB is 4 MiB
    assert not sweeps.beyond({**point(500), "reserved": 404 * MIB}, 400 * MIB)
    assert sweeps.beyond({**point(500), "reserved": 405 * MIB}, 400 * MIB)
