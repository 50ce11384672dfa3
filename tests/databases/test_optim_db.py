"""Every optimizer of PyTorch's own database with each of its settings: weights stay bit-equal in a tight budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.databases.forced import train_recomputing_all
from tests.databases.optimizers import settings, trained
from tests.torch.helpers import Training, assert_equal, mlp, train, train_within

pytestmark = pytest.mark.filterwarnings("ignore")


def with_mlp(info: Any, given: dict[str, Any]) -> Training:
    # What LBFGS keeps of earlier steps is more than what few rows save.
    return trained(info, given, mlp(), torch.randn(1024 if info.step_requires_closure else 96, 64))


@pytest.mark.parametrize(("info", "given"), list(settings(lambda _: {"": {}})))
def test_weights_and_states_are_bit_equal_when_what_a_step_saves_is_swapped(info: Any, given: dict[str, Any]) -> None:
    if info.optim_cls.__name__ == "SparseAdam":
        pytest.skip("it takes sparse gradients only; tests/torch/test_numerics_models.py has it with an embedding")

    def setup() -> Training:
        return with_mlp(info, given)

    # when
    plain = train(setup)
    inside, room = train_within(setup)
    # then
    assert_equal(inside, plain)
    # LBFGS calls its closure as often as it likes: its steps differ, and the last may be of a kind that fits.
    steps = room.steps if info.step_requires_closure else room.steps[-1:]
    assert any(step.swapped_out_bytes > 0 for step in steps)


@pytest.mark.parametrize(("info", "given"), list(settings(lambda _: {"": {}})))
def test_weights_and_states_are_bit_equal_when_what_a_step_saves_is_recomputed(
    info: Any, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if info.optim_cls.__name__ == "SparseAdam":
        pytest.skip("it takes sparse gradients only; tests/torch/test_numerics_models.py has it with an embedding")
    # when
    did = train_recomputing_all(lambda: with_mlp(info, given), monkeypatch)
    # then, but for steps of LBFGS, which calls its closure as often as it likes, every recipe of the plan ran
    assert did.impossible == () or info.step_requires_closure
    assert did.mismatches == 0 or info.step_requires_closure
    assert did.recomputed_bytes == did.planned_bytes or info.step_requires_closure
    assert did.planned_bytes > 0 or info.step_requires_closure
