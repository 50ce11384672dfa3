"""Files that name the runs of this user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from elbowroom.live.running_jobs import RunningJob, announce, began_of, folder, running_jobs


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELBOWROOM_CACHE_DIR", str(tmp_path / "cache"))


def job() -> RunningJob:
    return RunningJob.here("train.py", 4321, "secret")


def test_a_run_that_goes_on_is_found_and_its_file_is_for_this_user_alone() -> None:
    path = announce(job())

    assert running_jobs() == [job()]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_runtime_folder_of_the_user_is_taken_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder() == tmp_path / "cache" / "running"
    monkeypatch.delenv("ELBOWROOM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    assert folder() == tmp_path / "elbowroom"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert folder() == tmp_path / "home" / "elbowroom" / "running"


def test_the_file_of_a_process_that_is_gone_is_removed() -> None:
    # given a process that has ended
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    path = announce(replace(job(), process=int(ended.stdout)))

    assert running_jobs() == []
    assert not path.exists()


def test_another_process_with_the_same_number_is_not_the_run() -> None:
    path = announce(replace(job(), began="1"))

    assert running_jobs() == []
    assert not path.exists()


def test_the_file_of_another_computer_is_left_alone() -> None:
    # given a home folder that two computers share: nothing here says whether that process is there
    path = announce(replace(job(), computer="another", began="1"))

    assert running_jobs() == []
    assert path.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"process": 1}', '{"process": "1", "began": "", "computer": "", "script": "", "port": 1}'],
)
def test_a_file_of_something_else_is_no_run(text: str) -> None:
    path = announce(job())
    path.write_text(text)

    assert running_jobs() == []


def test_a_value_of_another_type_is_no_run() -> None:
    path = announce(job())
    path.write_text(json.dumps({**asdict(job()), "port": "80"}))

    assert running_jobs() == []


def test_a_file_that_others_may_read_or_write_is_no_run() -> None:
    announce(job()).chmod(0o660)

    assert running_jobs() == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = announce(job())
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    assert running_jobs() == []


def test_without_a_folder_there_are_no_runs() -> None:
    assert running_jobs() == []


def test_this_process_began_once() -> None:
    assert began_of(os.getpid()) == began_of(os.getpid()) != began_of(1)
