"""One rank of many beside the CUDA build of PyTorch on the rig, which runs the same script over a fake group."""

from __future__ import annotations

import pytest

from benchmarks.ranks.cases import CASES, Case, estimated, on_rig
from tests.fakecuda.rig import rig_folder


@pytest.mark.timeout(0)
@pytest.mark.parametrize("case", CASES, ids=[case.title for case in CASES])
def test_a_rank_peaks_as_in_the_cuda_build(case: Case) -> None:
    rig = rig_folder()
    if rig is None:
        pytest.skip("ELBOWROOM_RIG is not set: no rig with the CUDA build of PyTorch")

    answer = estimated(case, rig)

    allocated, reserved = on_rig(rig, case)
    assert answer.peak_allocated_bytes == pytest.approx(allocated, rel=0.01)
    assert answer.peak_reserved_bytes == pytest.approx(reserved, rel=0.01)
