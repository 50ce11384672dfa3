"""Builds wheel and sdist, installs each into an empty environment, and runs the demo's small size from there.

    python -m tools.wheel_test [--constraint constraints.txt] [-- ARGUMENTS OF PIP]

The demo runs in a folder outside the checkout, so what works is what was packed. It takes some minutes, most of them
to install torch twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Build, install, run; any step that fails ends it."""
    parser = argparse.ArgumentParser(description="Run the demo from a wheel and from an sdist.")
    parser.add_argument("--constraint", type=Path, help="constraints file of pip, as for torch's version")
    parser.add_argument("pip", nargs="*", help="further arguments of pip install, after --")
    arguments = parser.parse_args()
    given = [*(["-c", str(arguments.constraint.resolve())] if arguments.constraint else []), *arguments.pip]
    with tempfile.TemporaryDirectory(prefix="elbowroom-wheel-") as name:
        folder = Path(name)
        _run([sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(ROOT)], folder)
        for pattern in ("*.whl", "*.tar.gz"):
            (package,) = (folder / "dist").glob(pattern)
            _try(package, folder / f"with-{package.suffix[1:]}", given)


def _try(package: Path, folder: Path, pip_arguments: list[str]) -> None:
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    _run([str(python), "-m", "pip", "install", "-q", *pip_arguments, f"{package}[demo]"], folder)
    command = [str(folder / "venv" / "bin" / "elbowroom"), "demo", "--size", "small", "--json", "--out", "demo"]
    result = json.loads(_run(command, folder))
    where = _run([str(python), "-c", "import elbowroom; print(elbowroom.__file__)"], folder).strip()
    assert Path(where).is_relative_to(folder), f"{where} is not what was installed"
    schema = json.loads((Path(where).parent / "schemas" / "answer.demo.json").read_text("utf-8"))
    assert result.keys() == schema["properties"].keys(), f"the schemas of {package.name} are not those of its answers"
    assert result["bit_equal"], f"the demo of {package.name} gave other numbers than plain training"
    print(f"{package.name}: the demo ran in {Path(where).parents[1]}, with equal losses and weights", flush=True)


def _run(command: list[str], folder: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=clean, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
