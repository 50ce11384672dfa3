"""One name, one thing: no file name and no class name twice within the package."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "elbowroom"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def test_no_file_name_stands_twice_in_the_package() -> None:
    assert [name for name, count in Counter(path.name for path in FILES).items() if count > 1] == []


def test_no_class_name_stands_twice_in_the_package() -> None:
    trees = (ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py"))
    classes = (node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in Counter(classes).items() if count > 1] == []
