"""`elbowroom cache`: plans that runs have kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from elbowroom.cli import main
from tests.cli.answers import answered


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("ELBOWROOM_CACHE_DIR", str(tmp_path))
    return tmp_path / "plans"


def test_an_empty_cache_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["cache"]) == 0
    assert "no plans are kept in" in capsys.readouterr().out


def test_kept_captures_are_counted_and_cleared(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    captures = folder.with_name("captures")
    captures.mkdir()
    (captures / "aa.capture.json.gz").write_bytes(b"abc")

    assert main(["cache"]) == 0
    assert "and 1 captures of scripts, 3 B," in capsys.readouterr().out
    assert main(["cache", "--json"]) == 0
    answer = answered(capsys.readouterr().out, "cache")
    assert (answer["captures"], answer["captures_bytes"]) == (1, 3)

    assert main(["cache", "--clear"]) == 0
    assert "deleted 0 plans and 1 captures in" in capsys.readouterr().out
    assert not list(captures.iterdir())


def test_kept_plans_are_listed_and_cleared(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    # given two plans, and a file of somebody else
    folder.mkdir()
    for name in ("aa-1048576.course.json", "bb-2097152.course.json", "notes.txt"):
        (folder / name).write_text("{}")

    assert main(["cache", "--json"]) == 0
    plans = answered(capsys.readouterr().out, "cache")["plans"]
    assert sorted((each["budget_bytes"], each["size_bytes"]) for each in plans) == [(1048576, 2), (2097152, 2)]
    assert main(["cache"]) == 0
    assert "2.0 MiB" in capsys.readouterr().out

    # when they are deleted, the other file stays
    assert main(["cache", "--clear", "--json"]) == 0
    answer = answered(capsys.readouterr().out, "cache")
    assert (answer["deleted"], answer["plans"]) == (2, [])
    assert [each.name for each in folder.iterdir()] == ["notes.txt"]
