"""Every optimizer of PyTorch's own database, each setting, each way to run it: bit-equal with its states away."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import elbowroom as er
from tests.databases.optimizers import Ways, settings, trained
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Training,
    assert_equal,
    finish,
    mlp,
    moved_categories,
    needs,
    seeded,
    train,
)

pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH, DEPTH, SAMPLES, STEPS = 32, 4, 16, 5
WAYS: dict[str, dict[str, bool]] = {
    "one by one": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
KEPT = {"LBFGS": "its step calls a closure, within which the training runs", "SGD": "none without momentum"}
"""Optimizers whose states stay, at least with some settings, and why."""


def ways(info: Any) -> Ways:
    """Each way that an optimizer can run in on the CPU."""
    found = {way: more for way, more in WAYS.items() if way in (*info.supported_impls, "one by one")}
    if "cpu" not in info.supports_fused_on:
        found.pop("fused", None)
    return found if len(found) > 1 else {"as it is": {}}


def with_mlp(info: Any, given: dict[str, Any]) -> Training:
    return trained(info, given, mlp(WIDTH, DEPTH), torch.randn(SAMPLES, WIDTH))


def large_states(training: Training) -> int:
    """Bytes of the states that may leave."""
    tensors = [v for values in training.optimizers[0].state.values() for v in values.values() if isinstance(v, Tensor)]
    return sum(size for size in (v.untyped_storage().nbytes() for v in tensors) if size >= MIN_SIZE_BYTES)


@pytest.mark.parametrize(("info", "given"), list(settings(ways)))
def test_weights_and_states_are_bit_equal_with_states_away(info: Any, given: dict[str, Any]) -> None:
    name = info.optim_cls.__name__
    if name == "SparseAdam":
        pytest.skip("it takes sparse gradients only; tests/torch/test_states_cases.py has it with an embedding")

    def setup() -> Training:
        return with_mlp(info, given)

    # given a budget that half of the states must make room for
    plain = train(setup, STEPS)
    training = seeded(setup)
    finish(training, 2)
    states = 0 if name == "LBFGS" or given.get("differentiable") else large_states(training)
    del training
    # (one tensor at a time: the lists of foreach need more, and less once they are carried out in parts)
    alone = {key: value for key, value in given.items() if key not in ("foreach", "fused")}
    if alone != given:
        alone["foreach"] = False
    least, _ = needs(lambda: with_mlp(info, alone))
    budget = least - states // 2 if states else least + MIN_SIZE_BYTES
    # when
    with er.within(budget, min_size=MIN_SIZE_BYTES, allow=("swap", "state")) as room:
        inside = finish(seeded(setup), STEPS)
    # then
    assert_equal(inside, plain)
    assert sum(step.mismatches for step in room.steps) == 0
    if states:
        assert "optimizer_state" in moved_categories(room), "states move"
    else:
        assert name in KEPT or given.get("differentiable") or not large_states(seeded(setup)), "states that stay"
