"""benchmarks.gpu without a GPU: parts in order, within the time, and a file after each of them."""

from __future__ import annotations

import json
import os
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.gpu import Part, Told


def answers(part: Part, _limit_s: float) -> Iterator[Told]:
    """Of a GPU on which all goes well."""
    for place in part.expects:
        reserved = {"reserved": 100}
        found: dict[str, Any] = {"reserved_bytes": 100, "step_ns": 10, "allocator": reserved, "simulated": reserved}
        found |= {"largest": 64, "through": place[-1] == "plain"}
        yield list(place), {"gpu": "Some GPU", "is_gpu": True} if place == ("machine",) else found


def test_every_part_tells_its_place_and_what_is_wanted_most_comes_first(tmp_path: Path) -> None:
    # when
    asked: list[Part] = []
    report = gpu.measured(
        True, 520, tmp_path / "out.json", lambda part, limit_s: (asked.append(part), answers(part, limit_s))[1]
    )
    # then
    names = [part.arguments[0] for part in asked]
    files = len(gpu.test_files())
    assert names[: 3 + files] == ["facts", *["tests"] * files, "link", "steps"]
    assert list(report["steps"]) == list(gpu.SMALL)
    assert list(report["steps"]["resnet50"]) == [*gpu.METHODS, *gpu.LATER]
    assert report == json.loads((tmp_path / "out.json").read_text())
    assert report["measured"]
    # and a search that was cut short is told as one
    assert "largest resnet50: plain 64, within 64 or more, as its time was up" in gpu.summary(report)


def test_more_than_twenty_models_have_their_memory_looked_at() -> None:
    # 15 of tests/fakecuda and 6 of the planning benchmark
    assert len(gpu.memory_models()) == 21
    parts = [part for group in gpu.groups(False, {}) for part in group]
    named = [name for part in parts if part.arguments[0] == "memory" for name in part.arguments[1:]]
    assert named == gpu.memory_models()


def test_later_parts_get_what_plain_training_reserves(tmp_path: Path) -> None:
    asked: list[Part] = []
    gpu.measured(True, 520, tmp_path / "out.json", lambda part, left: (asked.append(part), answers(part, left))[1])
    later = [part.arguments for part in asked if part.arguments[0] == "steps" and part.arguments[4] == gpu.LATER[0]]
    assert [arguments[3] for arguments in later] == ["100"] * len(gpu.SMALL)


def test_parts_of_a_group_are_looked_at_at_once(tmp_path: Path) -> None:
    # given parts of which each waits until all cases have begun
    begun = threading.Barrier(len(gpu.SMALL), timeout=20)

    def together(part: Part, left_s: float) -> Iterator[Told]:
        begun.wait()
        yield from answers(part, left_s)

    # when only steps are wanted
    report = gpu.measured(True, 520, tmp_path / "out.json", together, only=["steps"])
    # then
    assert list(report["steps"]) == list(gpu.SMALL)
    assert "memory" not in report


def test_a_part_that_ends_early_says_so_in_each_place_that_it_left_empty(tmp_path: Path) -> None:
    def cut(part: Part, limit_s: float) -> Iterator[Told]:
        if part.arguments[0] != "steps":
            yield from answers(part, limit_s)
            return
        yield list(part.expects[0]), {"reserved_bytes": 5}
        yield [], {"not_run": "ended after 75 s"}

    # when
    report = gpu.measured(True, 520, tmp_path / "out.json", cut)
    # then
    assert report["steps"]["unet3d"]["plain"] == {"reserved_bytes": 5}
    assert report["steps"]["unet3d"]["within 25%"] == {"not_run": "ended after 75 s"}
    assert "ended after 75 s" in gpu.summary(report)


def test_no_part_begins_once_the_time_is_up_and_the_file_has_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a clock on which the machine's part takes all the time
    clock = [0.0]
    monkeypatch.setattr(gpu.time, "monotonic", lambda: clock[0])
    asked: list[str] = []

    def slow(part: Part, limit_s: float) -> Iterator[Told]:
        asked.append(part.arguments[0])
        clock[0] += 515
        yield from answers(part, limit_s)

    # when
    gpu.measured(True, 520, tmp_path / "out.json", slow)
    # then
    report = json.loads((tmp_path / "out.json").read_text())
    assert asked == ["facts"]
    assert report["machine"]["gpu"] == "Some GPU"
    assert report["link"] == {"not_run": "no time: 5 s left"}
    assert report["took_s"]["facts"] == 515


def test_what_a_process_told_before_it_was_ended_is_kept() -> None:
    # given a part that tells one thing and then hangs; the module is not asked for torch
    code = "print('@@' + '[[\"link\"], {\"rate\": 3}]', flush=True); import time; time.sleep(60)"
    part = Part(limit_s=2, arguments=(), expects=())
    # when
    told = list(gpu.run(part, 2, os.environ, [sys.executable, "-c", code]))
    # then
    assert told == [(["link"], {"rate": 3}), ([], {"not_run": "ended after 2 s"})]


def test_a_process_that_fails_says_how() -> None:
    part = Part(limit_s=20, arguments=(), expects=())
    ((place, found),) = gpu.run(part, 20, os.environ, [sys.executable, "-c", "raise SystemExit('no such thing')"])
    assert place == []
    assert found["not_run"] == "ended with exit code 1: no such thing "


def test_wheels_are_unpacked_for_all_parts(tmp_path: Path) -> None:
    # given
    with zipfile.ZipFile(tmp_path / "thing-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("thing.py", "VALUE = 3\n")
    # when
    gpu.unpacked(tmp_path, tmp_path / "into")
    # then
    assert (tmp_path / "into" / "thing.py").read_text() == "VALUE = 3\n"
    assert str(tmp_path / "into") in gpu.environment_with(tmp_path / "into")["PYTHONPATH"].split(os.pathsep)


def test_a_folder_without_wheels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"holds no \.whl; make it as docs/benchmarks\.md says"):
        gpu.unpacked(tmp_path, tmp_path / "into")
