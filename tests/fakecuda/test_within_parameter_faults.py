"""A training whose parameters move on the CUDA build of PyTorch is broken off in the middle of its optimizer's step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakecuda.test_within_peaks import MIB, on_the_rig, rig

__all__ = ["rig"]

ERRORS = {
    "none": "",
    "an error of the user": "Broken: ",
    "an interrupt": "KeyboardInterrupt: ",
    "a full disk": "TierFailed: disk tier: writing in ",
}
WEIGHTS = 12 * 4 * MIB


@pytest.mark.timeout(0)
def test_a_step_that_ends_in_a_part_leaves_all_bytes_somewhere_and_training_goes_on(rig: Path, tmp_path: Path) -> None:
    # when
    spec = {"cases": list(ERRORS), "folder": str(tmp_path)}
    found = on_the_rig(rig, spec, "parameter_faults.py", backing_bytes=1 << 30, allocator={})

    # then each error is the one that was raised, and names its cause
    for name, begins in ERRORS.items():
        one = found[name]
        assert one["error"].startswith(begins), name
        assert bool(one["error"]) == bool(begins), name
        assert one["files"] == [], name
        # 12 weights, each with two states and its count of steps
        assert (one["tensors"], one["without bytes"]) == (12 * 4, 0), name
        assert one["then"] == "plan", name
    assert found["none"]["mode"] == "plan"
    assert "No space left on device; the step cannot go on" in found["a full disk"]["error"]

    # and what was saved before a kill is whole, with no spill file left
    assert found["a kill"] == {"code": -9, "files": ["kept.pt"], "weights": WEIGHTS, "states": 2 * WEIGHTS}
