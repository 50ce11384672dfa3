"""Hard limits on the rig: `python -m benchmarks.limits --rig FOLDER [--only NAME] [--table]`.

The capacity of the rig's device is the limit: past it an allocation fails, as on a card. Each workload trains under
`elbowroom run` at 12 capacities and more, from below the best peer's least to what plain training needs. Budgets are
`auto`, or the capacity less 20 MiB; the allocator is torch's own, or has expandable segments. Peers are searched
for their least capacity. What one op holds is looked up in a capture. A point that was run at the same commit of the
sources is not run again.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.limits import sweeps
from benchmarks.on_rig import environment_of, said
from benchmarks.results import ROOT, write_result
from elbowroom.version import installed_version

CASE = "limits"
STEPS = 7
"""Of each training within a budget: its plans have been changed by then."""
PEER_STEPS = 3
PEERS = ("plain", "save_on_cpu", "OffloadActivations of TRL", "checkpoint on blocks")
FIRST = (("plain", "expandable"), ("save_on_cpu", "expandable"))
"""Of which a sweep's limits follow."""
BELOW = 0.5
"""A sweep begins at this share of the best peer's least limit."""
LESS_BYTES = 20 << 20
"""What an explicit budget leaves of the capacity."""
KINDS = ("OutOfMemoryError", "Infeasible")
"""Of endings that are looked for in what a process says; any other is named as it is."""
PATIENCE_S = 400
MIB = 2**20
RIG = {"FAKECUDA_CC": "90", "FAKECUDA_COPIES": str(1 << 16)}
"""Large copies do nothing: numbers are meaningless there anyway."""
SETTING = "PYTORCH_CUDA_ALLOC_CONF"
ALLOCATORS: dict[str, dict[str, str]] = {
    "": {},
    "native": {SETTING: "expandable_segments:False"},
    "expandable": {SETTING: "expandable_segments:True"},
}
"""What the user says of the allocator; nothing in the first."""
WAYS = {
    "auto": ("auto", ""),
    "auto, native": ("auto", "native"),
    "auto, expandable": ("auto", "expandable"),
    "explicit": ("explicit", ""),
    "explicit, native": ("explicit", "native"),
    "explicit, expandable": ("explicit", "expandable"),
}
"""Budget and allocator of each way to run elbowroom."""
Result = dict[str, Any]


def command_of(name: str, way: str, capacity_bytes: int) -> list[str]:
    """What Python runs for a point."""
    budget = [] if WAYS[way][0] == "auto" else ["--budget", f"device={capacity_bytes - LESS_BYTES}"]
    return ["-m", "elbowroom", "run", *budget, "benchmarks/limits/script.py", name, str(STEPS)]


def variables_of(way: str, capacity_bytes: int) -> dict[str, str]:
    return {**RIG, "FAKECUDA_CAPACITY": str(capacity_bytes), **ALLOCATORS[WAYS[way][1]]}


def reproduction(name: str, way: str, capacity_bytes: int) -> str:
    """One line for a shell that runs a point again."""
    variables = {**variables_of(way, capacity_bytes), "FAKECUDA_BACKING": "0", "OMP_NUM_THREADS": "1"}
    words = [f"{key}={value}" for key, value in variables.items()]
    command = [f'"{word}"' if " " in word else word for word in command_of(name, way, capacity_bytes)]
    return " ".join([*words, "PYTHONPATH=$PWD/src:$PWD:$PACKAGES", "$RIG/fake_torch.sh", *command])


def point(rig: Path, packages: list[Path], name: str, way: str, capacity_bytes: int) -> Result:
    """Train once under a limit: how it ended, and what was held."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        words = command_of(name, way, capacity_bytes)
        words[3:3] = ["--json", str(answer)]
        started = time.monotonic()
        try:
            done = subprocess.run(
                [str(rig / "fake_torch.sh"), *words],
                env=environment_of(packages, variables_of(way, capacity_bytes)),
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE_S,
            )
            ended = _outcome(done, json.loads(answer.read_text()) if answer.exists() else {})
            if WAYS[way][0] == "explicit" and sweeps.beyond(ended, capacity_bytes - LESS_BYTES):
                ended["outcome"] = sweeps.OVER
        except subprocess.TimeoutExpired:
            ended = {"outcome": "hangs", "steps": 0}
        took_s = round(time.monotonic() - started, 1)
    return {"way": way, "limit_bytes": capacity_bytes, **ended, "took_s": took_s, "commit": _sources()}


def _outcome(done: subprocess.CompletedProcess[str], answer: Result) -> Result:
    """How a process ended, from what it wrote."""
    peaks = [json.loads(line[2:]) for line in done.stdout.splitlines() if line.startswith("@@")]
    error = answer.get("error") or {}
    found: Result = {"outcome": sweeps.TRAINED, "steps": len(peaks), "exit_code": done.returncode}
    if peaks:
        found["reserved"] = max(step["reserved"] for step in peaks)
    for key in ("budget_bytes", "planned_peak_bytes", "over_budget_bytes"):
        if answer.get(key):
            found[key] = answer[key]
    if done.returncode == 0 and len(peaks) == STEPS:
        return found
    said_last = (done.stderr.strip().splitlines() or [""])[-1]
    message = str(error.get("message") or said_last)
    kind = next((kind for kind in KINDS if kind in f"{error.get('type')} {message}"), "")
    found["outcome"] = kind or (sweeps.OVER if done.returncode == 3 else str(error.get("type") or "other"))
    if error.get("least_feasible_bytes"):
        found["least_named"] = error["least_feasible_bytes"]
    return {**found, "message": message[:300]}


def _sources() -> str:
    """The last commit that changed the sources, with "+" where they differ from it."""
    log, status = ["log", "-1", "--format=%h"], ["status", "--porcelain", "--untracked-files=no"]
    last, changed = (
        subprocess.run(["git", *words, "--", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for words in (log, status)
    )
    return last.strip() + ("+" if changed.strip() else "")


def peer(rig: Path, packages: list[Path], name: str, way: str, allocator: str) -> Result:
    """The least capacity that a peer gets by with."""
    variables = {**RIG, "FAKECUDA_CAPACITY": str(80 << 30), **ALLOCATORS[allocator]}
    spec = {"workload": name, "peer": way, "steps": PEER_STEPS}
    try:
        found = said(rig, "-m", "benchmarks.limits.bisected", spec=spec, packages=packages, variables=variables)
    except RuntimeError as problem:
        found = {"not_run": str(problem).strip().splitlines()[-1][:300]}
    return {"peer": way, "allocator": allocator, **found}


def one_op_bytes(rig: Path, packages: list[Path], name: str) -> int:
    """What one op of a workload holds at least: see floor.py."""
    return said(rig, "-m", "benchmarks.limits.floor", spec={"workload": name}, packages=packages, variables=RIG)


def peers_of(found: Result) -> dict[str, int]:
    """The least capacity of each peer, over both allocators."""
    least: dict[str, int] = {}
    for run in found["peers"]:
        if "least" in run:
            least[run["peer"]] = min(run["least"], least.get(run["peer"], run["least"]))
    return least


def run_peers(
    rig: Path, packages: list[Path], name: str, found: Result, runs: Iterable[tuple[str, str]]
) -> Iterator[Result]:
    """Search for what has not been found yet.

    Args:
        rig: its folder.
        packages: folders of packages.
        name: of a workload.
        found: what is known of it; the peers' results are added.
        runs: pairs of a peer and an allocator.
    """
    known = {(each["peer"], each["allocator"]) for each in found["peers"]}
    for way, allocator in runs:
        if (way, allocator) not in known:
            found["peers"].append(peer(rig, packages, name, way, allocator))
            yield found["peers"][-1]


def _is_first(run: Result) -> bool:
    return "least" in run and (run["peer"], run["allocator"]) in FIRST


def sweep(rig: Path, packages: list[Path], name: str, way: str, found: Result) -> Iterator[Result]:
    """Run a way's points that are missing at this commit, then those that tell of the least limit."""
    now = _sources()
    points = [each for each in found["points"] if each["way"] == way and each["commit"] == now]
    found["points"] = [each for each in found["points"] if each["way"] != way] + points
    # Without the least of plain training there is nothing to begin with.
    least = {run["peer"]: run["least"] for run in found["peers"] if _is_first(run)}
    if "plain" not in least:
        return
    wanted = sweeps.at_equal_ratios(BELOW * min(least.values()), least["plain"])
    while wanted or (following := sweeps.next_limit(points)):
        capacity_bytes = wanted.pop(0) if wanted else following  # pyright: ignore[reportPossiblyUnbound]
        if any(each["limit_bytes"] == capacity_bytes for each in points):
            if wanted:
                continue
            break
        points.append(point(rig, packages, name, way, capacity_bytes))
        found["points"].append(points[-1])
        yield points[-1]


def run(rig: Path, packages: list[Path], names: list[str], ways: list[str], out: Path) -> None:
    """Run all that is missing in a result file, way by way; write it after each point."""
    result: Result = json.loads(out.read_text()) if out.exists() else {"case": CASE, "workloads": {}}

    def keep() -> None:
        today = f"{datetime.date.today()}"
        write_result(out, {**result, "date": today, "elbowroom": installed_version(), "torch": "2.11.0 on the rig"})

    def show(name: str, each: Result) -> None:
        print(name, json.dumps(each), file=sys.stderr, flush=True)
        if "way" in each and sweeps.failed(each):
            print(f"    {reproduction(name, each['way'], each['limit_bytes'])}", file=sys.stderr, flush=True)
        keep()

    for way in ways:
        for name in names:
            found = result["workloads"].setdefault(name, {"peers": [], "points": []})
            for each in chain(run_peers(rig, packages, name, found, FIRST), sweep(rig, packages, name, way, found)):
                show(name, each)
    others = [(way, allocator) for allocator in ("expandable", "native") for way in PEERS]
    for name in names:
        found = result["workloads"][name]
        found["one_op_bytes"] = found.get("one_op_bytes") or one_op_bytes(rig, packages, name)
        for each in run_peers(rig, packages, name, found, others):
            show(name, each)
    keep()
