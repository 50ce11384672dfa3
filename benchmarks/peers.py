"""Memory beside that of peers, on the rig: `python -m benchmarks.peers --rig FOLDER`.

The trainings of the table of peers that were seen on the rig: plain, under each peer that runs there, and within what
the best of them reserves and 25 % less. Each is a process of its own; the peaks are those of one step after some,
"pinned" is page-locked memory of the host, "moved" what a step copies to it. The rig (tools/rig) is the real CUDA build
of PyTorch without a GPU: memory is true there, times are not, so none are told. The 3D U-Net needs MONAI: `--packages`
names a folder that holds it. `--table` writes docs/benchmarks.md anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.on_rig import add_options, checked_rig, keep, made_of, mib, said
from benchmarks.results import RESULTS, ROOT, commit, newest_results, write_between

CASE = "peers"
CASES = {
    "resnet50": "ResNet-50 batch 64, SGD momentum, fp32",
    "gpt2_medium": "GPT-2 medium batch 2 x 1024, AdamW, fp32",
    "unet3d": "MONAI UNet (32 to 320 channels, 2 residual units), 160^3, 2 classes, AdamW, fp32",
}
PEERS = {
    "resnet50": ("save_on_cpu", "checkpoint on blocks", "OffloadActivations of TRL"),
    "gpt2_medium": ("save_on_cpu", "checkpoint on blocks", "OffloadActivations of TRL"),
    "unet3d": ("save_on_cpu", "checkpoint on blocks", "OffloadActivations of TRL"),
}
SETTINGS: dict[str, dict[str, Any]] = {"resnet50": {"batch": 64}, "gpt2_medium": {"batch": 2, "tokens": 1024}}
"""Of the cases that are among those of benchmarks.planning."""
STEPS = 6
"""Steps of each training; the last one's peaks are told."""
LESS = 0.75
PAGE = ROOT / "docs" / "benchmarks.md"
START = "<!-- peers: made by python -m benchmarks.peers --table, do not edit -->"
END = "<!-- peers end -->"
Result = dict[str, Any]


def on_the_rig(rig: Path, packages: Path | None, case: str, method: str, budget_bytes: int = 0) -> Result:
    """What a process on the rig says of one training."""
    command = ["-m", "benchmarks.peers", "--child", case, method, str(budget_bytes)]
    found = said(rig, *command, packages=[packages] if packages else [], variables={"FAKECUDA_CC": "90"})
    return {"method": method, "commit": commit(), **found}


def all_of(rig: Path, packages: Path | None, case: str) -> Iterator[Result]:
    """Plain and the peers; then what the best of them reserves, and less, each met by elbowroom or refused."""
    best_bytes = 0
    for method in ("plain", *PEERS[case]):
        found = on_the_rig(rig, packages, case, method)
        yield found
        if "reserved" in found:
            best_bytes = min(best_bytes or found["reserved"], found["reserved"])
    for budget_bytes in (best_bytes, int(LESS * best_bytes)):
        found = on_the_rig(rig, packages, case, "within", budget_bytes)
        yield found
        if "least_feasible_bytes" in found:
            yield on_the_rig(rig, packages, case, "within", found["least_feasible_bytes"])


# On the rig


def child(case: str, method: str, budget_bytes: int) -> Result:
    """The peaks of one training."""
    import torch

    from benchmarks.gpu_peers import Absent, around_steps, with_models
    from benchmarks.limits.workloads import made
    from tests.fakecuda.within import trust

    trust()
    step, (model,) = with_models(partial(made, case))
    if method == "within":
        return _within(step, budget_bytes)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    try:
        around = nullcontext if method == "plain" else around_steps(method, model)
    except Absent as problem:
        return {"not_run": str(problem)}
    moved_bytes = 0
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        context = around()
        counted = _counted(context)
        with context:
            step()
        moved_bytes = sum(counted)
    return {**_peaks(), "pinned": torch.cuda.host_memory_stats()["allocated_bytes.current"], "moved": moved_bytes}


def _counted(context: Any) -> list[int]:
    """Bytes of each tensor that save_on_cpu packs once it is entered."""
    found: list[int] = []
    pack = getattr(context, "pack_hook", None)
    if pack is not None:

        def counting(tensor: Any) -> Any:
            found.append(tensor.numel() * tensor.element_size())
            return pack(tensor)

        context.pack_hook = counting
    return found


def _peaks() -> Result:
    import torch

    return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def _within(step: Callable[[], Any], budget_bytes: int) -> Result:
    import elbowroom as er
    from tests.fakecuda.within import within

    try:
        run = within(step, budget_bytes, STEPS)
    except er.Infeasible as problem:
        return {"budget": budget_bytes, "least_feasible_bytes": problem.least_feasible_bytes, "why": str(problem)}
    last = run["steps"][-1]
    peaks = {kind: last[kind] for kind in ("allocated", "reserved", "pinned")}
    return {"budget": budget_bytes, **peaks, "simulated": run["simulated"], "moved": run["figures"][-1]["out"]}


# The table


def rows(cases: dict[str, list[Result]]) -> Iterator[str]:
    """Of the table."""
    yield "| case | way | allocated | reserved | pinned | moved a step |"
    yield "|---|---|---|---|---|---|"
    for name, runs in cases.items():
        for run in runs:
            case = CASES[name] if run is runs[0] else ""
            way = f"within {mib(run['budget'])}" if run["method"] == "within" else run["method"]
            if "reserved" in run:
                moved = "" if run["method"] not in ("within", "save_on_cpu") else mib(run["moved"])
                figures = [*(mib(run[kind]) for kind in ("allocated", "reserved", "pinned")), moved]
                yield f"| {case} | {way} | {' | '.join(figures)} |"
            elif "least_feasible_bytes" in run:
                yield f"| {case} | {way} | refused: {mib(run['least_feasible_bytes'])} is the least | | | |"
        if not any(run["method"] == "within" for run in runs):
            yield "|  | within | not run yet | | | |"


def table(result: Result) -> str:
    return "\n".join([made_of(result, "9.0, no GPU"), "", *rows(result["cases"])])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    add_options(options)
    options.add_argument("--packages", type=Path, help="folder that holds the package monai, and trl if it is to run")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        case, method, budget = given.cases
        print("@@" + json.dumps(child(case, method, int(budget))))
        return
    newest = newest_results(RESULTS).get(CASE, {"cases": {}})
    if not given.table:
        rig = checked_rig(options, given)
        for case in given.cases or CASES:
            newest["cases"][case] = []
            for run in all_of(rig, given.packages, case):
                print(case, json.dumps(run), file=sys.stderr, flush=True)
                newest["cases"][case].append(run)
                keep(CASE, {"cases": newest["cases"]})
    write_between(PAGE, START, END, table(newest_results(RESULTS)[CASE]))


if __name__ == "__main__":
    main()
