"""What is known of a stranger's script: where it comes from, and the arguments it is tried with. Reads *.toml."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_OF_A_FILE = {"folder", "repository", "commit", "licence", "about", "script"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One row of a manifest."""

    name: str
    """Folder of the repository and path of the script in it, as in nanogpt/train.py; a label follows #."""
    repository: str = ""
    commit: str = ""
    licence: str = ""
    path: str
    """Below the repository's root."""
    tree: str = ""
    """What of the repository is copied for a trial; the script's folder where it is not given."""
    where: str = ""
    """Folder below the tree that the script is run in; its own where it is not given."""
    estimate: str | None = ""
    """Arguments of an estimate; None where no estimate is tried."""
    options: str = ""
    """Of `elbowroom estimate` itself, such as --ranks 2."""
    plain: str | None = ""
    """Arguments of a run on the CPU; None where the script cannot run there."""
    data: dict[str, str] = field(default_factory=dict)
    """Place below the folder that the script runs in, and the folder or file of the data that is copied there."""
    files: dict[str, str] = field(default_factory=dict)
    """Place below the folder that the script runs in, and text that is written there."""
    environment: dict[str, str] = field(default_factory=dict)
    readme: int = 0
    """Which block of Python of the repository's README.md the script is, counted from 1; 0 where it is a file."""
    replaced: dict[str, str] = field(default_factory=dict)
    """In such a block: text, and what stands there for a trial."""
    rig: str | None = None
    """Arguments of a run on the rig; None where none is tried."""
    steps: int = 0
    """Of optimizers, after which a run on the rig is ended; 0 where it ends by itself."""
    cards: tuple[float, ...] = (0.65,)
    """Capacities that are tried on the rig, as shares of what the script reserves alone."""
    before: str = ""
    """A command that is run once in the copy, such as the repository's own script that prepares data."""
    refusal: str = ""
    """Where no estimate is possible, a regular expression of what it has to say; "" where an answer is expected."""
    note: str = ""

    @property
    def estimate_arguments(self) -> list[str]:
        return shlex.split(self.estimate or "")

    @property
    def rig_arguments(self) -> list[str]:
        return shlex.split(self.rig or "")

    @property
    def plain_arguments(self) -> list[str]:
        return shlex.split(self.plain or "")


def read_manifest(path: Path) -> list[Script]:
    """The scripts of one file; raises ValueError where it has a field that no script has."""
    read = tomllib.loads(path.read_text("utf-8"))
    if unknown := set(read) - _OF_A_FILE:
        raise ValueError(f"{path}: given {sorted(unknown)}; a manifest has {sorted(_OF_A_FILE)}")
    source = {key: read.get(key, "") for key in ("repository", "commit", "licence")}
    folder = read.get("folder", path.stem)
    return [_script(folder, source, row) for row in read.get("script", [])]


def _script(folder: str, source: dict[str, str], row: dict[str, Any]) -> Script:
    label = f"#{row['label']}" if "label" in row else ""
    fields = {key: _or_none(value) for key, value in row.items() if key != "label"}
    return Script(name=f"{folder}/{row['path']}{label}", **{**source, **fields})


def _or_none(value: Any) -> Any:
    """TOML has no null: false stands for it."""
    return None if value is False else value


def read_all(folder: Path = HERE) -> list[Script]:
    """The scripts of all manifests of a folder, by the order of their files."""
    found = [script for path in sorted(folder.glob("*.toml")) for script in read_manifest(path)]
    names = [script.name for script in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{folder}: {sorted(twice)} stand there more than once; give each a label")
    return found


def found_in(folder: Path) -> list[Script]:
    """Every Python file directly in a folder, without arguments: where no manifest says more."""
    return [Script(name=path.name, path=path.name) for path in sorted(folder.glob("*.py"))]
