"""Compare the virtual device with the rig's corpus: are the alloc and free events of steps 2 and 3 the same?

python tests/fakecuda/compare.py ID...          the first difference of each case that has a full history
python tests/fakecuda/compare.py --all [WORD]   one line a case whose id or family has WORD; --json FILE keeps them
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[3] / "shared" / "data" / "rig"
Line = tuple[str, int, int]


def normalised(events: list[Line]) -> list[Line]:
    """Events with storages numbered by first appearance."""
    first: dict[int, int] = {}
    return [(what, first.setdefault(number, len(first)), size) for what, number, size in events]


def digest(events: list[Line]) -> str:
    return hashlib.sha256("".join(f"{a} {i} {s}\n" for a, i, s in events).encode()).hexdigest()


def history_file(case: str) -> Path:
    """A case's full history: of the corpus, or of the rig's case.py in the folder that ELBOWROOM_HISTORIES names."""
    shipped = DATA / "hist" / f"{case}.jsonl.gz"
    return shipped if shipped.exists() else Path(os.environ.get("ELBOWROOM_HISTORIES", ".")) / f"{case}.jsonl.gz"


def history(case: str) -> list[Line]:
    """Events of steps 2 and later of a case with a full history."""
    found: list[Line] = []
    step = -1
    with gzip.open(history_file(case), "rt") as lines:
        for line in lines:
            event = json.loads(line)
            if isinstance(event, dict):
                step = int(event["mark"].partition(".")[0])
            elif step >= 2 and event[0] in "af":
                found.append((event[0], event[1], event[2]))
    return normalised(found)


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Train a case on the virtual device: its events, each with the op it belongs to."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    from jobs import Job

    from elbowroom.capture.virtual import CudnnModel, VirtualDevice
    from elbowroom.capture.virtual.settings import no_workspace
    from elbowroom.machine import Machine, Tier

    torch.set_num_threads(1)
    vision = torch.library.Library("torchvision", "DEF")  # its compiled part is not there beside a CPU build of torch
    vision.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    vision.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    env = spec["env"]
    machine = Machine(
        name="rig",
        tiers=(Tier(name="device", capacity_bytes=int(env.get("FAKECUDA_CAPACITY", 80 << 30))),),
        links=(),
        allocator="",
        compute_capability=int(env.get("FAKECUDA_CC", 90)),
        multiprocessors=int(env.get("FAKECUDA_SMS", 132)),
    )
    began = time.time()
    with VirtualDevice(machine, None, cudnn=CudnnModel(workspace=no_workspace), cublas_handles=1) as device:
        job = Job(spec)
        marks: list[int] = []
        for _ in range(spec.get("steps", 3)):
            marks.append(len(device.ledger.events))
            job.step()
        marks.append(len(device.ledger.events))
    ledger = device.ledger
    lines = [("a" if size > 0 else "f", number, abs(size)) for _, number, size in ledger.events]
    names = [f"{ledger.ops[op].name} [{ledger.ops[op].phase}] {ledger.ops[op].module}" for op, _, _ in ledger.events]
    return {
        "events": normalised(lines[marks[1] : marks[-1]]),
        "ops": names[marks[1] : marks[-1]],
        "all": ledger.events,
        "steps": marks,
        "remarks": {f"{kind}: {name}": count for (kind, name), count in ledger.remarks.items()},
        "seconds": time.time() - began,
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def show(case: str, mine: dict[str, Any], around: int) -> None:
    """Print the first difference and what stands around it."""
    theirs, events = history(case), mine["events"]
    same = 0
    while same < min(len(theirs), len(events)) and theirs[same] == events[same]:
        same += 1
    if same == len(theirs) == len(events):
        print(f"{case}: all {same} events equal")
        return
    print(f"{case}: {same} equal, then ({len(events)} against {len(theirs)} of the rig)")
    for index in range(max(same - around, 0), same + around):
        left = theirs[index] if index < len(theirs) else ""
        right = events[index] if index < len(events) else ""
        op = mine["ops"][index] if index < len(events) else ""
        print(f"{'  ' if index < same else '! '}{left!s:28} {right!s:28} {op}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--around", type=int, default=8)
    parser.add_argument("--json")
    given = parser.parse_args()
    from jobs import specs

    wanted = given.cases
    for spec, result in specs(DATA / "corpus.jsonl"):
        chosen = spec["id"] in wanted or (
            given.all
            and "@" not in spec["id"]
            and (not wanted or any(w in spec["id"] + spec["family"] for w in wanted))
        )
        if not chosen or not result.get("history"):
            continue
        if os.fork() == 0:  # a case in a process of its own: libraries are patched, and memory is measured
            one(spec, result, given)
            os._exit(0)
        os.wait()


def one(spec: dict[str, Any], result: dict[str, Any], given: argparse.Namespace) -> None:
    case = spec["id"]
    try:
        mine = run(spec)
    except Exception as problem:
        if not given.all:
            raise
        print(f"{case}: FAILED {type(problem).__name__}: {str(problem)[:200]}", flush=True)
        return
    equal = digest(mine["events"]) == result["history"]["sha256_steps23"]
    alloc = sum(size for what, _, size in mine["events"] if what == "a")
    line = (
        f"{case}: {'EQUAL' if equal else 'differs'} events {len(mine['events'])}/{result['history']['events_steps23']} "
        f"bytes {alloc / result['history']['alloc_bytes_steps23'] - 1:+.5%} {mine['seconds']:.1f} s "
        f"{mine['rss_bytes'] >> 20} MiB {mine['remarks']}"
    )
    print(line, flush=True)
    if given.json:
        with Path(given.json).open("a") as file:
            file.write(json.dumps({"id": case, "equal": equal, "line": line}) + "\n")
    if not equal and history_file(case).exists() and not given.all:
        show(case, mine, given.around)


if __name__ == "__main__":
    main()
