"""One name, one thing: no file name twice within the package."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "elbowroom"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def test_no_file_name_stands_twice_in_the_package() -> None:
    assert [name for name, count in Counter(path.name for path in FILES).items() if count > 1] == []
