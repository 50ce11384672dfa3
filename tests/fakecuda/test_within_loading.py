"""A model that is larger than the device comes there, trains and is read, on the CUDA build of PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.on_rig import said
from tests.fakecuda import SHARED
from tests.fakecuda.test_within_peaks import MIB, rig

__all__ = ["rig"]

CAPACITY, BUDGET = 224 * MIB, 190 * MIB


@pytest.mark.timeout(0)
@pytest.mark.parametrize("way", ["to", "cuda", "made there", "meta"])
def test_a_model_larger_than_the_device_is_never_there_as_a_whole(rig: Path, way: str) -> None:
    # given a device that refuses more than it has, and 256 MiB of weights
    variables = {"FAKECUDA_BACKING": str(1 << 30), "FAKECUDA_CAPACITY": str(CAPACITY), **SHARED}
    script = str(Path(__file__).with_name("loading.py"))
    # when
    found = said(rig, script, spec={"way": way, "budget": f"device={BUDGET}"}, variables=variables)
    # then it comes there one layer after the other, of 16 MiB
    assert found["weights"] == 256 * MIB
    assert found["capacity"] == CAPACITY
    assert found["after loading"] <= 4 * 16 * MIB
    # and no step takes more than the budget, the first one and what is read between steps included
    assert max(found["steps"]) <= BUDGET
    assert found["read"] <= BUDGET
    assert found["modes"][-1] == "plan"
    assert found["mismatches"] == 0
    # and all bytes are right: between steps, and once the run is over, within the budget too
    assert found["state dict"]
    assert found["saved"]
    assert found["empty"] == 0
    assert found["on host"] > 0
    assert found["after"] <= BUDGET


@pytest.mark.timeout(0)
def test_a_model_larger_than_the_device_is_clipped_saved_written_resumed_averaged_and_evaluated(rig: Path) -> None:
    # given 96 MiB of weights, as much in an average, and 192 MiB of states, where 88 MiB are
    variables = {"FAKECUDA_BACKING": str(1 << 30), "FAKECUDA_CAPACITY": str(88 * MIB), **SHARED}
    script = str(Path(__file__).with_name("saving.py"))
    # when
    found = said(rig, script, spec={"budget": f"device={76 * MIB}"}, variables=variables)
    # then
    assert found["modes"][-1] == "plan"
    assert found["mismatches"] == 0
    assert found["right"] == [True] * 6
    assert max(found["peaks"].values()) <= 76 * MIB, found["peaks"]
