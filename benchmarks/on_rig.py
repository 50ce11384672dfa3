"""Processes on the rig (tools/rig: the real CUDA build of PyTorch, without a GPU), and what is kept of them."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, ROOT, write_result

CAPACITY_BYTES = 40 << 30
"""Of its device."""


def environment_of(packages: Iterable[Path] = (), variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a process on the rig.

    Args:
        packages: further folders that are imported from.
        variables: of its environment, beside those that give it a device without backing, and convolutions no
            workspace.
    """
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT, *packages))),
        "FAKECUDA_CAPACITY": str(CAPACITY_BYTES),
        "FAKECUDA_BACKING": "0",
        "FAKECUDNN_WORKSPACE": "0",
        "OMP_NUM_THREADS": "1",
        **(variables or {}),
    }


def said(
    rig: Path,
    *arguments: str,
    spec: Any = None,
    packages: Iterable[Path] = (),
    variables: Mapping[str, str] | None = None,
) -> Any:
    """What a process of the rig's Python prints after "@@", which is JSON.

    Args:
        rig: its folder.
        arguments: of Python.
        spec: given to the process as JSON.
        packages: see `environment_of`.
        variables: see `environment_of`.

    Raises:
        RuntimeError: it ended without that; with what it wrote.
    """
    done = subprocess.run(
        [str(rig / "fake_torch.sh"), *arguments],
        input=json.dumps(spec),
        env=environment_of(packages, variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "@@" not in done.stdout:
        raise RuntimeError(f"{' '.join(arguments)} failed on the rig:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return json.loads(done.stdout.partition("@@")[2])


def add_options(options: argparse.ArgumentParser) -> None:
    """Those of a benchmark on the rig."""
    options.add_argument("--rig", type=Path, default=os.environ.get("ELBOWROOM_RIG"), help="folder of the rig")
    options.add_argument("--table", action="store_true", help="only write the page, from the newest result")


def checked_rig(options: argparse.ArgumentParser, given: argparse.Namespace) -> Path:
    """The folder of the rig; ends the programme where none is named."""
    if given.rig is None:
        options.error("--rig, or ELBOWROOM_RIG, names the folder of the rig")
    return given.rig


def mib(size_bytes: int) -> str:
    """Bytes in whole MiB, for a table."""
    return f"{size_bytes / 2**20:.0f}"


def made_of(result: Mapping[str, Any], about: str) -> str:
    """The line above a table: the rig, `about` it, and the commits."""
    commits = ", ".join(sorted({run["commit"] for runs in result["cases"].values() for run in runs}))
    return f"MiB; torch 2.11 on the rig as compute capability {about}; commit {commits}, {result['date']}."


def keep(case: str, rows: Mapping[str, Any]) -> None:
    """Write today's result file of a benchmark."""
    today = datetime.date.today()
    write_result(RESULTS / f"{case}_rig_{today:%Y%m%d}.json", {"case": case, "date": f"{today}", **rows})
