"""The configuration for Ray Train: each of two workers trains within a budget, with the bits of a plain job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import elbowroom as er
from tests.integrations import ray_job

pytest.importorskip("ray.train.torch", reason="ray[train] is not installed: `make test-integrations` does that")
ours: Any = pytest.importorskip("elbowroom.integrations.ray")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def job(folder: Path, budget: str) -> subprocess.CompletedProcess[str]:
    """Run a job in a process of its own, as Ray starts processes that a test should not keep."""
    folder.mkdir()
    environment = {
        **os.environ,
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    return subprocess.run(
        [sys.executable, "-m", "tests.integrations.ray_job", str(folder), budget],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )


def said(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{name}{rank}.json").read_text()) for rank in (0, 1)]


def test_two_workers_give_the_same_numbers_within_a_budget(tmp_path: Path) -> None:
    # given
    plain, plenty, tight = (tmp_path / name for name in ("plain", "plenty", "tight"))
    for folder, budget in ((plain, "plain"), (plenty, "1TiB")):
        done = job(folder, budget)
        assert done.returncode == 0, done.stderr[-3000:]
    keep_all_bytes = max(room["keep_all"] for room in said(plenty, "room"))
    # when: activations of a step are 8 x 512 x 256 floats, and leave in part
    budget_bytes = keep_all_bytes - 3 * 2**20
    done = job(tight, str(budget_bytes))
    # then
    assert done.returncode == 0, done.stderr[-3000:]
    assert said(tight, "rank") == said(plain, "rank")
    for room in said(tight, "room"):
        assert (room["mode"], room["steps"], room["mismatches"]) == ("plan", ray_job.STEPS, 0)
        assert room["measured"] <= budget_bytes
        assert room["swapped"] > 0


def test_a_budget_that_no_plan_meets_ends_the_job_with_the_least(tmp_path: Path) -> None:
    done = job(tmp_path / "job", "1MiB")

    assert done.returncode != 0
    assert "The least that " in done.stderr + done.stdout


def test_options_are_checked_where_the_configuration_is_made() -> None:
    with pytest.raises(er.UsageError, match="much"):
        ours.RoomTorchConfig(budget="much")
