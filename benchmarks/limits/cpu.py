"""Training on the CPU under limits that kill: `python -m benchmarks.limits.cpu [NAMES] [--ways auto,...]`.

Each training runs in a memory cgroup of its own whose limit is hard, swap included: from 45 % to all of what plain
training takes in such a group. `auto` and an explicit budget are `elbowroom run`; plain and `checkpoint` (on blocks)
are swept from above until two limits in a row fail. A point has how the process ended, and whether all its losses and
weights are those of plain training. Each point is kept as it is measured. `--table` writes docs/benchmarks.md anew.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.limits import sweeps
from benchmarks.results import (
    RESULTS,
    ROOT,
    commit,
    machine_name,
    newest_results,
    result_path,
    write_between,
    write_result,
)
from elbowroom.demo.limits import GroupLimit, available_kind, hard_limit
from elbowroom.hardware.ram import capacity_bytes

CASE = "limits_cpu"
WORKLOADS = {
    "resnet300": "a residual net of 300 convolutions, storages of 512 KiB",
    "lstm": "8 LSTM layers",
    "unet3d": "3D U-Net",
    "swin_unetr": "MONAI's SwinUNETR, 64 x 64 x 64 voxels",
    "gpt2": "GPT-2 small's 12 layers",
}
WAYS = ("auto", "explicit", "plain", "checkpoint")
LOWEST = 0.45
STEPS = 4
BASE_BYTES = 350 << 20
"""What a process takes besides storages, about; an explicit budget is half of what plain training takes beyond."""
IN_A_ROW = 2
PAGE = ROOT / "docs" / "benchmarks.md"
START = "<!-- limits cpu: made by python -m benchmarks.limits.cpu --table, do not edit -->"
END = "<!-- limits cpu end -->"
OURS = "elbowroom: "
MOST_HELD = {"memory cgroup v1": "memory.max_usage_in_bytes", "memory cgroup v2": "memory.peak"}
"""The file of a group that has the most it held."""
MIB = 2**20
Result = dict[str, Any]
Point = dict[str, Any]


def in_group(words: list[str], limit_bytes: int) -> Point:
    """Run a training in a memory cgroup to its end."""
    kind = available_kind()
    with hard_limit(limit_bytes, kind) as limit:
        if not isinstance(limit, GroupLimit):
            raise SystemExit("this process may make no memory cgroup with a limit; run this as root")
        paths = [str(ROOT), str(ROOT / "src")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        start_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                limit.wrap([sys.executable, *words]),
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        return {
            "exit_code": done.returncode,
            "seconds": round(time.monotonic() - start_s, 1),
            "held_bytes": int((limit.folder / MOST_HELD[kind]).read_text()),
            "lines": [line for line in done.stdout.splitlines() if line.startswith(("loss", "weights"))],
            "said": [_without_paths(line, limit) for line in done.stderr.splitlines() if OURS in line][:2],
            "broke": "Traceback" in done.stderr,
        }


def _without_paths(line: str, limit: GroupLimit) -> str:
    return line.replace(limit.folder.name, "job").replace(f"{ROOT}{os.sep}", "")


def words_of(name: str, way: str, budget_bytes: int) -> list[str]:
    script = ["-m", "benchmarks.limits.cpu_script", name, str(STEPS)]
    if way in ("plain", "checkpoint"):
        return [*script, *(["checkpoint"] if way == "checkpoint" else [])]
    return ["-m", "elbowroom", "run", "--budget", "auto" if way == "auto" else str(budget_bytes), *script]


def outcome_of(found: Point, lines: list[str]) -> str:
    """How a training ended, in one word."""
    if found["exit_code"] == 0:
        return sweeps.TRAINED if found["lines"] == lines else "other numbers"
    if found["exit_code"] in (-9, 137):
        return "killed"
    refused = found["exit_code"] == 1 and found["said"] and not found["broke"]
    return "refused" if refused else "failed"


def swept(name: str, way: str, known: Result) -> Iterator[Point]:
    """Yield the points of one way of training."""
    budget_bytes = max(known["plain_bytes"] - BASE_BYTES, 0) // 2
    descends = way in ("plain", "checkpoint")
    failed = 0
    limits = sweeps.at_equal_ratios(LOWEST * known["plain_bytes"], known["plain_bytes"])
    for limit_bytes in sorted(limits, reverse=descends):
        found = in_group(words_of(name, way, budget_bytes), limit_bytes)
        outcome = outcome_of(found, known["lines"])
        steps = sum(line.startswith("loss") for line in found["lines"])
        kept = {key: found[key] for key in ("exit_code", "seconds", "held_bytes", "said")}
        yield {"limit_bytes": limit_bytes, "outcome": outcome, "steps": steps, "commit": commit(), **kept}
        failed = failed + 1 if outcome != sweeps.TRAINED else 0
        if descends and failed == IN_A_ROW:
            return


def table(result: Result) -> str:
    """The section of the page."""
    found = result["workloads"]
    ours = [point for each in found.values() for way in WAYS[:2] for point in each["ways"].get(way, ())]
    counts = {word: sum(point["outcome"] == word for point in ours) for word in ("trained", "refused")}
    above = sum(len(sweeps.failures_above(each["ways"].get(way, []))) for each in found.values() for way in WAYS[:2])
    late = sum(point["outcome"] == "refused" and point["steps"] > 0 for point in ours)
    other = len(ours) - sum(counts.values())
    sources = result.get("sources", {})
    commits = ", ".join(
        f"{each} ({sources[each]})" if each in sources else each for each in sorted({point["commit"] for point in ours})
    )
    text = (
        f"{len(ours)} trainings of {STEPS} steps by elbowroom under limits that kill: {counts['trained']} trained with "
        f"the same losses and weights as plain training, {counts['refused']} were refused ({late} of these after their "
        f"first step), {other} ended otherwise. {above} failed above the least limit that was met. MiB; torch "
        f"{result['torch']}, one thread; commit {commits}, {result['date']}."
    )
    ways = [way for way in WAYS if any(way in each["ways"] for each in found.values())]
    head = ["workload", "plain takes", *(f"least limit, {way}" for way in ways)]
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, each in found.items():
        cells = [_cell(each["ways"].get(way)) for way in ways]
        rows.append(f"| {WORKLOADS[name]} | {each['plain_bytes'] / MIB:.0f} | {' | '.join(cells)} |")
    return "\n".join([text, "", *rows, "", *_bad_ends(found)])


def _bad_ends(found: dict[str, Result]) -> Iterator[str]:
    """Yield a line for each training by elbowroom that neither trained nor was refused, or failed above the least."""
    for name, each in found.items():
        for way in WAYS[:2]:
            points = each["ways"].get(way, [])
            above = sweeps.failures_above(points)
            for point in points:
                if point in above or point["outcome"] not in ("trained", "refused"):
                    limit, end = f"{point['limit_bytes'] / MIB:.0f} MiB", f"{point['outcome']} after {point['steps']}"
                    yield f"- {WORKLOADS[name]}, {way}, {limit}: {end} steps ({point['commit']})"


def _cell(points: list[Point] | None) -> str:
    if not points:
        return "not run"
    least = sweeps.least_of(points)
    if least is None:
        return f"above {max(point['limit_bytes'] for point in points) / MIB:.0f}"
    lowest = min(point["limit_bytes"] for point in points)
    tried = f", of {len(points)}" if len(points) < sweeps.POINTS else ""
    return f"{least / MIB:.0f}{' or less' if least == lowest else ''}{tried}"


def keep(result: Result, directory: Path) -> None:
    today = f"{datetime.date.today()}"
    newest = {**result, "case": CASE, "date": today, "computer": machine_name(), "python": platform.python_version()}
    write_result(result_path(directory, CASE), newest)


def measure(names: list[str], ways: list[str], directory: Path) -> None:
    """Run what is asked for, and keep each point."""
    import torch

    result = newest_results(directory).get(CASE, {"workloads": {}})
    result["torch"] = torch.__version__
    for name in names:
        plain = in_group(words_of(name, "plain", 0), capacity_bytes())
        known = {"plain_bytes": plain["held_bytes"], "lines": plain["lines"], "ways": {}}
        if result["workloads"].get(name, known)["lines"] != known["lines"]:
            print(f"{name}: this processor rounds as another one did not; its points are measured anew")
            del result["workloads"][name]
        result["workloads"].setdefault(name, known)
    for way in ways:
        for name in names:
            points = result["workloads"][name]["ways"][way] = []
            for point in swept(name, way, result["workloads"][name]):
                points.append(point)
                print(name, way, json.dumps(point), flush=True)
                keep(result, directory)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", help=f"of {', '.join(WORKLOADS)}; all by default")
    options.add_argument("--ways", default=",".join(WAYS), help="ways of training (default: %(default)s)")
    options.add_argument("--out", type=Path, default=RESULTS, help="directory of the result file")
    options.add_argument("--table", action="store_true", help="only write the table anew")
    given = options.parse_args()
    if not given.table:
        measure(given.names or list(WORKLOADS), given.ways.split(","), given.out)
    write_between(PAGE, START, END, table(newest_results(given.out)[CASE]))


if __name__ == "__main__":
    main()
