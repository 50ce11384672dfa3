"""A file imports only from its own or a lower level, and stays short."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "elbowroom"
MAX_FUNCTION_LINES = 40
MAX_MODULE_LINES = 600

# Level of each file or folder of the package. Levels 2a and 2b lie beside each other: neither imports the other.
LEVELS: dict[str, set[str]] = {
    "0": {
        "codec",
        "errors",
        "files",
        "gpu_table",
        "gpus",
        "machine",
        "machine_probe",
        "nvml",
        "older",
        "outside_measured",
        "plan",
        "ram",
        "rules",
    }
    | {"timeline", "trace", "units", "watch"},
    "1": {"allocator", "checks", "estimate", "lanes", "largest", "lifetimes", "moves", "owners", "pareto", "planners"}
    | {"algorithms", "curves", "cycles", "differences", "driver", "rebuilds", "recipes", "schedule", "simulate"}
    | {"decided", "least_size", "links", "selecting", "slowdown", "translate", "windows"},
    "2a": {"report"},
    "2b": {"capture", "runtime"},
    "3": {"__init__", "__main__", "cli", "demo", "integrations"},
}
BELOW: dict[str, set[str]] = {
    "0": {"0"},
    "1": {"0", "1"},
    "2a": {"0", "1", "2a"},
    "2b": {"0", "1", "2b"},
    "3": {"0", "1", "2a", "2b", "3"},
}
OTHERS: dict[str, set[str]] = {
    "0": set(),
    "1": {"highspy", "numpy", "scipy"},
    "2a": {"numpy", "rich"},
    "2b": {"numpy", "torch"},
    "3": {"accelerate", "keras", "lightning", "monai", "nibabel", "numpy", "rich", "torch", "transformers"},
}
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]


def level_of(part: str) -> str:
    found = [level for level, parts in LEVELS.items() if part in parts]
    assert found, f"elbowroom.{part} has no level: give it one in LEVELS of {__file__}"
    return found[0]


def is_file_or_folder(part: str) -> bool:
    return (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file()


def imports_of(tree: ast.AST, package: list[str]) -> Iterator[list[str]]:
    """Dotted names of everything a file imports, wherever the import stands; `package` resolves relative ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = above + (node.module.split(".") if node.module else [])
            if module == ["elbowroom"]:
                yield from ([*module, alias.name] for alias in node.names)
            else:
                yield module


def parts_of(path: Path) -> list[str]:
    return list(path.relative_to(PACKAGE.parent).with_suffix("").parts)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_file_imports_only_from_its_own_or_lower_levels(path: Path) -> None:
    parts = parts_of(path)
    level = level_of(parts[1])
    for name in imports_of(ast.parse(path.read_text("utf-8")), parts[:-1]):
        if name[0] == "elbowroom":
            is_root = len(name) == 1 or not is_file_or_folder(name[1])  # the package itself, or a name it exports
            other = "3" if is_root else level_of(name[1])
            assert other in BELOW[level], f"{path} (level {level}) imports {'.'.join(name)} (level {other})"
        else:
            allowed = name[0] in sys.stdlib_module_names or name[0] in OTHERS[level]
            assert allowed, (
                f"{path} (level {level}) imports {name[0]}; allowed beside the standard library: {OTHERS[level]}"
            )


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= MAX_MODULE_LINES, f"{path} is longer than {MAX_MODULE_LINES} lines: split it"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            lines = node.end_lineno - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{path}:{node.lineno} {node.name} has {lines} lines: split it"


def test_the_types_of_levels_0_and_1_are_checked_strictly() -> None:
    settings = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text("utf-8"))
    strict = {Path(name).stem for name in settings["tool"]["pyright"]["strict"]}
    assert strict == LEVELS["0"] | LEVELS["1"]


def test_the_way_imports_are_found_sees_all_kinds() -> None:
    # given imports at the top, in a function, of a name, and relative ones of a file elbowroom/capture/recorder.py
    code = (
        "import os.path\nfrom elbowroom import plan, units\nfrom elbowroom.trace import Op\n"
        "def f():\n    import torch\nfrom . import modules\nfrom .modules import x\nfrom .. import rules\n"
    )
    found = [".".join(name) for name in imports_of(ast.parse(code), ["elbowroom", "capture"])]

    assert sorted(found) == [
        "elbowroom.capture",
        "elbowroom.capture.modules",
        "elbowroom.plan",
        "elbowroom.rules",
        "elbowroom.trace",
        "elbowroom.units",
        "os.path",
        "torch",
    ]


@pytest.mark.parametrize("module", ["elbowroom", "elbowroom.cli", "elbowroom.report", "elbowroom.planners"])
def test_importing_it_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; print([name for name in ('torch', 'scipy', 'monai', 'rich') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
