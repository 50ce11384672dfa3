"""On a GPU: many models, in less memory, with every bit of plain training."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import elbowroom as er
from benchmarks.gpu_peers import with_models
from elbowroom.planners import DEFAULT_MEANS, MEANS, Means
from elbowroom.run.room import Room
from tests.fakecuda.within_models import MODELS
from tests.gpu.budgets import within_or_least
from tests.gpu.slow import needs_kernels

pytestmark = [pytest.mark.gpu, needs_kernels]

STEPS = 9
"""Recomputes are learnt and proven in the first six."""
SHARE = 0.6
NAMES = (
    "perceptron", "residual net", "residual net in bfloat16", "perceptron in micro-batches", "vgg",
    "separable convolutions", "autoencoder", "volume net", "language model", "language model in bfloat16",
    "vision transformer", "recurrent net", "dense net", "adversarial nets", "plane net", "wide layers",
    "wide layers with momentum", "language model of two blocks",
)  # fmt: skip
ALL_MEANS = tuple(means for means in MEANS if means != "algorithm")


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """Kernels that give the same bits each time."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


def begun(name: str) -> tuple[Callable[[], Any], list[Tensor]]:
    """A step, and what it changes: parameters and buffers."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(3)
    step, models = with_models(MODELS[name])
    torch.manual_seed(4)  # of dropout
    return step, [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]


def plain(name: str) -> tuple[list[Tensor], int]:
    """What plain training ends in, and what it reserves."""
    step, changed = begun(name)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        step()
    return [tensor.detach().cpu() for tensor in changed], torch.cuda.max_memory_reserved()


def inside(name: str, budget_bytes: int, allow: Sequence[Means]) -> tuple[list[Tensor], Room]:
    """The same within a budget."""
    step, changed = begun(name)
    with er.within(budget_bytes, allow=allow) as room:
        for _ in range(STEPS):
            step()
    return [tensor.detach().cpu() for tensor in changed], room


@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("allow", [DEFAULT_MEANS, ALL_MEANS], ids=["default", "all"])
@pytest.mark.parametrize("name", NAMES)
def test_less_memory_changes_no_bit(name: str, allow: Sequence[Means]) -> None:
    # given plain training, which gives the same bits each time
    expected, reserved_bytes = plain(name)
    again, _ = plain(name)
    if not all(map(torch.equal, expected, again)):
        pytest.skip(f"{name}: plain training gives other bits each time")
    del again
    # when
    found, room = within_or_least(lambda budget: inside(name, budget, allow), int(SHARE * reserved_bytes))
    # then
    assert room.plan is not None
    moved = sum(step.swapped_out_bytes + step.recomputed_bytes for step in room.steps[-2:])
    assert moved > 0
    assert [step.mismatches for step in room.steps] == [0] * len(room.steps)
    assert all(map(torch.equal, found, expected))
