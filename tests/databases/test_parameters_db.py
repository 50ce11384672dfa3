"""Every module and every optimizer of PyTorch's own databases with all parameters away whenever idle: bit-equal."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import elbowroom as er
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from tests.databases.forced import same
from tests.databases.optimizers import settings
from tests.databases.test_module_db import modules, setup_of
from tests.databases.test_optim_db_states import ways, with_mlp
from tests.torch.helpers import Setup, assert_equal, finish, seeded, train

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS = 4
EVERYTHING: tuple[Means, ...] = ("swap", "state", "gradient", "parameter")


@pytest.fixture(autouse=True)
def _all_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans move everything, and models leave as they come."""
    monkeypatch.setattr(run_budget, "_ways", lambda asked: [asked])
    yield
    gc.collect()


def train_with_all_away(setup: Setup) -> None:
    """Train plain and with all away, and compare every number bit by bit."""
    plain = train(setup, STEPS)
    if not same(plain, train(setup, STEPS)):
        pytest.skip("plain training, run twice, gives two results")
    gc.collect()
    with er.within("100GiB", min_size=1, planner="on_demand", allow=EVERYTHING):
        inside = finish(seeded(setup), STEPS)
    assert_equal(inside, plain)


@pytest.mark.parametrize("info", modules())
def test_a_module_gives_the_same_bits(info: Any) -> None:
    train_with_all_away(setup_of(info))


@pytest.mark.parametrize(("info", "given"), list(settings(ways)))
def test_an_optimizer_gives_the_same_bits(info: Any, given: dict[str, Any]) -> None:
    if info.optim_cls.__name__ == "SparseAdam":
        pytest.skip("it takes sparse gradients only; tests/torch/test_states_cases.py has it with an embedding")
    train_with_all_away(lambda: with_mlp(info, given))
