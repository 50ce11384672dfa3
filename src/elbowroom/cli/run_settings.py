"""Settings of a run and where they come from: command line, environment, pyproject.toml, defaults, in this order."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elbowroom.errors import UsageError
from elbowroom.units import Budget, parse_budget, parse_bytes

PREFIX = "ELBOWROOM_"
TABLE = "tool.elbowroom"
DEFAULTS: Mapping[str, str | None] = {"budget": "auto", "spill_dir": None, "min_size": None}
"""Default of every setting, as it would be typed. spill_dir None is the system's temporary directory; min_size None
follows the budget."""

ESTIMATE_SETTINGS = ("gpu",)
"""Settings of the verbs that estimate: their default is not a text."""

LEAST_WITHOUT_UNIT = 2**20
"""A number of bytes that is less has a unit that was forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of a run.

    Attributes:
        budget: budget, as `elbowroom.units.parse_budget` reads it.
        spill_dir: directory of the disk tier; None for the system's temporary directory.
        min_size_bytes: smaller storages are kept; None to follow the budget.
    """

    budget: str
    spill_dir: str | None
    min_size_bytes: int | None


def settings_of(
    given: Mapping[str, str | None],
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> RunSettings:
    """Find every setting in the first place that has it.

    Args:
        given: values of the command line, by the names of `DEFAULTS`; None for those not given.
        environment: variables ELBOWROOM_BUDGET and so on; None for the process's.
        directory: directory of pyproject.toml; None for the working directory.

    Raises:
        UsageError: a value is not allowed (the message names its place), or a name in pyproject.toml is unknown.
    """
    environment = os.environ if environment is None else environment
    path = (directory or Path.cwd()) / "pyproject.toml"
    places: list[tuple[Mapping[str, str | None], str]] = [
        ({name: given.get(name) for name in DEFAULTS}, "the command line"),
        ({name: environment.get(PREFIX + name.upper()) for name in DEFAULTS}, "the environment"),
        (_table(path), f"[{TABLE}] of {path}"),
        (DEFAULTS, "the defaults"),
    ]
    found = {name: _first(name, places) for name in DEFAULTS}
    return RunSettings(
        budget=_checked(found["budget"], _budget_with_unit)[0],
        spill_dir=found["spill_dir"][0],
        min_size_bytes=None if found["min_size"][0] is None else _checked(found["min_size"], parse_bytes)[1],
    )


def given_or_set(name: str, given: str | None, environment: Mapping[str, str] | None = None) -> str | None:
    """Find one of `ESTIMATE_SETTINGS` in the first place that has it; None if none does.

    Args:
        name: name of the setting.
        given: value of the command line.
        environment: variables as for `settings_of`; pyproject.toml is that of the working directory.

    Raises:
        UsageError: an unknown name in pyproject.toml.
    """
    environment = os.environ if environment is None else environment
    table = _table(Path.cwd() / "pyproject.toml")
    return given or environment.get(PREFIX + name.upper()) or table.get(name) or None


def _first(name: str, places: list[tuple[Mapping[str, str | None], str]]) -> tuple[str | None, str]:
    """Return the value of a setting and its place."""
    for values, place in places:
        value = values.get(name)
        if value is not None and value != "":
            return value, f"{name.replace('_', '-')} from {place}"
    return None, name


def size_with_unit(value: str) -> int:
    """Read a size that stands for memory of a device.

    Raises:
        UsageError: it is no size, or a small number without a unit, which nobody means as bytes.
    """
    size_bytes = parse_bytes(value)
    if value.strip().isdigit() and size_bytes < LEAST_WITHOUT_UNIT:
        raise UsageError(
            f"size: given {value!r}, which is {size_bytes} bytes; allowed is a size with its unit; write for example "
            f"{value.strip()}GiB"
        )
    return size_bytes


def _budget_with_unit(value: str) -> Budget:
    if value.strip().isdigit():
        size_with_unit(value)
    return parse_budget(value)


def _checked(found: tuple[str | None, str], parse: Any) -> tuple[str, Any]:
    value, origin = found
    try:
        return str(value), parse(value)
    except UsageError as problem:
        raise UsageError(f"{origin}: {problem}") from None


def _table(path: Path) -> Mapping[str, str | None]:
    """Return the table of pyproject.toml, with underscores in its names, and its values as text."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as problem:
        raise UsageError(f"{path}: cannot be read: {problem}; correct it or run in another directory") from None
    table = content.get("tool", {})
    table = table.get("elbowroom", {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {TABLE} is {table!r}; allowed is a table; write [{TABLE}] above its settings")
    values: dict[str, str | None] = {}
    for name, value in table.items():
        known = name.replace("-", "_")
        if known not in (*DEFAULTS, *ESTIMATE_SETTINGS) or isinstance(value, bool) or not isinstance(value, str | int):
            allowed = ", ".join(setting.replace("_", "-") for setting in (*DEFAULTS, *ESTIMATE_SETTINGS))
            raise UsageError(
                f"{path}: given {name} = {value!r} in [{TABLE}]; allowed are {allowed}, each a text or a whole number; "
                "correct it or take it out"
            )
        values[known] = str(value)
    return values
