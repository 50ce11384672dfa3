"""Pages that the site makes while it is built: the command line's reference, and the pages of the checkout's root.

mkdocs loads this file by `hooks` in mkdocs.yml. The reference is what `--help` prints, so no copy can be out of date.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from elbowroom.cli import parser_of_all

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
WIDTH = "96"


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are made here."""
    files.append(File.generated(config, "cli.md", content=cli_page()))
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text("utf-8").replace("](docs/", "](")))
    return files


def cli_page() -> str:
    """The reference of the command line, made from its parsers."""
    os.environ["COLUMNS"] = WIDTH
    parser = parser_of_all()
    json = "Every verb answers programs with `--json`: [JSON answers](json.md)."
    parts = ["# Command line", "", json, "", *_help("elbowroom", parser)]
    return "\n".join(parts) + "\n"


def _help(title: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the help of a parser and of its verbs."""
    parts = [f"## {title}", "", "```text", parser.format_help().rstrip(), "```", ""]
    for action in parser._actions:  # noqa: SLF001  argparse has no public way to its verbs
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for verb, inner in action.choices.items():
                parts += _help(f"{title} {verb}", inner)
    return parts
