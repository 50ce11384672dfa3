"""A plan made from a capture on a virtual GPU, followed on the CUDA build of PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

import elbowroom as er
from elbowroom.planners import Means
from tests.fakecuda.test_within_peaks import on_the_rig, rig
from tests.fakecuda.within_models import MODELS

__all__ = ["rig"]


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("model", "allow", "share"),
    [
        ("residual net", ("swap",), 0.6),
        ("language model of two blocks", ("swap", "state"), 0.7),
        ("volume net", ("swap",), 0.75),
    ],
)
def test_a_plan_for_a_gpu_that_was_not_there_is_run_on_one(
    rig: Path, tmp_path: Path, model: str, allow: tuple[Means, ...], share: float
) -> None:
    # given
    machine = er.Machine.of("h100-sxm")
    trace = er.capture(MODELS[model], machine=machine, steps=3, in_parts="state" in allow)
    budget_bytes = int(share * er.simulate(trace, machine).peak_reserved_bytes)
    made = er.plan(trace, machine, budget_bytes, allow=allow)
    assert made.swaps
    trace.save(tmp_path / "trace.json")
    made.save(tmp_path / "plan.json")
    # when
    files = {"plan": str(tmp_path / "plan.json"), "trace": str(tmp_path / "trace.json")}
    found = on_the_rig(rig, {"model": model, "steps": 5, **files}, "given.py")
    # then from the second or third step on it moves the same storages
    run = found["run"]
    assert run["steps"][-1]["mode"] == "plan"
    assert run["plan"]["swaps"] == len(made.swaps)
    # and as many bytes: without those whose write is given up, there as here
    assert run["plan"]["bytes"] == er.simulate(trace, machine, made).swapped_out_bytes
    assert [figures["mismatches"] for figures in run["figures"]] == [0] * 5
    # and the allocator holds what is simulated for the run, within the budget
    last, simulated = run["steps"][-1], run["simulated"]
    for kind in ("allocated", "reserved"):
        assert abs(last[kind] - simulated[kind]) <= 0.01 * simulated[kind] + 2**20  # 1 % + 1 MiB
    assert last["reserved"] <= run["budget_bytes"]
    assert found["told"] == []
