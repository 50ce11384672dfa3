"""python -m benchmarks.ranks: the estimate of each case beside the rig; writes a result file and docs/ranks.md.

ELBOWROOM_RIG=~/rig python -m benchmarks.ranks            # about ten minutes
python -m benchmarks.ranks --table                        # only the page
"""

from __future__ import annotations

import argparse
import datetime
from typing import Any

import torch

from benchmarks import on_rig as rigs
from benchmarks.ranks.cases import CASES, GPU, Case, estimated, on_rig
from benchmarks.results import RESULTS, ROOT, commit, newest_results, write_between, write_result
from elbowroom.version import installed_version

PAGE = ROOT / "docs" / "ranks.md"
START, END = "<!-- table: ranks -->", "<!-- end of table: ranks -->"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rigs.add_options(options)
    given = options.parse_args()
    if not given.table:
        rig, at = rigs.checked_rig(options, given), commit()
        rows = [_row(case, estimated(case), on_rig(rig, case)) for case in CASES]
        _keep(rows, at)
    write_between(PAGE, START, END, table(newest_results(RESULTS)["ranks"]))


def _row(case: Case, found: Any, there: tuple[int, int]) -> dict[str, Any]:
    allocated, reserved = there
    row = {
        **case._asdict(),
        "estimate": {
            "peak_allocated_bytes": found.peak_allocated_bytes,
            "peak_reserved_bytes": found.peak_reserved_bytes,
        },
        "rig": {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved},
    }
    print(case.title, row["estimate"], row["rig"], flush=True)
    return row


def _keep(rows: list[dict[str, Any]], at: str) -> None:
    today = datetime.date.today()
    versions = {"elbowroom": installed_version(), "torch": torch.__version__, "rig": "2.11.0+cu130", "commit": at}
    result = {"case": "ranks", "date": f"{today}", "gpu": GPU, "versions": versions, "rows": rows}
    write_result(RESULTS / f"ranks_rig_{today:%Y%m%d}.json", result)


def table(result: dict[str, Any]) -> str:
    """The page's table: both sides in MiB, and by how much the reserved peaks differ."""
    lines = [
        f"MiB; torch {result['versions']['torch']} for the estimate, torch {result['versions']['rig']} on the rig; "
        f"{result['gpu']}; commit {result['versions']['commit']}, {result['date']}.",
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
