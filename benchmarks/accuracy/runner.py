"""Runs cases in child processes and keeps each answer as soon as it is there."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.context
import os
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.accuracy.child import serve

Record = dict[str, Any]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
}


def child(request: Record, limit_s: int) -> Record:
    """The answer of one child process; {"error": ...} where it failed or took longer than the limit.

    Children are forked from a server that has imported libraries and done nothing else.
    """
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "answer.json"
        process = _server().Process(target=serve, args=(request, str(answer)))
        process.start()
        process.join(limit_s)
        if process.is_alive():
            process.kill()
            return {"error": f"no answer within {limit_s} s"}
        if not answer.exists():
            log = Path(f"{answer}.log")
            last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1] if log.exists() else ""
            return {"error": f"exit code {process.exitcode}: {last[:300]}"}
        return json.loads(answer.read_text())


@cache
def _server() -> multiprocessing.context.ForkServerContext:
    os.environ.update(ENVIRONMENT)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.accuracy.preload"])
    return context


def read_records(path: Path) -> dict[str, Record]:
    """The last record of each case; a line cut short by an interruption is left out."""
    found: dict[str, Record] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[record["id"]] = record
    return found


def run_all(path: Path, asked: Iterable[tuple[str, Callable[[], Record]]], jobs: int) -> None:
    """Put the record of each case into a file of JSON lines; cases that have one without an error are left out.

    Args:
        path: the file.
        asked: id of a case, and what makes its record.
        jobs: how many at the same time.
    """
    known = {name for name, record in read_records(path).items() if "error" not in record}
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = threading.Lock()

    def one(make: Callable[[], Record]) -> None:
        record = make()
        with lock, path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(_line(record), flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(one, make) for name, make in asked if name not in known]
        for each in waiting:
            each.result()


def _line(record: Record) -> str:
    if "error" in record:
        return f"{record['id']}: {record['error']}"
    parts = [
        f"{level} {record['simulated'][level] / measured - 1:+.3%}"
        for level, measured in record["measured"].items()
        if level in record["simulated"]
    ]
    equal = {True: "equal", False: "differs", None: ""}[record.get("equal")]
    return f"{record['id']}: {', '.join(parts)} {equal} {record.get('seconds', 0)} s"
