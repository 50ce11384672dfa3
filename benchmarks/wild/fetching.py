"""The scripts of the manifests, from their public repositories. None of them is part of this project."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .manifest import Script


def fetch_all(folder: Path, scripts: list[Script]) -> None:
    """A checkout of each repository at the commit of its manifest, of the folders that its scripts need."""
    for name in sorted({Path(script.name).parts[0] for script in scripts}):
        chosen = [script for script in scripts if Path(script.name).parts[0] == name]
        if not (folder / name).exists():
            fetch(folder / name, chosen)
            print(f"{name}: {len(chosen)} scripts", flush=True)


def fetch(target: Path, scripts: list[Script]) -> None:
    """One repository, without the files that are not needed."""
    first = scripts[0]
    trees = sorted({script.tree or str(Path(script.path).parent) for script in scripts})
    _git("clone", "--quiet", "--filter=blob:none", "--no-checkout", first.repository, str(target))
    if "." not in trees:
        _git("-C", str(target), "sparse-checkout", "set", *trees)
    _git("-C", str(target), "checkout", "--quiet", first.commit)


def _git(*words: str) -> None:
    subprocess.run(["git", *words], check=True)
