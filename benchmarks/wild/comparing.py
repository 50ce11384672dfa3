"""Whether two runs of a script printed the same and had the same weights after every step."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PROGRESS = re.compile(r"it/s|s/it|\d+%\|")
_VARYING = [
    re.compile(r"\d+:\d\d(:\d\d)?(\.\d+)?"),  # times of day, durations
    re.compile(r"\d{4}-\d\d-\d\d"),
    re.compile(r"0x[0-9a-f]+"),
    re.compile(r"[\d.]+(e-?\d+)?\s*(ms|us|µs|s|sec|secs|seconds?|minutes?|hours?)\b"),
    re.compile(r"((time|took|elapsed|duration|speed|mfu|per_second|/s|fps|sps|runtime)\W{0,4})[-\d.]+(e-?\d+)?", re.I),
    re.compile(r"tmp[a-z0-9_]{6,}"),
]


def lines_of(output: str) -> list[str]:
    """What a run printed, less progress bars; times, dates, addresses and temporary names are masked."""
    lines = _COLOURS.sub("", output).replace("\r", "\n").splitlines()
    return [_masked(line) for line in lines if line.strip() and not _PROGRESS.search(line)]


def _masked(line: str) -> str:
    for varying in _VARYING:
        line = varying.sub("…", line)
    return " ".join(line.split())  # a shorter time has more blanks before it


def compare_lines(plain: str, other: str, again: str | None = None) -> dict[str, object]:
    """How many lines are there, and those that differ.

    A line in which two plain runs differ is not counted: it shows a clock, a name or a thread.

    Args:
        plain: output of the script alone.
        other: output of the script under elbowroom.
        again: output of the script alone, once more.
    """
    first, second = lines_of(plain), lines_of(other)
    third = lines_of(again) if again is not None else first
    varying = {line for a, b in zip(first, third, strict=False) if a != b for line in (a, b)} | set(first) ^ set(third)
    steady = [line for line in first if line not in varying]
    matched = difflib.SequenceMatcher(None, steady, second, autojunk=False).get_matching_blocks()
    found = {n for block in matched for n in range(block.a, block.a + block.size)}
    missing = [line for n, line in enumerate(steady) if n not in found]
    return {"lines": len(steady), "differing": len(missing), "first_differing": missing[:3]}


def read_digests(path: Path) -> list[list[str]]:
    """Digests of the weights after each step, per process that stepped."""
    return [each.read_text().split() for each in sorted(path.parent.glob(f"{path.name}*"))]


def compare_weights(plain: list[list[str]], other: list[list[str]]) -> dict[str, object]:
    """How many steps there were, and the first after which the weights differ."""
    rows = [row for row in plain if row]
    first = next(
        (
            step
            for one, two in zip(plain, other, strict=False)
            for step, (a, b) in enumerate(zip(one, two, strict=False), 1)
            if a != b
        ),
        None,
    )
    same = plain == other
    return {"steps": sum(map(len, rows)), "same": same, "first_differing_step": first}
