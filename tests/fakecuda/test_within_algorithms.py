"""Algorithms of convolutions chosen by a plan, on the CUDA build of PyTorch: memory and order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakecuda.test_within_peaks import on_the_rig
from tests.fakecuda.test_within_peaks import rig as rig

MIB = 2**20


def run_with(rig: Path, fastest: str, workspace_bytes: int) -> dict[str, Any]:
    spec = {"share": 0.8, "fastest": fastest}
    return on_the_rig(rig, spec, "algorithms.py", workspace_bytes=workspace_bytes)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("fastest", "workspace_bytes"),
    [("native", 32 * MIB), ("cudnn benchmark", 8 * MIB), ("cudnn channels_last", 0)],
)
def test_what_the_plan_chooses_is_run_within_the_budget_and_put_back(
    rig: Path, fastest: str, workspace_bytes: int
) -> None:
    # when a net of 13 convolutions trains at 80 % of its peak, and one of the choices is taken for the fastest
    found = run_with(rig, fastest, workspace_bytes)
    run = found["run"]
    # then all run with it, forward and backward, to the end
    assert run["algorithms"] == {fastest: 2 * 13}
    assert run["steps"][-1]["mode"] == "plan"
    assert [figures["mismatches"] for figures in run["figures"]] == [0] * 6
    assert run["plan"]["swaps"] > 0
    # and the allocator holds what the simulation says, within the budget
    last, simulated = run["steps"][-1], run["simulated"]
    assert last["reserved"] <= run["budget_bytes"]
    for kind in ("allocated", "reserved"):
        assert abs(last[kind] - simulated[kind]) <= 0.01 * simulated[kind] + MIB  # 1 % + 1 MiB
    # and cuDNN is set as it was
    assert found["after"] == found["before"]


@pytest.mark.timeout(0)
def test_every_choice_is_measured_with_the_workspace_that_it_takes(rig: Path) -> None:
    # given cuDNN convolutions with a workspace of 32 MiB
    found = run_with(rig, "native", 32 * MIB)
    scratch = next(made for shape, made in found["scratch_bytes"] if shape == [16, 64, 64, 64])
    # then all that cuDNN carries out take it, to the 512 bytes of the allocator
    for name in ("cudnn", "cudnn benchmark", "cudnn deterministic"):
        assert [abs(size_bytes - 32 * MIB) < 512 for size_bytes in scratch[name]] == [True, True]
    # and torch's own way unfolds one picture: 64 channels x 9 places x 64 x 64 outputs, float32
    assert scratch["native"] == [64 * 9 * 64 * 64 * 4] * 2
    # and another format has copies beside the workspace: of 16 pictures of 64 channels x 64 x 64, float32, at least
    assert min(scratch["cudnn channels_last"]) >= 32 * MIB + 16 * 64 * 64 * 64 * 4
