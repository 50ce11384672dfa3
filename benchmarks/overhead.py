"""What `within` costs where the job fits, and the host for each storage: `python -m benchmarks.overhead`.

Many short steps, plain and within in turn in one process, under a budget that is never reached. The first steps within,
which observe, are reported apart: they are paid once per shape.

Then steps that save many small storages (benchmarks/saves.py), on the CPU, and, where ELBOWROOM_RIG names the folder of
the rig (tools/rig), with PyTorch's CUDA build on a stand-in for the driver: there kernels do nothing, and what is timed
is what the host does. `--before CHECKOUT` measures the package of an earlier commit beside this one, in turn.
"""

from __future__ import annotations

import argparse
import datetime
import os
from pathlib import Path
from typing import Any

from benchmarks.cases import FITTING
from benchmarks.results import (
    RESULTS,
    ROOT,
    commit,
    facts,
    newest_results,
    ratio,
    result_path,
    run_child,
    write_between,
    write_result,
)

BUDGET_BYTES = 64 << 30
SEED = 0
ROUNDS = 10
SAVES, SAVING_STEPS = 200, 160
"""Of a step that saves many storages: a multiple of 16 of them, as one of 16 is checked where everything is kept."""
PAIRS = 3
"""Runs of each of two checkouts."""
START = "<!-- saves: made by python -m benchmarks.overhead --table, do not edit -->"
END = "<!-- saves end -->"
STEPS_PER_ROUND = {"small_mlp": 200, "small_cnn": 25}


def measure_case(case: str) -> dict[str, Any]:
    """Timed steps of one case."""
    steps = STEPS_PER_ROUND[case]
    settings: dict[str, Any] = {"seed": SEED, "rounds": ROUNDS, "steps": steps, "budget_bytes": BUDGET_BYTES}
    answer = run_child("time_fitting", case=case, **settings)
    observed = ratio(answer["plain_step_ns"], answer["observed_step_ns"])
    return {
        "case": case,
        "description": answer["description"],
        "settings": settings,
        "modes": answer["modes"],
        **ratio(answer["plain_step_ns"], answer["step_ns"]),
        "observed": {key: observed[key] for key in ("n", "median_step_ns", "ratio", "ratio_min", "ratio_max")},
    }


def measure_saves(source: Path | None = None) -> list[dict[str, Any]]:
    """Steps that save many storages, on each device there is, with the package in a folder."""
    settings: dict[str, Any] = {"saves": SAVES, "steps": SAVING_STEPS, "source": source}
    rows = [{"driver": "none", **run_child("time_saves", device="cpu", **settings)}]
    rig = os.environ.get("ELBOWROOM_RIG")
    if rig:
        os.environ |= {"FAKECUDA_CAPACITY": str(16 << 30), "FAKECUDA_BACKING": "0"}
        row = run_child("time_saves", python=str(Path(rig) / "fake_torch.sh"), device="cuda", **settings)
        rows.append({"driver": "stand-in, kernels do nothing", **row})
    return rows


def write_saves(directory: Path, before: Path | None) -> None:
    """Measure and write what each storage costs, and what it did in another checkout."""
    now: list[list[dict[str, Any]]] = []
    then: list[list[dict[str, Any]]] = []
    for _ in range(PAIRS if before is not None else 1):
        now.append(measure_saves())
        if before is not None:
            then.append(measure_saves(before / "src"))
    found = {"saves": _middle(now), "pairs": len(then)}
    if before is not None:
        found["before"] = {"commit": commit(before), "saves": _middle(then)}
    path = result_path(directory, "saves")
    write_result(path, {"case": "saves", "date": f"{datetime.date.today()}", **facts(), **found})
    for row in found["saves"]:
        print(
            f"{row['device']}: {row['us_per_save']} us for each save that stays, {row['us_per_checked_save']} us where "
            f"it is checked, {row['us_per_moved_storage']} us for each moved storage"
        )
    print(f"wrote {path}")


def _middle(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """For each device the run whose moved storages cost the median."""
    by_device = zip(*runs, strict=True)
    return [sorted(rows, key=lambda row: row["us_per_moved_storage"])[len(rows) // 2] for rows in by_device]


def table(result: dict[str, Any]) -> str:
    """What each storage costs, for docs/benchmarks.md."""
    lines = [
        "| device | commit | a save that stays | where it is checked | a storage that moves | less those that stay "
        "beside it | torch's calls for it | plain step of so many saves |",
        "|---|---|---|---|---|---|---|---|",
    ]
    before, now = result.get("before", {"saves": []}), result["versions"]["commit"]
    rows = [(row, before["commit"]) for row in before["saves"]] + [(row, now) for row in result["saves"]]
    for row, measured in rows:
        device = f"{row['device']}, torch {row['torch']}" + (f" ({row['driver']})" if row["driver"] != "none" else "")
        plain = f"{row['kept']['plain_step_ns'] / 1e6:.1f} ms of {row['saves']}"
        moved_us, checked_us, swaps = row["us_per_moved_storage"], row["us_per_checked_save"], row["moved"]["swaps"]
        alone_us = round(moved_us - checked_us * (row["saves"] - swaps) / swaps, 1)
        least = f"{row['calls']['floor_us']} us" if "copy out" in row["calls"]["count"] else ""
        times = (row["us_per_save"], checked_us, moved_us, alone_us)
        lines.append(f"| {device} | {measured} | {' | '.join(f'{us} us' for us in times)} | {least} | {plain} |")
    source = f"{result['date']}, {result['computer']['cores']} cores, the middle one of {max(1, result['pairs'])} runs"
    return "\n".join([*lines, "", f"<sub>{source}; benchmarks/results/{result['file']}</sub>"])


def write_cases(directory: Path) -> None:
    """Measure and write what jobs that fit pay."""
    cases, path = [measure_case(case) for case in FITTING], result_path(directory, "overhead")
    write_result(path, {"case": "overhead", "date": f"{datetime.date.today()}", **facts(), "cases": cases})
    for case in cases:
        print(f"{case['case']}: step time within / plain {case['ratio']}, n = {case['n']}")
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what elbowroom costs where the job fits, and for each save.")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for the result files")
    parser.add_argument("--saves", action="store_true", help="measure the steps that save many storages alone")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit, to measure its saves in turn")
    parser.add_argument("--table", action="store_true", help="only write docs/benchmarks.md, from the newest result")
    arguments = parser.parse_args()
    if arguments.table:
        write_between(ROOT / "docs" / "benchmarks.md", START, END, table(newest_results(arguments.out)["saves"]))
        return
    write_saves(arguments.out, arguments.before)
    if not arguments.saves:
        write_cases(arguments.out)


if __name__ == "__main__":
    main()
