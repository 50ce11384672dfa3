"""Names modules over 600 lines and functions over 40, for a reviewer to look at. It never fails.

    python -m tools.long_parts [FOLDER]

The two numbers are guidance. A module that is split only to keep one is harder to read than a long one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 40
SOURCES = Path(__file__).resolve().parents[1] / "src"


def long_parts(text: str) -> Iterator[tuple[int, str, int]]:
    """What is long in one module: (line, name, lines); the module itself has no name."""
    if (lines := len(text.splitlines())) > MAX_MODULE_LINES:
        yield 1, "", lines
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            lines = node.end_lineno - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield node.lineno, node.name, lines


def main() -> None:
    """Print a line for each."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES
    for path in sorted(folder.rglob("*.py")):
        for line, name, lines in long_parts(path.read_text("utf-8")):
            print(f"{path}:{line}: {name or 'the module'} has {lines} lines; a reviewer may ask for a split")


if __name__ == "__main__":
    main()
