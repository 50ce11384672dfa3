"""python -m benchmarks.ranks: the estimate of each case beside the rig; writes a result file and docs/ranks.md.

ELBOWROOM_RIG=~/rig python -m benchmarks.ranks            # about ten minutes
python -m benchmarks.ranks --table                        # only the page
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import os
from typing import Any

import torch

from benchmarks import on_rig as rigs
from benchmarks.ranks.cases import CASES, GPU, Case, estimated, on_rig
from benchmarks.results import RESULTS, ROOT, commit, newest_results, write_between, write_result
from elbowroom.answers.estimate import Estimate
from elbowroom.version import installed_version

PAGE = ROOT / "docs" / "ranks.md"
START, END = "<!-- table: ranks -->", "<!-- end of table: ranks -->"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rigs.add_options(options)
    options.add_argument("--cases", default="", help="numbers of the cases, as in 0-15; the others' rows stay")
    given = options.parse_args()
    if not given.table:
        rig, at = rigs.checked_rig(options, given), commit()
        first, _, last = given.cases.partition("-")
        for case in CASES[int(first or 0) : int(last or len(CASES)) + 1]:
            _keep(_row(case, estimated(case, rig), on_rig(rig, case), at))
    write_between(PAGE, START, END, table(newest_results(RESULTS)["ranks"]))


def _row(case: Case, found: Estimate, there: tuple[int, int], at: str) -> dict[str, Any]:
    ours, names = (
        (found.peak_allocated_bytes, found.peak_reserved_bytes),
        ("peak_allocated_bytes", "peak_reserved_bytes"),
    )
    both = {side: dict(zip(names, of, strict=True)) for side, of in (("estimate", ours), ("rig", there))}
    print(case.title, *both.items(), flush=True)
    return {**case._asdict(), **both, "commit": at}


def _keep(row: dict[str, Any]) -> None:
    """Write a row into today's result, with the newest ones of the other cases."""
    today = datetime.date.today()
    path = RESULTS / f"ranks_rig_{today:%Y%m%d}.json"
    lock = os.open(RESULTS, os.O_RDONLY)  # several processes may share the cases
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = newest_results(RESULTS)["ranks"]["rows"]
        rows = {each["title"]: each for each in (*before, row)}
        versions = {"elbowroom": installed_version(), "torch": torch.__version__, "rig": "2.11.0+cu130"}
        kept = [rows[case.title] for case in CASES if case.title in rows]
        write_result(path, {"case": "ranks", "date": f"{today}", "gpu": GPU, "versions": versions, "rows": kept})
    finally:
        os.close(lock)


def table(result: dict[str, Any]) -> str:
    """The page's table: both sides in MiB, and by how much the reserved peaks differ."""
    lines = [
        f"MiB; torch {result['versions']['torch']} for the estimate, torch {result['versions']['rig']} on the rig; "
        f"{result['gpu']}; commit {', '.join(sorted({row['commit'] for row in result['rows']}))}, {result['date']}.",
        "",
        "| configuration | rank | allocated, estimate | allocated, rig | reserved, estimate | reserved, rig | apart |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        ours, theirs = row["estimate"], row["rig"]
        apart = ours["peak_reserved_bytes"] / theirs["peak_reserved_bytes"] - 1
        figures = [each[f"peak_{what}_bytes"] for what in ("allocated", "reserved") for each in (ours, theirs)]
        cells = [row["title"], f"{row['rank']} of {row['ranks']:,}", *(f"{each / 2**20:,.1f}" for each in figures)]
        lines.append(f"| {' | '.join(cells)} | {apart:+.2%} |" if apart else f"| {' | '.join(cells)} | 0 |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
