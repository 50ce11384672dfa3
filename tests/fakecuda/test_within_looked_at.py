"""A run on the CUDA build of PyTorch that a thread looks at all the time: the memory and the moves stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakecuda.test_within_peaks import on_the_rig
from tests.fakecuda.test_within_peaks import rig as rig


@pytest.mark.timeout(0)
def test_looks_see_what_the_allocator_reserves_and_change_nothing(rig: Path) -> None:
    # 12 layers that save 16 MiB each, of which some must leave
    plain = on_the_rig(rig, {"budget": "200MiB", "looks": False}, "looked_at.py")

    found = on_the_rig(rig, {"budget": "200MiB", "looks": True}, "looked_at.py")

    assert (found["moved"], found["reserved"], found["most"]) == (plain["moved"], plain["reserved"], plain["most"])
    assert found["seen"] == found["reserved"]
    assert max(found["mid"]) > 0
    assert found["tiers"] in (["host"], ["disk", "host"])
    assert found["totals"]["steps"] == 6
    assert found["totals"]["swapped_out_bytes"] == sum(out_bytes for _, out_bytes, _ in found["moved"])
    assert " swapped to host (" in found["lines"][2]
