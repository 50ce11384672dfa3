"""Writes the tables of docs/planning.md from the newest result files: `python -m benchmarks.planning.table`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.planning.rows import CHECKPOINT, best_of
from benchmarks.results import RESULTS, ROOT, newest_results, replace_between
from elbowroom.units import format_bytes, format_ns

PAGE = ROOT / "docs" / "planning.md"
START = "<!-- planning: made by python -m benchmarks.planning.table, do not edit -->"
END = "<!-- planning end -->"
HEADLINES_START, HEADLINES_END = START.replace("planning:", "headlines:"), END.replace("planning", "headlines")
OPTIMAL_START, OPTIMAL_END = START.replace("planning:", "optimal:"), END.replace("planning", "optimal")
HEADING = (
    "| model and GPU | kept: reserved, step | budget | optimal: step | bound | moved | busy | checkpoints: step "
    "| best other: step |"
)


def table(result: dict[str, Any]) -> str:
    """A row for every budget of every pair, its commit in brackets; steps are multiples of the one that keeps all."""
    lines = [HEADING, f"|{'---|' * (HEADING.count('|') - 1)}"]
    for pair, entry in result["pairs"].items():
        keep = entry["kept"]
        held = f"{format_bytes(keep['peak_reserved_bytes'])}, {format_ns(keep['step_ns'])}"
        name = f"{pair}: {entry['words']} ({entry['commit']})"
        for label in dict.fromkeys(row["budget"] for row in entry["rows"]):
            rows = [row for row in entry["rows"] if row["budget"] == label]
            ours = next((row for row in rows if row["planner"] == "optimal"), None)
            if ours is None:
                continue
            budget = f"{label}: {format_bytes(ours['budget_bytes'])}"
            lines.append(
                f"| {name} | {held} | {budget} | {_ours(ours, keep)} | {_checkpoints(rows)} | {_others(rows)} |"
            )
            name = held = ""
    commits = dict.fromkeys(entry["commit"] for entry in result["pairs"].values())
    limits = " or ".join(f"{each:g}" for each in sorted({e["time_limit_s"] for e in result["pairs"].values()}))
    return "\n".join(
        [
            *lines,
            "",
            f"<sub>Simulated. elbowroom {result['versions']['elbowroom']}, commits {', '.join(commits)}; a planner may "
            f"search {limits} s; benchmarks/results/{result['file']}</sub>",
        ]
    )


def _ours(row: dict[str, Any], keep: dict[str, Any]) -> str:
    if "slowdown" not in row:
        return f"infeasible, least {format_bytes(row['least_feasible_bytes'])} | | |"
    bound = f"{row['lower_bound_ns'] / keep['step_ns']:.3f}" if "lower_bound_ns" in row else ""
    moved = format_bytes(row["swapped_out_bytes"] + row["swapped_back_bytes"])
    return f"{row['slowdown']:.3f} | {bound} | {moved} | {row['utilisation']:.0%}"


def _checkpoints(rows: list[dict[str, Any]]) -> str:
    return next((f"{row['slowdown']:.3f}" for row in rows if row["planner"] == CHECKPOINT and "slowdown" in row), "")


def _others(rows: list[dict[str, Any]]) -> str:
    best = best_of(rows, without="optimal")
    return "none fits" if best is None else f"{best['slowdown']:.3f} ({best['planner']})"


def headlines(result: dict[str, Any]) -> str:
    """A row for every headline: what was published, what keeping everything needs, and what the plan does."""
    lines = [
        "| headline | published | largest kept, planned | reserved: kept, least, allowed | step | bound |",
        "|---|---|---|---|---|---|",
    ]
    for name, made in result["headlines"].items():
        keep, row = made["kept"], made["row"]
        grown = f"{made['plain']}, {made['planned']}: {made['times']:.2f}x" if "vary" in made else ""
        sizes = (keep["peak_reserved_bytes"], made["least_bytes"], made["allowed_bytes"])
        figures = f"{', '.join(map(format_bytes, sizes))} | {row['slowdown']:.3f}"
        bound = f"{row['lower_bound_ns'] / keep['step_ns']:.3f}" if "lower_bound_ns" in row else ""
        lines.append(f"| {name} | {made['said']} | {grown} | {figures} | {bound} |")
    said = f"commit {result['versions']['commit']}; benchmarks/results/{result['file']}"
    return "\n".join([*lines, "", f"<sub>Simulated. {said}</sub>"])


def optimal(result: dict[str, Any]) -> str:
    """A row for every plan for allocated bytes."""
    lines = [
        "| trace | saved storages | budget | means | step | bound | gap | swaps | recomputes | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    chains = {f"chain of {int(layers):,} layers": rows for layers, rows in result["chains"].items()}
    for name, rows in {**result["models"], **chains}.items():
        for row in rows:
            begin = f"| {name} | {row['saves']:,} | {row['share']:.0%} | {row['means']}"
            if "step" not in row:
                lines.append(f"{begin} | infeasible below {row['least_share']:.0%} | | | | | |")
                continue
            figures = f"{row['step']:.3f} | {row['bound']:.3f} | {row['gap']:.2%} | {row['swaps']:,}"
            lines.append(f"{begin} | {figures} | {row['recomputes']:,} | {row['seconds']:.1f} |")
    said = f"commit {result['versions']['commit']}; benchmarks/results/{result['file']}"
    return "\n".join([*lines, "", f"<sub>Simulated, but for the seconds. {said}</sub>"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning.table", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the page is out of date")
    given = parser.parse_args()
    page = Path(PAGE).read_text()
    results = newest_results(RESULTS)
    new = replace_between(page, START, END, table(results["planning"]))
    new = replace_between(new, OPTIMAL_START, OPTIMAL_END, optimal(results["optimal"]))
    new = replace_between(new, HEADLINES_START, HEADLINES_END, headlines(results["headlines"]))
    if given.check:
        sys.exit(f"{PAGE}: out of date; run python -m benchmarks.planning.table" if new != page else 0)
    Path(PAGE).write_text(new)


if __name__ == "__main__":
    main()
