"""Writes the README's tables from the result files: `python -m benchmarks.table [--check]`.

They stand between two marker lines and are never edited by hand. `--check` writes nothing and fails where they are
out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES
from benchmarks.results import RESULTS, ROOT, newest_results
from elbowroom.units import format_bytes, format_ns

START = "<!-- benchmarks: made by python -m benchmarks.table, do not edit -->"
END = "<!-- benchmarks end -->"

Result = dict[str, Any]
COLUMNS: dict[str, Callable[[Result], str]] = {
    "step time / plain (min to max)": lambda row: (
        f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
    ),
    "peak allocated": lambda row: format_bytes(row["peak_allocated_bytes"]),
    "simulated": lambda row: _optional(row, "simulated_peak_allocated_bytes", format_bytes),
    "peak RSS": lambda row: format_bytes(row["peak_rss_bytes"]),
    "swapped out": lambda row: _optional(row, "swapped_out_bytes", format_bytes),
    "stall": lambda row: _optional(row, "stall_ns", format_ns),
    "bit-equal": lambda row: "yes" if row["bit_equal"] else "no",
}


def _optional(row: Result, key: str, form: Callable[[int], str]) -> str:
    return form(row[key]) if key in row else ""


def tables(results: dict[str, Result]) -> str:
    """All tables as Markdown, a section per case in the order of CASES."""
    parts = [case_table(results[case]) for case in CASES if case in results]
    if "overhead" in results:
        parts.append(overhead_table(results["overhead"]))
    return "\n\n".join(parts)


def case_table(result: Result) -> str:
    """One case: plain, each budget, and checkpointing."""
    plain = result["plain"]
    held, peak = format_bytes(plain["held_bytes"]), format_bytes(plain["peak_allocated_bytes"])
    heading = (
        f"**{result['description']}**. Plain: a step of {format_ns(_plain_step_ns(result))}, peak allocated "
        f"{peak}, of it {held} before the step; peak RSS {format_bytes(plain['peak_rss_bytes'])}."
    )
    lines = [heading, "", f"| | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    lines += [f"| {label} | {' | '.join(cells)} |" for label, cells in _rows(result)]
    return "\n".join([*lines, "", provenance(result)])


def _plain_step_ns(result: Result) -> int:
    return result["checkpoint"]["plain_median_step_ns"]


def _rows(result: Result) -> Iterator[tuple[str, list[str]]]:
    for row in result["within"]:
        label = f"within {format_bytes(row['budget_bytes'])} ({row['fraction']:.0%} of the activations)"
        if "infeasible" in row:
            cell = f"infeasible, least is {format_bytes(row['least_feasible_bytes'])}"
            yield label, [cell] + [""] * (len(COLUMNS) - 1)
        else:
            yield label, [cell(row) for cell in COLUMNS.values()]
    yield "torch.utils.checkpoint on the blocks", [cell(result["checkpoint"]) for cell in COLUMNS.values()]


def overhead_table(result: Result) -> str:
    """What `within` costs where the job fits."""
    lines = [
        "**A job that fits.**",
        "",
        "| | plain step | step time / plain | n | while observing |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {case['description']} | {format_ns(case['plain_median_step_ns'])} | {case['ratio']:.3f} | {case['n']} "
        f"| {case['observed']['ratio']:.1f} |"
        for case in result["cases"]
    ]
    return "\n".join([*lines, "", provenance(result)])


def provenance(result: Result) -> str:
    """Where the figures come from, in one line."""
    computer, versions = result["computer"], result["versions"]
    disk = "".join(
        f", disk {format_bytes(link['out_bytes_per_s'])}/s out and {format_bytes(link['back_bytes_per_s'])}/s back"
        for link in computer["disk"]
    )
    counts = {row["n"] for row in [*result.get("within", []), *result.get("cases", [])] if "n" in row}
    timed = f", n = {min(counts)} to {max(counts)}" if len(counts) > 1 else f", n = {max(counts, default=0)}"
    return (
        f"<sub>{result['date']}, {computer['cores']} cores{disk}; torch {versions['torch']}, "
        f"Python {versions['python']}{timed} timed steps; benchmarks/results/{result['file']}</sub>"
    )


def replace_between(text: str, tables_text: str) -> str:
    """`text` with what is between the two marker lines replaced."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"README.md lacks the marker lines: put in {START!r} and, below it, {END!r}")
    return f"{before}{START}\n\n{tables_text}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the README's tables from the result files.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the tables are out of date")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory with the result files")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md", help="the file with the marker lines")
    arguments = parser.parse_args()
    text = arguments.readme.read_text()
    wanted = replace_between(text, tables(newest_results(arguments.results)))
    if arguments.check and wanted != text:
        sys.exit(f"{arguments.readme} is out of date: run python -m benchmarks.table")
    if not arguments.check:
        arguments.readme.write_text(wanted)


if __name__ == "__main__":
    main()
