"""Runs the code blocks of documentation pages, and writes or checks the output that the pages show.

    python -m tools.doc_blocks write docs/tutorials/estimate.md    # run the blocks, write what they print
    python -m tools.doc_blocks check docs/tutorials/*.md           # run them and compare; exit 1 if a page is old

A page is run from top to bottom in an empty folder that holds a copy of `examples`. Two kinds of blocks take part:

- a fenced block with a title, such as ```python title="train.py", is written to a file of that name;
- a ```console block holds commands after "$ ", each followed by what it printed. A command that ends with another exit
  code than 0 says so: `$ elbowroom estimate train.py  # exit 1`.

A comment in the line before a console block says how to treat it:

- `<!-- lines: 1-3, total -->` shows lines 1 to 3 and those with the word "total", with "..." for what is left out;
- `<!-- measured -->` marks output that depends on the computer: the commands have to end as said, and print something;
- `<!-- not run -->` leaves the block alone.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(
    r"(?P<comments>(?:^ *<!--[^\n]*-->\n)*)^(?P<indent> *)```(?P<info>[^\n`]+)\n"
    r"(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r'title="([^"]+)"')
EXIT = re.compile(r"\s+# exit (\d+)$")
LINES = re.compile(r"<!-- lines: (.+?) -->")
TIMEOUT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a console block."""

    text: str
    exit_code: int

    @property
    def shell(self) -> str:
        """The command without its remark on the exit code."""
        return EXIT.sub("", self.text)


class BlockFailed(Exception):
    """A command of a page ended with another exit code than the page says."""


def commands(body: str) -> Iterator[Command]:
    """The commands of a console block, in order."""
    for line in body.splitlines():
        if line.startswith("$ "):
            found = EXIT.search(line)
            yield Command(text=line[2:], exit_code=int(found[1]) if found else 0)


def run_page(text: str, folder: Path) -> str:
    """Run a page's blocks in `folder` and return the page with the output that they printed.

    Raises:
        BlockFailed: a command ended with an exit code that the page does not name.
    """

    def run_block(match: re.Match[str]) -> str:
        body, indent = match["body"], match["indent"]
        title = TITLE.search(match["info"])
        if title is not None:
            (folder / title[1]).write_text(_without_indent(body, indent))
        if not match["info"].startswith("console") or "<!-- not run -->" in match["comments"]:
            return match[0]
        shown = _shown(_without_indent(body, indent), folder, LINES.search(match["comments"]))
        inside = "".join(f"{indent}{line}".rstrip() + "\n" for line in shown.splitlines())
        return f"{match['comments']}{indent}```{match['info']}\n{inside}{indent}```"

    return FENCE.sub(run_block, text)


def _shown(body: str, folder: Path, lines: re.Match[str] | None) -> str:
    parts = []
    for command in commands(body):
        printed = _output(command, folder)
        parts.append(f"$ {command.text}\n{_chosen(printed, lines[1]) if lines else printed}")
    return "".join(parts)


def _output(command: Command, folder: Path) -> str:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ELBOWROOM_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "88",
        "PYTHONWARNINGS": "ignore",
        "ELBOWROOM_CACHE_DIR": str(folder / ".cache"),
    }
    words = ["bash", "-c", command.shell]
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if done.returncode != command.exit_code:
        raise BlockFailed(f"$ {command.text}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    # Progress and errors go to standard error: a page shows them only where a command sends them to standard output.
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines()).rstrip("\n")
    return f"{printed}\n" if printed else ""


def _chosen(printed: str, wanted: str) -> str:
    lines = printed.splitlines()
    shown: set[int] = set()
    for part in wanted.split(","):
        first, _, end = part.strip().partition("-")
        if first.isdigit():
            shown.update(range(int(first) - 1, min(int(end or first), len(lines))))
        else:
            shown.update(n for n, line in enumerate(lines) if part.strip() in line)
    marked = [line if n in shown else "..." for n, line in enumerate(lines)]
    kept = [line for n, line in enumerate(marked) if line != "..." or n == 0 or marked[n - 1] != "..."]
    return "\n".join(kept) + "\n"


def _without_indent(body: str, indent: str) -> str:
    return "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))


def compared(text: str) -> str:
    """A page without what measured blocks print, so that two runs can be compared."""

    def commands_only(match: re.Match[str]) -> str:
        if "<!-- measured -->" not in match["comments"]:
            return match[0]
        lines = match["body"].splitlines()
        return "\n".join(
            line if line.startswith("$ ") else "(printed)"
            for n, line in enumerate(lines)
            if line.startswith("$ ") or lines[n - 1].startswith("$ ")
        )

    return FENCE.sub(commands_only, text)


def run_file(path: Path) -> tuple[str, str]:
    """Run one page in an empty folder. Returns its text and the text with the output of this run."""
    text = path.read_text()
    with tempfile.TemporaryDirectory(prefix="doc-blocks-") as name:
        shutil.copytree(ROOT / "examples", Path(name) / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        return text, run_page(text, Path(name))


def main() -> None:
    """Write or check the pages named on the command line."""
    parser = argparse.ArgumentParser(description="Run the code blocks of documentation pages.")
    parser.add_argument("action", choices=["write", "check"])
    parser.add_argument("pages", nargs="+", type=Path)
    arguments = parser.parse_args()
    stale = []
    for page in arguments.pages:
        text, run = run_file(page)
        if arguments.action == "write":
            page.write_text(run)
        elif compared(text) != compared(run):
            stale.append(str(page))
        print(f"{page}: run")
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; run python -m tools.doc_blocks write {' '.join(stale)}")


if __name__ == "__main__":
    main()
