"""Writes the tables of README.md and docs/benchmarks.md from the result files: `python -m benchmarks.table [--check]`.

They stand between marker lines and are never edited by hand. `--check` writes nothing and fails where they are
out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES
from benchmarks.results import RESULTS, ROOT, newest_results, replace_between
from elbowroom.units import format_bytes, format_ns

START = "<!-- benchmarks: made by python -m benchmarks.table, do not edit -->"
END = "<!-- benchmarks end -->"
DEMO_START = "<!-- demo: made by python -m benchmarks.table, do not edit -->"
DEMO_END = "<!-- demo end -->"
WEIGHTS_START = "<!-- demo of weights: made by python -m benchmarks.table, do not edit -->"
WEIGHTS_END = "<!-- demo of weights end -->"
DOCS = ROOT / "docs" / "benchmarks.md"

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


def demo_table(result: Result) -> str:
    """The run of the demo with the median ratio: plain, plain under the limit, elbowroom under it."""
    run = sorted(result["runs"], key=lambda each: each["step_ratio"])[len(result["runs"]) // 2]
    trials = [run["plain"], run["limited"], run["within"]]
    within = run["within"]
    rows = [
        ("ends", ["out of memory" if trial["failed"] else "finished" for trial in trials]),
        ("peak allocated", [_or_dash(trial["peak_allocated_bytes"], format_bytes) for trial in trials]),
        ("peak allocated, simulated", ["", "", format_bytes(within["simulated_peak_allocated_bytes"])]),
        ("peak RSS", [format_bytes(trial["peak_rss_bytes"]) for trial in trials]),
        ("step time", [_or_dash(trial["step_ns"], format_ns) for trial in trials]),
        (
            f"ratio to plain, median of {result['n']} runs (min to max)",
            ["1", "", f"{result['ratio']:.2f} ({result['ratio_min']:.2f} to {result['ratio_max']:.2f})"],
        ),
        ("stall in a step", ["", "", format_ns(within["stall_ns"])]),
        (
            "swapped out and back in a step",
            ["", "", f"{format_bytes(within['swapped_out_bytes'])}, {format_bytes(within['swapped_back_bytes'])}"],
        ),
        ("last loss", [f"{trial['losses'][-1]:.6f}" if trial["losses"] else "" for trial in trials]),
    ]
    limit = f"{format_bytes(run['limit_bytes'])} ({run['limit_kind']})"
    lines = [f"| | plain PyTorch | plain PyTorch, limit {limit} | elbowroom, the same limit |", "|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]
    equal = "yes" if all(each["bit_equal"] for each in result["runs"]) else "no"
    lines.append(f"| losses and final weights bit-equal to plain | | | {equal} |")
    return "\n".join([*lines, "", provenance(result)])


def weights_table(result: Result) -> str:
    """The demo of weights: plain under the limit, elbowroom under it, and both with a smaller model."""
    run = result["run"]
    trials = [run[name] for name in ("limited", "within", "small_plain", "small_within")]
    sizes = [run["training_bytes"]] * 2 + [run["small_training_bytes"]] * 2
    rows = [
        ("weights, gradients and states", [format_bytes(size) for size in sizes]),
        ("ends", ["out of memory" if trial["failed"] else "finished" for trial in trials]),
        ("peak RSS", [format_bytes(trial["peak_rss_bytes"]) for trial in trials]),
        ("step time", [_or_dash(trial["step_ns"], format_ns) for trial in trials]),
        ("swapped out in a step", [_or_dash(trial["swapped_out_bytes"], format_bytes) for trial in trials]),
        ("swapped back in a step", [_or_dash(trial["swapped_back_bytes"], format_bytes) for trial in trials]),
        ("stall in a step", [_or_dash(trial["stall_ns"], format_ns) for trial in trials]),
        ("first loss", [f"{trial['losses'][0]:.6f}" if trial["losses"] else "" for trial in trials]),
        ("last loss", [f"{trial['losses'][-1]:.6f}" if trial["losses"] else "" for trial in trials]),
    ]
    limit = f"{format_bytes(run['limit_bytes'])} ({run['limit_kind']})"
    heads = (
        f"plain PyTorch, limit {limit}",
        "elbowroom, the same limit",
        "smaller model, plain, no limit",
        "smaller model, elbowroom, the same limit",
    )
    lines = [f"| | {' | '.join(heads)} |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]
    lines.append(f"| losses and final weights bit-equal to plain | | | | {'yes' if run['bit_equal'] else 'no'} |")
    return "\n".join([*lines, "", provenance(result)])


def _or_dash(value: int | None, form: Callable[[int], str]) -> str:
    return "" if value is None else form(value)


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
    timed = f", n = {min(counts)} to {max(counts)} timed steps" if len(counts) > 1 else ""
    timed = f", n = {max(counts)} timed steps" if len(counts) == 1 else timed
    return (
        f"<sub>{result['date']}, {computer['cores']} cores{disk}; torch {versions['torch']}, "
        f"Python {versions['python']}{timed}; benchmarks/results/{result['file']}</sub>"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tables of README.md and docs/benchmarks.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the tables are out of date")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory with the result files")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md", help="the file with the demo's table")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the file with the cases' tables")
    arguments = parser.parse_args()
    results = newest_results(arguments.results)
    _write(arguments.docs, START, END, tables(results), check=arguments.check)
    if "demo_weights" in results:
        table = weights_table(results["demo_weights"])
        _write(arguments.docs, WEIGHTS_START, WEIGHTS_END, table, check=arguments.check)
    if "demo" in results:
        _write(arguments.readme, DEMO_START, DEMO_END, demo_table(results["demo"]), check=arguments.check)


def _write(path: Path, start: str, end: str, table: str, *, check: bool) -> None:
    text = path.read_text()
    wanted = replace_between(text, start, end, table)
    if check and wanted != text:
        sys.exit(f"{path} is out of date: run python -m benchmarks.table")
    if not check:
        path.write_text(wanted)


if __name__ == "__main__":
    main()
