"""On a GPU: managed memory beyond the budget and the way to the disk past the host, with the bits of plain training."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import elbowroom as er
from elbowroom.engine.tiers import managed
from elbowroom.errors import UsageError
from elbowroom.run.room import run_of
from tests.gpu.slow import needs_kernels
from tests.gpu.test_within_races import STEPS, outcome, share_of_plain, training

pytestmark = pytest.mark.gpu


def same_as_plain(budget: str | int, **options: Any) -> Any:
    """Train with and without a budget, and see the same bits; the tier that was below the device."""
    plain = outcome(*training())
    gc.collect()
    torch.cuda.empty_cache()
    step, model = training()
    torch.cuda.reset_peak_memory_stats()
    with er.within(budget, **options) as room:
        inside = outcome(step, model)
    assert len(room.steps) == STEPS
    for one, other in zip(inside, plain, strict=True):
        assert torch.equal(one, other)
    return run_of(room)._executor.tier


@needs_kernels
def test_what_is_beyond_the_budget_lies_in_managed_memory() -> None:
    # given a budget that no plan meets
    budget = share_of_plain(0.12)
    with pytest.raises(er.Infeasible):
        same_as_plain(budget)
    gc.collect()
    torch.cuda.empty_cache()
    # when as much again may lie in managed memory as plain training takes
    try:
        same_as_plain(budget, managed=8 * budget)
    except UsageError as refused:
        pytest.skip(f"this device has no managed memory beside the host: {refused}")
    # then that was needed, and is given back
    assert torch.cuda.max_memory_allocated() > budget
    gc.collect()
    torch.cuda.empty_cache()
    assert managed.held_bytes() == 0


@needs_kernels
def test_what_goes_to_the_disk_past_the_host_comes_back(tmp_path: Path) -> None:
    # given a host that holds little of what must be swapped
    budget = f"device={share_of_plain(0.6)},host=64MiB"
    # when
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tier = same_as_plain(budget, gds=True, spill_dir=tmp_path)
    # then
    if not tier.skips_host:
        pytest.skip(next(str(each.message) for each in told if "GPUDirect" in str(each.message)))
