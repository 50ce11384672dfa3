"""One file of all ranks of a run: the last rank to write makes it, and none makes it of what an earlier run left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from elbowroom.cli.merged_figures import merge
from elbowroom.hardware.launched_rank import LaunchedRank
from tests.cli.answers import answered

BEGUN_S = 1_000_000.0


def write(path: Path, step_ns: int, at_s: float = BEGUN_S + 1, **others: Any) -> None:
    """The file of a rank, as far as it is read here."""
    step = {"step_ns": step_ns, "stall_ns": step_ns // 2}
    peaks = {"measured_peak_bytes": 2048, "measured_peak_allocated_bytes": 1024}
    path.write_text(json.dumps({"schema": "elbowroom.answer.run", "version": 1, "steps": [step] * 3} | peaks | others))
    os.utime(path, (at_s, at_s))


def merged(folder: Path, rank: int = 1, ranks: int = 2) -> bool:
    return merge(str(folder / "figures.json"), LaunchedRank(rank=rank, ranks=ranks, local_ranks=ranks), BEGUN_S)


def test_the_last_rank_to_write_merges_the_files_of_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "figures.rank1.json", 200)
    assert not merged(tmp_path)
    write(tmp_path / "figures.rank0.json", 100)

    assert merged(tmp_path, rank=0)

    found = answered((tmp_path / "figures.json").read_text(), "ranks")
    # the median of three equal steps is that of one; rank 1 stalls longest: 100 ns, and rank 0 50 ns
    assert [(each["name"], each["step_ns"], each["stall_ns"]) for each in found["ranks"]] == [
        ("figures.rank0.json", 100, 50),
        ("figures.rank1.json", 200, 100),
    ]
    assert found["waited_for"] == "figures.rank1.json"
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "figures.json",
        "figures.rank0.json",
        "figures.rank1.json",
    ]
    assert f"{tmp_path}/figures.json has the figures of all 2 ranks" in capsys.readouterr().err


@pytest.mark.parametrize("other", ["older", "half", "no object", "no steps"])
def test_a_file_that_is_not_of_this_run_or_not_whole_is_not_merged(other: str, tmp_path: Path) -> None:
    write(tmp_path / "figures.rank1.json", 200)
    write(tmp_path / "figures.rank0.json", 100, BEGUN_S - 1 if other == "older" else BEGUN_S + 1, steps=[])
    if other in ("half", "no object"):
        (tmp_path / "figures.rank0.json").write_text('{"schema"' if other == "half" else "[]")

    assert not merged(tmp_path)
    assert not (tmp_path / "figures.json").exists()


def test_a_run_alone_and_a_device_are_no_files_of_many(tmp_path: Path) -> None:
    write(tmp_path / "figures.json", 100)

    assert not merged(tmp_path, rank=0, ranks=1)
    assert not merge("/dev/null", LaunchedRank(rank=0, ranks=2, local_ranks=2), 0.0)
