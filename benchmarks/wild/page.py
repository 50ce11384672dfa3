"""docs/wild.md, from the newest results files: a line for each script, and the cause of each failure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, ROOT, newest_results, write_between

from .manifest import HERE, read_all
from .survey import ENDED

PAGE = ROOT / "docs" / "wild.md"
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def write_page(page: Path = PAGE) -> None:
    """Replace the figures and the tables of the page."""
    newest = newest_results(RESULTS)
    result, on_cards = newest["wild"], newest["wild_rig"]
    rows = result["scripts"]
    causes = tomllib.loads((HERE / "causes" / "causes.toml").read_text("utf-8"))
    write_between(page, "<!-- figures -->", "<!-- figures end -->", "\n".join(figures(rows, result, len(read_all()))))
    write_between(page, "<!-- scripts -->", "<!-- scripts end -->", "\n".join(table(rows, causes)))
    write_between(page, "<!-- cards -->", "<!-- cards end -->", "\n".join(cards_table(on_cards["scripts"], causes)))


def figures(rows: list[dict[str, Any]], result: dict[str, Any], listed: int) -> list[str]:
    """What the results come to, of as many scripts as the manifests list."""
    estimates = [row["estimate"] for row in rows if "estimate" in row]
    right = [each for each in estimates if each["outcome"] in ("answered", "refused")]
    runs = [run for row in rows for run in row.get("runs", [])]
    ended = [run for run in runs if run["exit_code"] in ENDED]
    steps = sum(run["weights"]["steps"] for run in ended)
    changed = sum(len(each["files_changed"]) for each in estimates)
    commits = sorted({row[key] for row in rows for key in ("estimate_commit", "runs_commit") if key in row})
    seconds = sorted(each["seconds"] for each in estimates)
    return [
        "| what | figure |",
        "|---|---|",
        f"| scripts of the manifests, and of these tried | {listed}, {len(rows)} |",
        f"| estimates with the right answer | {len(right)} of {len(estimates)} ({_share(right, estimates)}) |",
        f"| of these: a refusal that says why | {sum(each['outcome'] == 'refused' for each in estimates)} |",
        f"| seconds of an estimate: median, longest | {_median(seconds):.0f}, {max(seconds, default=0):.0f} |",
        f"| files of the user that an estimate changed | {changed} |",
        f"| runs within a budget that ended | {len(ended)} of {len(runs)} |",
        f"| of these: held more than the budget, and said so | {sum(run['exit_code'] == ENDED[1] for run in ended)} |",
        f"| of these: printed another line | {sum(bool(run['lines']['differing']) for run in ended)} |",
        f"| of these: had other weights after a step | {sum(not run['weights']['same'] for run in ended)} |",
        f"| steps whose weights were compared | {steps} |",
        f"| torch, commits | {result['versions']['torch']}, {', '.join(commits)} |",
    ]


def _share(part: list[Any], whole: list[Any]) -> str:
    return f"{len(part) / len(whole):.0%}" if whole else "none"


def _median(values: list[float]) -> float:
    return values[len(values) // 2] if values else 0.0


def table(rows: Iterable[dict[str, Any]], causes: dict[str, str]) -> list[str]:
    """A line for each script."""
    return [
        "| script | estimate | reserved, likely | s | alone: s, RSS | within 60 % | within 35 % | cause |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(row, causes.get(row["script"]) or own_words(row)) for row in rows),
    ]


def own_words(row: dict[str, Any]) -> str:
    """What was said where there is no figure; "" where there is one."""
    found = row.get("estimate", {})
    if "not_tried" in row or found.get("outcome", "answered") == "answered":
        return row.get("not_tried", "")
    own = [line for line in found.get("said", []) if line.startswith("elbowroom:")]
    said = (own or found.get("said") or [""])[-1].removeprefix("elbowroom: ")
    return re.sub(r"\s+", " ", said.partition("; allowed")[0]).replace("|", "\\|")[:300]


def _line(row: dict[str, Any], cause: str) -> str:
    found, plain = row.get("estimate", {}), row.get("plain")
    link = f"[{row['script']}]({row['source']})" if row["source"].startswith("https") else row["script"]
    runs = {run["share"]: run for run in row.get("runs", [])}
    cells = [
        link,
        found.get("outcome", "not tried"),
        _size(found.get("peak_reserved_bytes")),
        f"{found['seconds']:.0f}" if found else "",
        f"{plain['seconds']:.0f}, {_size(plain['peak_rss_bytes'])}" if plain else "",
        *(_within(runs.get(share)) for share in (0.6, 0.35)),
        cause,
    ]
    return f"| {' | '.join(cells)} |"


def cards_table(rows: Iterable[dict[str, Any]], causes: dict[str, str]) -> list[str]:
    """A line for each card that a script was tried on; a cause "NAME on a card" is what is known of it there."""
    lines = ((row, card, causes.get(f"{row['script']} on a card", "")) for row in rows for card in row.get("cards", []))
    return [
        "| script | reserves alone | estimate | card | alone | in a run: reserved | steps | cause |",
        "|---|---|---|---|---|---|---|---|",
        *(_card_line(*each) for each in lines),
    ]


def _card_line(row: dict[str, Any], card: dict[str, Any], cause: str) -> str:
    link = f"[{row['script']}]({row['source']})" if row["source"].startswith("https") else row["script"]
    alone, run = card["alone"], card["run"]
    cells = [
        link,
        _size(row["alone"]["reserved_bytes"]),
        _off_by(row.get("estimate", {})),
        _size(run.get("capacity_bytes", card["capacity_bytes"])),
        "runs out" if alone["ran_out"] else "ends" if alone["exit_code"] == 0 else "fails",
        _size(run["reserved_bytes"]) if run["exit_code"] == 0 else "**fails**" if "refused" not in run else "refused",
        str(run["steps"]),
        f"a card of {_size(card['capacity_bytes'])} was refused" if "refused" in run else cause,
    ]
    return f"| {' | '.join(cells)} |"


def _off_by(estimate: dict[str, Any]) -> str:
    """By how much an estimate of the same steps is above what the CUDA build reserves; "" without one."""
    if "reserved_bytes" not in estimate:
        return ""
    return f"{estimate['reserved_bytes'] / estimate['alone_reserved_bytes'] - 1:+.1%}"


def _size(size_bytes: int | None) -> str:
    if not size_bytes:
        return ""
    return next((f"{size_bytes / unit:.1f} {name}" for name, unit in _UNITS if size_bytes >= unit), f"{size_bytes} B")


def _within(run: dict[str, Any] | None) -> str:
    """`same` where lines and weights are; the least budget where the share was refused."""
    if run is None:
        return ""
    if run["exit_code"] not in ENDED:
        return "refused" if run["exit_code"] is not None else "late"
    same = run["weights"]["same"] and not run["lines"]["differing"]
    least = f", least {_size(int(run['budget']))}" if "refused" in run else ""
    more = ", held more" if run["exit_code"] == ENDED[1] else ""
    return f"{'same' if same else '**differs**'}{least}{more}"
