"""A file imports only what ARCHITECTURE.md's table of packages allows, and stays short."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "elbowroom"

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
GROUPS = {"base": "errors", "records": "trace"}
"""Rows of several files, by one of them."""


@dataclass(frozen=True)
class Row:
    """What one row of ARCHITECTURE.md's table allows: parts of the package, those they may import, and libraries."""

    parts: tuple[str, ...]
    imports: tuple[str, ...]
    libraries: tuple[str, ...]


def table() -> list[Row]:
    text = ARCHITECTURE.read_text("utf-8").split("## Packages", 1)[1].split("\n## ", 1)[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    named = [[tuple(word for word in cell.split(", ") if word) for cell in row] for row in cells[2:]]
    return [Row(parts, imports, libraries) for parts, _, imports, libraries in named]


ROWS = table()
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]


def row_of(part: str) -> int:
    found = [n for n, row in enumerate(ROWS) if part in row.parts]
    assert len(found) == 1, f"elbowroom.{part} stands {len(found)} times in ARCHITECTURE.md's table: once is right"
    return found[0]


def allowed_by(n: int) -> set[int]:
    """Rows that may be imported by files of the n-th."""
    if ROWS[n].imports == ("all",):
        return set(range(n + 1))
    return {n, *(row_of(GROUPS.get(name, name)) for name in ROWS[n].imports)}


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
def test_a_file_imports_only_what_the_table_of_packages_allows(path: Path) -> None:
    parts = parts_of(path)
    mine = row_of(parts[1])
    for name in imports_of(ast.parse(path.read_text("utf-8")), parts[:-1]):
        if name[0] == "elbowroom":
            is_root = len(name) == 1 or not is_file_or_folder(name[1])  # the package itself, or a name it exports
            other = row_of("__init__" if is_root else name[1])
            assert other in allowed_by(mine), f"{path} imports {'.'.join(name)}, which ARCHITECTURE.md does not allow"
        else:
            allowed = name[0] in sys.stdlib_module_names or name[0] in ROWS[mine].libraries
            assert allowed, f"{path} imports {name[0]}; allowed beside the standard library: {ROWS[mine].libraries}"


def test_the_table_of_packages_points_upward_only_and_names_all_there_is() -> None:
    for n in range(len(ROWS)):
        assert max(allowed_by(n)) == n, f"row {ROWS[n].parts} imports one below it"
    there = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert {part for row in ROWS for part in row.parts} == there


def modules() -> dict[str, Path]:
    """All files of the package by their dotted names."""
    return {".".join(parts_of(path)).removesuffix(".__init__"): path for path in FILES}


def files_imported_by(path: Path, known: dict[str, Path]) -> set[str]:
    """Files of the package that a file imports when it is imported, or later."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in below}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & set(known)
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    known = modules()
    sorter = TopologicalSorter({name: files_imported_by(path, known) for name, path in known.items()})
    sorter.prepare()  # raises CycleError, which names the files


def test_the_types_of_packages_without_torch_are_checked_strictly() -> None:
    settings = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text("utf-8"))
    strict = {Path(name).stem for name in settings["tool"]["pyright"]["strict"]}
    pure = [row for row in ROWS if not {"torch", "rich", "jax"} & set(row.libraries)]
    assert strict == {part for row in pure for part in row.parts}


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
    unwanted = ("torch", "jax", "scipy", "monai", "rich")
    code = f"import sys, {module}; print([name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
