"""A copy of a script's folder with its data, in which a trial may do what it wants, and what a trial changed there."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .manifest import Script


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Folders of one trial."""

    root: Path
    script: Path
    folder: Path
    """What the script is run in."""

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def temporary(self) -> Path:
        """Not the user's: files here may come and go."""
        return self.root / "tmp"

    def files(self) -> dict[str, str]:
        """Digest of each of the user's files: all below the root but temporary ones."""
        found: dict[str, str] = {}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root)
            if path.is_file() and name.parts[0] != "tmp" and "__pycache__" not in name.parts:
                found[str(name)] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found


def make_sandbox(script: Script, scripts: Path, data: Path, root: Path, prepare: Callable[[Sandbox], None]) -> Sandbox:
    """A fresh copy at a root, which is emptied before.

    Args:
        script: what is tried.
        scripts: folder with a folder for each repository.
        data: folder that `make_data` filled.
        root: where; the same for all trials of a script, so that paths in its output are.
        prepare: runs the command that the manifest has before the script.
    """
    shutil.rmtree(root, ignore_errors=True)
    repository = scripts / Path(script.name).parts[0] if script.repository else scripts
    tree = Path(script.tree or str(Path(script.path).parent))
    copied = root / "user" / "work" / tree
    if script.repository:
        shutil.copytree(repository / tree, copied, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    else:
        copied.mkdir(parents=True)
        if script.path not in script.files:
            shutil.copy(repository / script.path, copied)
    folder = copied / script.where if script.where else root / "user" / "work" / Path(script.path).parent
    made = Sandbox(root=root, script=root / "user" / "work" / script.path, folder=folder)
    for each in (folder, made.home, made.temporary):
        each.mkdir(parents=True, exist_ok=True)
    for place, source in script.data.items():
        _copy(data / source, folder / place)
    for place, text in script.files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, "utf-8")
    if script.readme:
        made.script.write_text(block_of(repository / "README.md", script), "utf-8")
    if script.before:
        prepare(made)
    return made


def block_of(readme: Path, script: Script) -> str:
    """The block of Python of a README that is the script, with what the manifest replaces.

    Raises:
        ValueError: it is not there, or does not have a text that is replaced.
    """
    blocks = re.findall(r"```(?:python|py)\n(.*?)```", readme.read_text("utf-8"), re.DOTALL)
    if script.readme > len(blocks):
        raise ValueError(f"{readme}: given block {script.readme}; it has {len(blocks)} of Python")
    text = blocks[script.readme - 1]
    for old, new in script.replaced.items():
        if old not in text:
            raise ValueError(f"{readme}: block {script.readme} does not have {old!r}, which is replaced")
        text = text.replace(old, new)
    return text


def _copy(source: Path, target: Path) -> None:
    if not source.exists():
        raise FileNotFoundError(f"{source}: not there; make it with python -m benchmarks.wild.data FOLDER")
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def differences(before: dict[str, str], after: dict[str, str]) -> dict[str, list[str]]:
    """Names of files that were changed or removed, and of those that were added."""
    changed = [name for name, digest in before.items() if after.get(name) != digest]
    return {"changed": changed, "added": [name for name in after if name not in before]}


def run_in(sandbox: Sandbox, command: list[str], environment: dict[str, str]) -> None:
    """Runs the command that comes before the script; raises RuntimeError where it fails."""
    done = subprocess.run(command, cwd=sandbox.folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
