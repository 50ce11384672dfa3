"""Every module and every optimizer of PyTorch's own databases with all parameters away whenever idle: bit-equal.

Each optimizer also goes on from a file, whose weights and states leave as they are loaded.
"""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import elbowroom as er
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from tests.databases.forced import same
from tests.databases.optimizers import settings
from tests.databases.test_module_db import modules, setup_of
from tests.databases.test_optim_db_states import ways, with_mlp
from tests.torch.helpers import Setup, Training, assert_equal, finish, seeded, train

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


def saved(training: Training, steps: int) -> bytes:
    """A file with the model and the optimizer of a training after some steps."""
    finish(training, steps)
    file = io.BytesIO()
    torch.save([each.state_dict() for each in (*training.modules, *training.optimizers)], file)
    return file.getvalue()


@pytest.mark.parametrize(("info", "given"), list(settings(ways)))
def test_an_optimizer_goes_on_from_a_file_whose_weights_leave_as_they_are_loaded(
    info: Any, given: dict[str, Any]
) -> None:
    if info.optim_cls.__name__ == "SparseAdam":
        pytest.skip("it takes sparse gradients only; tests/torch/test_states_cases.py has it with an embedding")
    file = saved(seeded(lambda: with_mlp(info, given)), 2)

    def resumed() -> Training:
        training = with_mlp(info, given)
        training.modules[0].double().float()
        for each, state in zip((*training.modules, *training.optimizers), torch.load(io.BytesIO(file)), strict=True):
            each.load_state_dict(state)
        return training

    plain = train(resumed, STEPS)
    if not same(plain, train(resumed, STEPS)):
        pytest.skip("plain training, run twice, gives two results")
    gc.collect()
    # when
    with er.within("100GiB", min_size=1, planner="on_demand", allow=EVERYTHING):
        training = seeded(resumed)
        sizes = [RAW_STORAGE(each).nbytes() for each in training.modules[0].parameters()]
        inside = finish(training, STEPS)
    # then all but the last few were away before the first step
    assert sizes.count(0) >= len(sizes) - 2
    assert_equal(inside, plain)
