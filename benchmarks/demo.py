"""Runs `elbowroom demo` several times and keeps what it answers: `python -m benchmarks.demo [--runs 3] [--weights]`."""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, ROOT, facts, result_path, write_result


def run_demo(*words: str) -> dict[str, Any]:
    """One run's answer, for these options; raises RuntimeError where the demo did not go as it should."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "elbowroom", "demo", *words, "--json", "--out", folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the demo ended with exit code {done.returncode}:\n{done.stdout}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the demo several times and write one result file.")
    parser.add_argument("--runs", type=int, default=3, help="how many times (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the result file")
    parser.add_argument("--weights", action="store_true", help="the demo of weights, once")
    arguments = parser.parse_args()
    about = facts()
    if arguments.weights:
        path = result_path(arguments.out, "demo_weights")
        write_result(
            path, {"case": "demo_weights", "date": f"{datetime.date.today()}", **about, "run": run_demo("--weights")}
        )
        print(path)
        return
    runs = [run_demo() for _ in range(arguments.runs)]
    ratios = [run["step_ratio"] for run in runs]
    path = result_path(arguments.out, "demo")
    spread = {"n": len(runs), "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
    write_result(path, {"case": "demo", "date": f"{datetime.date.today()}", **about, **spread, "runs": runs})
    print(f"{path}: {spread}")


if __name__ == "__main__":
    main()
