"""Writes the tables of docs/benchmarks.md that were measured on a GPU: `python -m benchmarks.gpu_table [--check]`.

They are made from the newest benchmarks/results/gpu/*.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.results import RESULTS, ROOT
from benchmarks.table import replace_between

DOCS = ROOT / "docs" / "benchmarks.md"
START = "<!-- gpu: made by python -m benchmarks.gpu_table, do not edit -->"
END = "<!-- gpu end -->"
Report = dict[str, Any]
MIB = 2**20


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--check", action="store_true", help="write nothing; exit 1 where the tables are out of date")
    path = max((RESULTS / "gpu").glob("*.json"), key=lambda each: each.stem[-8:])
    text = DOCS.read_text("utf-8")
    wanted = replace_between(text, START, END, "\n".join(tables(json.loads(path.read_text()), path.name)))
    if not options.parse_args().check:
        DOCS.write_text(wanted, "utf-8")
    elif wanted != text:
        sys.exit(f"{DOCS} is out of date: run python -m benchmarks.gpu_table")


def tables(report: Report, name: str) -> Iterator[str]:
    """Yield the lines of the tables of one report."""
    versions = report["machine"]["versions"]
    yield from _steps(report)
    yield ""
    yield from _memory(report)
    yield ""
    yield f"<sub>{report['machine']['gpu']}, torch {versions['torch']}, commit {versions['commit']}, {report['date']};"
    yield f"benchmarks/results/gpu/{name}</sub>"


def _steps(report: Report) -> Iterator[str]:
    yield "| training | way | reserved | of plain | step | of plain | moved out |"
    yield "|---|---|---|---|---|---|---|"
    for case, ways in report["steps"].items():
        plain = ways["plain"]
        for way, found in ways.items():
            if "step_ns" not in found:
                yield f"| {case} | {way} | | | not measured | | |"
                continue
            moved = f"{found['swapped_out_bytes'] / 2**30:.1f} GiB" if "swapped_out_bytes" in found else ""
            yield (
                f"| {case} | {way} | {found['reserved_bytes'] / MIB:.0f} MiB"
                f" | {found['reserved_bytes'] / plain['reserved_bytes']:.0%} | {found['step_ns'] / 1e6:.0f} ms"
                f" | {found['step_ns'] / plain['step_ns']:.2f} | {moved} |"
            )


def _memory(report: Report) -> Iterator[str]:
    yield "| training | budget | reserved | simulated of it | allocated, simulated of it | plain, estimated of it |"
    yield "|---|---|---|---|---|---|"
    for case, found in report["memory"].items():
        measured, simulated = found["allocator"], found["simulated"]
        before = report.get("beforehand", {}).get("memory", {}).get(case)
        told = f"{before['reserved_bytes'] / found['plain_reserved_bytes']:.3f}" if before else ""
        yield (
            f"| {case} | {found['budget_bytes'] / MIB:.0f} MiB | {measured['reserved'] / MIB:.0f} MiB"
            f" | {simulated['reserved'] / measured['reserved']:.3f}"
            f" | {simulated['allocated'] / measured['allocated']:.3f} | {told} |"
        )
    off = [abs(f["simulated"]["reserved"] / f["allocator"]["reserved"] - 1) for f in report["memory"].values()]
    over = sum(f["allocator"]["reserved"] > f["budget_bytes"] for f in report["memory"].values())
    yield ""
    yield (
        f"{len(off)} trainings within 75 % of what plain training reserves: {over} held more than the budget; the "
        f"median difference of the simulated reserved bytes is {median(off):.2%}, the largest {max(off):.1%}."
    )


if __name__ == "__main__":
    main()
