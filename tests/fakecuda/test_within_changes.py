"""A change of plan on a small card: on the CUDA build of PyTorch, where the device's capacity is the limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.on_rig import said
from tests.fakecuda import SHARED
from tests.fakecuda.test_within_peaks import rig

__all__ = ["rig"]

MIB = 2**20


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("model", "capacity"), [("vgg", 230), ("vgg", 215), ("perceptron", 400), ("perceptron", 330), ("volume net", 200)]
)
def test_a_change_of_plan_needs_no_more_than_the_card_has(rig: Path, model: str, capacity: int) -> None:
    # given a card that has much less than plain training takes
    variables = {"FAKECUDA_CAPACITY": str(capacity * MIB), "FAKECUDA_CC": "90", **SHARED}
    # when a training goes from an observed step to a plan, and from that to a better one
    script = Path(__file__).with_name("changes.py")
    found = said(rig, str(script), spec={"model": model, "steps": 6}, variables=variables)
    # then its plans differ, and no request of memory fails
    assert len(found["different"]) > 1
    assert found["modes"][0] == "observe"
    assert (found["mismatches"], found["ooms"]) == (0, 0)
