"""Where results are, what they are called, and the figures made from timed steps. No torch, no elbowroom."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
VERSION = 1

CHILD_ENVIRONMENT = {
    "THP_MEM_ALLOC_ENABLE": "1",  # page-aligned storages, as `elbowroom run` has them; for plain training too
    "KINETO_LOG_LEVEL": "5",  # the profiler keeps silent
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def run_child(mode: str, *, python: str = sys.executable, source: Path | None = None, **request: Any) -> dict[str, Any]:
    """The answer of one child process; raises RuntimeError with what the child wrote where it failed.

    Args:
        mode: what it does.
        python: what runs it.
        source: folder of the package, None for the one that this process would import.
        request: what the mode takes.
    """
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "answer.json"
        command = [python, "-m", "benchmarks.child", json.dumps({"mode": mode, **request}), str(answer)]
        environment = {**os.environ, **CHILD_ENVIRONMENT}
        if source is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{mode} {request} failed with exit code {done.returncode}:\n{done.stderr[-4000:]}")
        return json.loads(answer.read_text())


def facts() -> dict[str, Any]:
    """What every result file says about the computer and the versions."""
    measured = run_child("facts")
    kernel = re.match(r"[\d.]*\d", platform.release())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = {"elbowroom": project["version"], "commit": commit(), "kernel": kernel[0] if kernel else "unknown"}
    return {
        "versions": {**measured["versions"], **own},
        "computer": {
            "name": machine_name(),
            "cores": os.cpu_count(),
            "threads": measured["threads"],
            "ram_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "disk": measured["disk"],
        },
    }


def commit(root: Path = ROOT) -> str:
    """The commit of a checkout that was measured, with "+" where code differs from it; "" outside a git checkout."""
    written = (":!benchmarks/results", ":!docs", ":!README.md")  # by the benchmarks themselves
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *written, root=root)
    return _git("describe", "--always", "--exclude=*", root=root) + ("+" if changed else "")


def _git(*arguments: str, root: Path) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def machine_name() -> str:
    """A short name that says what kind of computer it was, not which one."""
    return f"cpu{os.cpu_count()}"


def result_path(directory: Path, case: str) -> Path:
    """Today's file of one case."""
    return directory / f"{case}_{machine_name()}_{datetime.date.today():%Y%m%d}.json"


def write_result(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"benchmark_version": VERSION, **result}, indent=1)
    path.write_text(text + "\n")


def replace_between(text: str, start: str, end: str, new: str) -> str:
    """A page's text with what is between two marker lines replaced."""
    before, found, rest = text.partition(start)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"given no pair of markers; put {start} and, below it, {end} where the text belongs")
    return f"{before}{start}\n\n{new}\n\n{end}{after}"


def write_between(page: Path, start: str, end: str, new: str) -> None:
    """As `replace_between`, for a file."""
    page.write_text(replace_between(page.read_text("utf-8"), start, end, new), "utf-8")


def newest_results(directory: Path) -> dict[str, dict[str, Any]]:
    """The newest result of each case; the date is the last part of a file's name."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.glob("*.json"), key=lambda path: path.stem.rpartition("_")[2]):
        result = json.loads(path.read_text())
        if result.get("benchmark_version") != VERSION:
            raise ValueError(f"{path}: benchmark_version {result.get('benchmark_version')!r}, this reads {VERSION}")
        newest[result["case"]] = {**result, "file": path.name}
    return newest


def ratio(plain_step_ns: list[int], step_ns: list[int]) -> dict[str, Any]:
    """Timed steps against plain ones of the same run.

    The spread is that of single steps, each over the median of the plain ones.
    """
    plain = statistics.median(plain_step_ns)
    return {
        "n": len(step_ns),
        "plain_n": len(plain_step_ns),
        "median_step_ns": round(statistics.median(step_ns)),
        "plain_median_step_ns": round(plain),
        "ratio": round(statistics.median(step_ns) / plain, 4),
        "ratio_min": round(min(step_ns) / plain, 4),
        "ratio_max": round(max(step_ns) / plain, 4),
        "plain_spread": [round(min(plain_step_ns) / plain, 4), round(max(plain_step_ns) / plain, 4)],
        "step_ns": step_ns,
        "plain_step_ns": plain_step_ns,
    }
