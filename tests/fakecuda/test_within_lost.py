"""A device that is lost in the middle of a run, on the CUDA build of PyTorch: one clear error, and nothing hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakecuda.test_within_peaks import on_the_rig
from tests.fakecuda.test_within_peaks import rig as rig

LAUNCH_FAILURE, UNAVAILABLE, ECC = 719, 46, 214
SAYS = {
    LAUNCH_FAILURE: "unspecified launch failure",
    UNAVAILABLE: "CUDA-capable device(s) is/are busy or unavailable",
    ECC: "uncorrectable ECC error encountered",
}
TO_DISK, TO_HOST = "device=250MiB,host=100MiB", "device=250MiB,host=1GiB"
MOMENTS = {
    "before anything": (0, 0, TO_DISK, LAUNCH_FAILURE),
    "in an observed step": (0, 300, TO_DISK, LAUNCH_FAILURE),
    "while a planned step is recorded": (1, 250, TO_DISK, UNAVAILABLE),
    "in a planned step": (5, 130, TO_DISK, ECC),
    "with nothing on the disk": (5, 200, TO_HOST, LAUNCH_FAILURE),
}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_lost_device_is_one_clear_error_and_no_thread_or_file_stays(rig: Path, moment: str) -> None:
    # given a training of eight steps, and a device that is lost after some steps and some calls of CUDA in the next
    step, calls, budget, error = MOMENTS[moment]
    # when
    found = on_the_rig(rig, {"step": step, "calls": calls, "error": error, "budget": budget}, "lost.py")
    if found is None:
        pytest.skip("this rig was built before its device could be lost: build it again from tools/rig")
    # then it is said what was lost and what to do, with what torch or the runtime met first as the cause
    assert found["error"] == (
        f"DeviceLost: device cuda:0: given a run of {step} steps, after which it is lost: CUDA answers every call of "
        f"this process with an error (CUDA error: {SAYS[error]}). What it held is gone, weights too. Allowed is a new "
        "process: start the training again from its last saved state; if that happens again, look at the device "
        "(nvidia-smi -q, Xid in dmesg)"
    )
    assert SAYS[error] in found["cause"]
    # and the process ends by itself, its threads and files ended before
    assert found["left"] == {"threads": 0, "files": 0}
    assert found["told"] == []
