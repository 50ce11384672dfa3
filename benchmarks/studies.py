"""How long what-if studies take: `python -m benchmarks.studies [--table]`.

Each study is a fresh process with an empty cache. Its wall time, the processor time of it and its captures, and the
load of the computer before and after it are taken from outside. Needs monai, and some minutes on two cores.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.results import RESULTS, ROOT, commit, newest_results, result_path, write_between, write_result

CASE = "studies"
PAGE = ROOT / "docs" / "study.md"
SCRIPT = "examples/monai_segmentation.py"
STUDIES = {
    "gpu": (SCRIPT,),
    "budget": (SCRIPT, "--gpu", "rtx3060", "--more", "12GiB", "--", "--side", "160"),
    "batch": (SCRIPT, "--gpu", "rtx3060", "--vary", "batch_size=1..64"),
    "resolution": (SCRIPT, "--gpu", "rtx3060", "--vary", "side=64..320", "--multiple-of", "64"),
}
"""Words of each study. The script makes its own volumes: with larger ones most of the time is spent on these."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only the page")
    if not parser.parse_args().table:
        versions = {name: importlib.metadata.version(name) for name in ("torch", "monai")}
        result = {
            "case": CASE,
            "versions": {**versions, "python": platform.python_version(), "commit": commit()},
            "computer": {"cores": len(os.sched_getaffinity(0))},
            "studies": {kind: measured(kind) for kind in STUDIES},
        }
        write_result(result_path(RESULTS, CASE), result)
    write_between(PAGE, "<!-- times -->", "<!-- end of times -->", table(newest_results(RESULTS)[CASE]))


def measured(kind: str) -> dict[str, Any]:
    """Run one study with an empty cache; return its times in seconds, and the load before and after it."""
    command = [sys.executable, "-m", "elbowroom", "study", kind, *STUDIES[kind]]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        before, began, load = _cpu_s(), time.perf_counter(), os.getloadavg()[0]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"study {kind} failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return {
        "words": STUDIES[kind],
        "wall_s": round(time.perf_counter() - began, 1),
        "cpu_s": round(_cpu_s() - before, 1),
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(result: dict[str, Any]) -> str:
    """The times as Markdown."""
    lines = ["| study | wall time | processor time | load before and after |", f"|{'---|' * 4}"]
    for kind, row in result["studies"].items():
        loads = f"{row['load_before']:.1f}, {row['load_after']:.1f}"
        words = " ".join((f"study {kind}", *row["words"]))
        lines.append(f"| `{words}` | {row['wall_s']:.0f} s | {row['cpu_s']:.0f} s | {loads} |")
    versions = ", ".join(f"{name} {result['versions'][name]}" for name in ("torch", "monai"))
    source = f"<sub>{result['computer']['cores']} cores; {versions}; benchmarks/results/{result['file']}</sub>"
    return "\n".join([*lines, "", source])


if __name__ == "__main__":
    main()
