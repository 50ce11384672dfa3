"""Small graphs made at random train to the same numbers at several budgets."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.graphs import SIZE, Made
from tests.fuzz.trainings import case, examine
from tests.torch.helpers import Training, assert_equal, needs, ordinary, train, train_within


@pytest.mark.parametrize("seed", range(8))
def test_a_random_graph_trains_to_the_same_numbers_at_any_budget(seed: int) -> None:
    # given
    def setup() -> Training:
        return ordinary(Made(seed), torch.randn(96, SIZE))

    plain = train(setup, 4)
    least, peak = needs(setup)
    swapped = 0
    for share in (0.05, 0.6):
        # when
        inside, room = train_within(setup, 4, budget=least + int(share * (peak - least)) + 4096)
        # then
        assert_equal(inside, plain)
        assert sum(step.mismatches for step in room.steps) == 0
        swapped += room.steps[-1].swapped_out_bytes
    assert swapped > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [3, 4, 13, 14, 29, 31])
def test_a_random_training_has_the_same_numbers_whatever_it_does_and_plans_may_do(seed: int) -> None:
    # `make fuzz FUZZ_ARGS="--of trainings"` looks at many more
    assert examine(case(seed))["equal"] == 1
