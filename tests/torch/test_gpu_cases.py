"""The parts of benchmarks.gpu, as far as they need no GPU."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import elbowroom as er
from benchmarks import gpu_cases
from benchmarks.gpu_peers import Absent, around_steps, blocks_of, search
from benchmarks.planning.nets.dense import UNet3d
from benchmarks.planning.nets.images import ResNet
from benchmarks.planning.nets.text import Gpt2


def test_checkpoints_go_around_the_blocks_of_a_model() -> None:
    # ResNet-50 has 3, 4, 6 and 3 blocks
    with torch.device("meta"):
        assert len(list(blocks_of(ResNet(50)))) == 3 + 4 + 6 + 3
        # GPT-2 small has 12
        assert len(list(blocks_of(Gpt2("small", 8, 0.1, False)))) == 12
        # a 3D U-Net of four levels has a block for each on the way down, and for each but the last on the way up
        assert len(list(blocks_of(UNet3d(base=4)))) == 4 + 3


def test_a_peer_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(Absent, match="TRL is not installed"):
        around_steps("OffloadActivations of TRL", torch.nn.Linear(1, 1))


def test_a_search_for_the_largest_tells_what_it_has_found_by_then() -> None:
    # given that 80 and less fit: 16, 32 and 64 by doubling, 128 does not, then half way 96 does not and 80 does
    assert list(search(lambda value: value <= 80, stride=16, most=512)) == [
        (16, False), (32, False), (64, False), (80, False), (80, True)
    ]  # fmt: skip
    # and where all fit it ends at the largest of interest
    assert list(search(lambda value: True, stride=16, most=48))[-1] == (48, True)
    assert list(search(lambda value: False, stride=16, most=48)) == [(0, True)]


def test_a_refused_budget_is_told_beside_the_least_one_that_ran() -> None:
    # given a training that needs 94, where the first refusal says 74
    def run(budget_bytes: int) -> dict[str, Any]:
        if budget_bytes < 94:
            least = 74 if budget_bytes < 74 else 94
            raise er.Infeasible("too little", budget_bytes=budget_bytes, least_feasible_bytes=least)
        return {"budget_bytes": budget_bytes}

    # then
    assert gpu_cases.in_budget(run, 50) == {"budget_bytes": 94, "refused_bytes": 50}
    assert gpu_cases.in_budget(run, 100) == {"budget_bytes": 100}


def test_a_budget_that_is_refused_again_and_again_is_told() -> None:
    def run(budget_bytes: int) -> dict[str, Any]:
        raise er.Infeasible("too little", budget_bytes=budget_bytes, least_feasible_bytes=budget_bytes + 1)

    with pytest.raises(er.Infeasible) as caught:
        gpu_cases.in_budget(run, 50)
    # 50, 51 and 52 were refused before
    assert caught.value.budget_bytes == 53
