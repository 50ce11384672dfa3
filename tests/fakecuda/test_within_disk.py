"""The disk below the host, on the CUDA build of PyTorch: bytes come back, and the budgets of all tiers are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from elbowroom.machine import ASSUMED_DISK
from tests.fakecuda.test_within_peaks import on_the_rig
from tests.fakecuda.test_within_peaks import rig as rig

MIB = 2**20


@pytest.mark.timeout(0)
def test_bytes_come_back_from_both_tiers(rig: Path) -> None:
    # when twenty storages of 1 to 30 MiB go to 40 MiB of host memory, and on to the disk, and back
    found = on_the_rig(rig, {}, "copies.py", backing_bytes=1 << 30)
    # then
    assert found == {"on_device": 0, "host": 40 * MIB, "pinned": 40 * MIB, "wrong": 0, "left": 0}


@pytest.mark.timeout(0)
def test_what_the_host_cannot_hold_goes_on_to_the_disk_and_every_budget_is_kept(rig: Path) -> None:
    # given a plan that has to swap about 190 MiB, where the host may hold 100 MiB and half of that page-locked
    spec = {"model": "residual net", "shares": [0.6], "steps": 6, "below": ",host=100MiB,pinned=80MiB"}
    # when
    (run,) = on_the_rig(rig, spec)["runs"]
    # then
    assert run["plan"]["disk"] > 0
    assert run["plan"]["host"] > 0
    assert max(step["host"] for step in run["steps"]) <= 100 * MIB
    assert max(step["pinned"] for step in run["steps"]) <= 80 * MIB
    last, simulated = run["steps"][-1], run["simulated"]
    assert last["reserved"] <= run["budget_bytes"]
    for kind in ("allocated", "reserved"):
        assert abs(last[kind] - simulated[kind]) <= 0.01 * simulated[kind] + MIB  # 1 % + 1 MiB
    assert [figures["mismatches"] for figures in run["figures"]] == [0] * 6
    assert 0 < run["figures"][-1]["back"] <= run["figures"][-1]["out"] <= last["planned"]
    # and the rates of the disk were measured
    assert ASSUMED_DISK.out_bytes_per_s not in run["links"][1]
    assert ASSUMED_DISK.back_bytes_per_s not in run["links"][1]
    assert run["after"]["host"] == 0


@pytest.mark.timeout(0)
def test_steps_that_prove_recomputes_send_on_to_the_disk_what_the_host_cannot_hold(rig: Path) -> None:
    # given proofs that copy out about 250 MiB, where the host may hold 100 MiB
    options = {"allow": ["swap", "recompute", "state"]}
    spec = {"model": "residual net", "shares": [0.6], "steps": 8, "below": ",host=100MiB", "options": options}
    # when
    (run,) = on_the_rig(rig, spec)["runs"]
    # then
    assert run["recomputed"][-1] > 0
    assert max(step["host"] for step in run["steps"]) <= 100 * MIB
    assert run["steps"][-1]["reserved"] <= run["budget_bytes"]
    assert [figures["mismatches"] for figures in run["figures"]] == [0] * 8
    assert run["after"]["host"] == 0


@pytest.mark.timeout(0)
def test_what_goes_to_the_disk_directly_takes_no_host_memory_and_every_budget_is_kept(
    rig: Path, tmp_path: Path
) -> None:
    # given a plan that has to swap about 190 MiB, where the host may hold 100 MiB, and a plain file for torch.cuda.gds
    options = {"gds": True, "spill_dir": str(tmp_path)}
    spec = {"model": "residual net", "shares": [0.6], "steps": 6, "below": ",host=100MiB", "options": options}
    # when
    (run,) = on_the_rig(rig, spec, backing_bytes=2 << 30)["runs"]
    # then both tiers are used, the host within its budget
    assert run["plan"]["disk"] > 0
    assert run["plan"]["host"] > 0
    assert max(step["host"] for step in run["steps"]) <= 100 * MIB
    # and the device holds what is simulated: it does not depend on when the threads are through
    last, simulated = run["steps"][-1], run["simulated"]
    assert last["reserved"] <= run["budget_bytes"]
    for kind in ("allocated", "reserved"):
        assert abs(last[kind] - simulated[kind]) <= 0.01 * simulated[kind] + MIB  # 1 % + 1 MiB
    assert [figures["mismatches"] for figures in run["figures"]] == [0] * 6
    # and nothing moves but what the plan moves; what is wanted back before it has left stays
    assert 0 < run["figures"][-1]["back"] <= run["figures"][-1]["out"] <= last["planned"]
    # and the rates of the way past the host were measured
    assert ASSUMED_DISK.out_bytes_per_s not in run["links"][1]
    assert ASSUMED_DISK.back_bytes_per_s not in run["links"][1]
    assert run["after"]["host"] == 0


@pytest.mark.timeout(0)
def test_bytes_come_back_past_the_host(rig: Path) -> None:
    # when twenty storages of 1 to 30 MiB go to 40 MiB of host memory, and to the disk beside it, and back
    found = on_the_rig(rig, {"gds": True}, "copies.py", backing_bytes=1 << 30)
    # then
    assert found == {"on_device": 0, "host": 40 * MIB, "pinned": 40 * MIB, "wrong": 0, "left": 0}
