"""`elbowroom largest` over layouts: the table, the JSON object, the exit code, and what is refused."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elbowroom.capture.job_rank import JobRank
from elbowroom.cli import main
from elbowroom.errors import CaptureError
from elbowroom.trace import Trace
from tests.cli.answers import answered
from tests.cli.test_estimate import trace_of

GIB = 2**30


class Ranks:
    """Stands in for capture_script: a rank holds so many bytes by the size of its job; notes the processes."""

    def __init__(self, size_bytes: Callable[[JobRank], int]) -> None:
        self.size_bytes = size_bytes
        self.jobs: list[JobRank] = []
        self.words: list[tuple[str, ...]] = []

    def __call__(self, _path: str, argv: tuple[str, ...], *, job: JobRank, **_how: object) -> Trace:
        self.jobs.append(job)
        self.words.append(tuple(argv))
        return trace_of(self.size_bytes(job))


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (tmp_path / "train.py").write_text("parser.add_argument('--tp')\n")
    found = Ranks(lambda job: 64 * GIB // job.ranks)
    capture_module = importlib.import_module("elbowroom.capture.script")
    monkeypatch.setattr(capture_module, "capture_script", found)
    return found


def run(*words: str) -> int:
    return main(["largest", "train.py", "--gpu", "t4", *words])


def test_the_cheapest_layout_that_fits_is_named_above_a_table_of_all(
    ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    # 32, 16, 8 and 4 GiB a rank, and a T4 has less than 16
    code = run("--vary", "ranks=2..16")

    out = capsys.readouterr().out
    assert code == 0
    assert "train.py on t4: the cheapest layout that fits is ranks = 8: it needs 8." in out
    assert [line.split()[0] for line in re.findall(r"(?m)^ +\d.*$", out)] == ["2", "4", "8", "16"]
    assert [job.ranks for job in ranks.jobs] == [2, 4, 8, 16]


def test_no_layout_that_fits_is_exit_code_1_and_names_the_nearest(
    ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--vary", "ranks=1,2") == 1
    assert re.search(r"no layout fits: ranks = 2 needs the least, 32\.\d+ GiB", capsys.readouterr().out)


def test_json_has_each_layout_in_bytes_and_nanoseconds(ranks: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    code = run("--vary", "tp=1,2,3", "--ranks", "8", "--json")

    found: dict[str, Any] = answered(capsys.readouterr().out, "layouts")
    assert (code, found["cheapest"], found["left_out"]) == (0, 0, 1)
    assert [each["values"] for each in found["layouts"]] == [{"tp": 1}, {"tp": 2}]
    assert {each["ranks"] for each in found["layouts"]} == {8}
    assert [each["needed_bytes"] > 8 * GIB for each in found["layouts"]] == [True, True]
    assert ranks.words == [("--tp", "1"), ("--tp", "2")]


def test_each_rank_that_is_named_is_captured_of_each_layout(ranks: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    ranks.size_bytes = lambda job: (job.rank + 1) * GIB

    assert run("--vary", "ranks=2,4", "--rank", "0,last", "--json") == 0

    assert [(job.rank, job.ranks) for job in ranks.jobs] == [(0, 2), (1, 2), (0, 4), (3, 4)]
    # the worse one counts: 2 and 4 GiB
    found = answered(capsys.readouterr().out, "layouts")
    assert [each["peak_allocated_bytes"] // GIB for each in found["layouts"]] == [2, 4]


def test_all_ranks_of_each_layout_are_captured(ranks: Ranks) -> None:
    ranks.size_bytes = lambda _: GIB

    assert run("--vary", "ranks=2,4", "--rank", "all", "--json") == 0
    assert [(job.rank, job.ranks) for job in ranks.jobs] == [(0, 2), (1, 2), *((rank, 4) for rank in range(4))]


def test_a_launcher_says_the_size_of_the_job(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")

    assert run("--vary", "tp=2,4") == 0
    assert {(job.ranks, job.local_ranks) for job in ranks.jobs} == {(16, 4)}


def test_a_layout_that_fails_is_shown_with_its_reason(ranks: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(job: JobRank) -> int:
        if job.ranks == 2:
            raise CaptureError("train.py:7: no mesh of 2")
        return GIB

    ranks.size_bytes = fails

    assert run("--vary", "ranks=2,4") == 0
    out = capsys.readouterr().out
    assert re.search(r"(?m)^ +2 .*fails", out)
    assert "ranks = 2: with ranks = 2: train.py:7: no mesh of 2" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--vary", "ranks=1,2", "--within", "1.2x"), "--within: given with layouts"),
        (("--vary", "ranks=1,2", "--multiple-of", "2"), "--multiple-of: given with layouts"),
        (("--vary", "ranks=1,2", "--rank", "x"), "--rank: given 'x'; allowed is a rank or several"),
        (("--vary", "batch_size=1..2", "--ranks", "8", "--rank", "0,1"), "--rank: given 2 ranks; allowed is one"),
        (("--vary", "batch_size=1..2", "--rank", "0"), "--rank: given 0 without --ranks"),
    ],
)
def test_options_that_do_not_go_with_layouts_are_refused(
    ranks: Ranks, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert run(*words) == 2
    assert said in capsys.readouterr().err
    assert ranks.jobs == []
