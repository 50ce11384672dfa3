"""Settings: the command line before the environment before pyproject.toml before the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from elbowroom.cli.run_settings import RunSettings, settings_of
from elbowroom.errors import UsageError

PROJECT = '[tool.elbowroom]\nbudget = "3GiB"\nspill-dir = "/project"\nmin-size = 4096\n'
ENVIRONMENT = {"ELBOWROOM_BUDGET": "2GiB", "ELBOWROOM_SPILL_DIR": "/environment", "OTHER": "1"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return tmp_path


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    assert settings_of({}, {}, tmp_path) == RunSettings(budget="auto", spill_dir=None, min_size_bytes=None)


def test_each_setting_comes_from_the_first_place_that_has_it(project: Path) -> None:
    found = settings_of({"budget": "1GiB", "spill_dir": None}, ENVIRONMENT, project)

    assert found == RunSettings(budget="1GiB", spill_dir="/environment", min_size_bytes=4096)


def test_the_environment_goes_before_the_project(project: Path) -> None:
    assert settings_of({}, ENVIRONMENT, project).budget == "2GiB"


def test_the_project_goes_before_the_defaults(project: Path) -> None:
    assert settings_of({}, {}, project) == RunSettings(budget="3GiB", spill_dir="/project", min_size_bytes=4096)


def test_an_empty_variable_counts_as_none(project: Path) -> None:
    assert settings_of({}, {"ELBOWROOM_BUDGET": ""}, project).budget == "3GiB"


@pytest.mark.parametrize(
    ("given", "environment", "text", "message"),
    [
        ({"budget": "9XB"}, {}, "", r"^budget from the command line: budget: given '9XB'"),
        ({}, {"ELBOWROOM_MIN_SIZE": "big"}, "", r"^min-size from the environment: size: given 'big'"),
        ({}, {}, '[tool.elbowroom]\nbudget = "-1"', r"^budget from \[tool\.elbowroom\] of .*pyproject\.toml: "),
        (
            {},
            {},
            '[tool.elbowroom]\nbugdet = "1GiB"',
            r"given bugdet = '1GiB' .*; allowed are budget, spill-dir, min-size",
        ),
        ({}, {}, "[tool.elbowroom]\nmin-size = 1.5", r"given min-size = 1\.5 .*each a text or a whole number"),
        ({}, {}, "[tool.elbowroom]\nmin-size = true", r"given min-size = True"),
        ({}, {}, "[tool]\nelbowroom = 3", r"tool\.elbowroom is 3; allowed is a table"),
        ({}, {}, "[tool", r"pyproject\.toml: cannot be read: "),
    ],
)
def test_a_wrong_value_is_refused_with_the_place_it_came_from(
    given: dict[str, str | None], environment: dict[str, str], text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(text)

    with pytest.raises(UsageError, match=message):
        settings_of(given, environment, tmp_path)


def test_other_tables_of_the_project_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nbudget = 1\n[project]\nname = 'x'\n")

    assert settings_of({}, {}, tmp_path).budget == "auto"
