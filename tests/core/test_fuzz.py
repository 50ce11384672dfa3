"""A few cases of the fuzz in every run of the suite; `make fuzz` looks at thousands."""

from __future__ import annotations

import pytest

from elbowroom.planners import PLANNERS
from tests.fuzz.cases import case
from tests.fuzz.properties import agrees_with_reference, examine


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_any_plan_is_simulated_as_the_reference_plays_it(first: int) -> None:
    for seed in range(first, first + 50):
        drawn = case(seed)
        agrees_with_reference(drawn.trace, drawn.machine, drawn.plan)


@pytest.mark.parametrize("seed", range(12))
def test_every_planner_keeps_its_promises(seed: int) -> None:
    assert examine(case(seed, layers=5))["plans of planners"] == len(PLANNERS)


def test_a_seed_names_one_case_for_good() -> None:
    # given the same seed twice, and another
    assert case(7) == case(7)
    assert case(7).trace.id != case(8).trace.id
