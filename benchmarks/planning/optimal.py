"""How good plans of `optimal` are and how long they take: `python -m benchmarks.planning.optimal --traces FOLDER`.

Allocated bytes are planned for (allocator "exact"), at shares of what keeping everything takes: for real models with
swaps alone, with recomputes too, and with more means; then for synthetic chains of many layers, to see how long it
takes. Everything but the seconds is simulated. Seconds are processor time of one core, so other load on the computer
hardly counts. Writes benchmarks/results/optimal_<machine it ran on>_<date>.json.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import elbowroom as er
from benchmarks.planning.models import trace_of
from benchmarks.results import RESULTS, facts, result_path, write_result
from elbowroom.planners import MEANS as MEANS_OF_PLANS
from elbowroom.step.last_step import last_step
from elbowroom.trace import Trace
from tests.core.build import chain, machine

GPU = "a100-40gb"
MEANS = {
    "swap": ("swap",),
    "swap, recompute": ("swap", "recompute"),
    "swap, recompute, algorithm": ("swap", "recompute", "algorithm"),
    "swap, state": ("swap", "state"),
    "all": MEANS_OF_PLANS,
}
CASES = {"resnet50": (0.75, 0.5, 0.25), "resnet200": (0.75, 0.5, 0.25), "gpt2_small": (0.75, 0.65, 0.5, 0.4)}
"""Budgets of each model."""
OF_STATES = ("gpt2_small",)
"""Models with optimizer states that are worth moving; the others are planned without them."""
LAYERS = (1_000, 10_000)
SHARE, HIDDEN = 0.4, 0.5
"""Of a chain: its budget, and the share of its bytes that the link carries while its forward runs."""


def row(trace: Trace, where: er.Machine, share: float, means: str) -> dict[str, Any]:
    """One plan; step and bound as multiples of what keeping everything takes."""
    step = last_step(trace)
    most = int(step.level.max())
    found: dict[str, Any] = {
        "share": share,
        "means": means,
        "saves": int((step.size[: len(step.saves)] >= 2**20).sum()),
    }
    began = time.process_time()
    try:
        made = er.plan(trace, where, int(share * most), "optimal", allow=MEANS[means])
    except er.Infeasible as problem:
        return found | {"least_share": problem.least_feasible_bytes / most}
    seconds = time.process_time() - began
    bound = made.bound
    if bound is None:
        raise RuntimeError("planner 'optimal' gives every plan a bound")
    kept_ns = int(step.at_ns[-1])
    return found | {
        "step": bound.step_ns / kept_ns,
        "bound": bound.lower_bound_ns / kept_ns,
        "gap": bound.gap,
        "swaps": len(made.swaps),
        "recomputes": len(made.recomputes),
        "seconds": round(seconds, 1),
    }


def of_chain(layers: int, means: str) -> dict[str, Any]:
    """A plan for a chain of layers that take 1 ms each and keep 1 to 16 MiB."""
    draw = random.Random(0)
    sizes = [draw.randint(2**20, 2**24) for _ in range(layers)]
    rate = int(HIDDEN * sum(sizes) / (layers * 1e-3))
    return row(chain(sizes, ns=10**6), machine(out=rate, back=rate, disk=10**15), SHARE, means)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning.optimal", description=__doc__)
    parser.add_argument("--traces", required=True, help="folder that keeps the traces; not one of the repository")
    parser.add_argument("--out", type=Path, help="result file; by default one of benchmarks/results")
    given = parser.parse_args()
    path = given.out or result_path(RESULTS, "optimal")
    result: dict[str, Any] = {"case": "optimal", "simulated": True, "gpu": GPU, **facts(), "models": {}, "chains": {}}
    where = replace(er.Machine.of(GPU), allocator="exact")
    for case, shares in CASES.items():
        trace = trace_of(case, GPU, given.traces)
        chosen = [means for means in MEANS if case in OF_STATES or means not in ("swap, state", "all")]
        rows = result["models"][case] = list[Any]()
        for share in shares:
            for means in chosen:
                rows.append(row(trace, where, share, means))
                print(case, rows[-1], flush=True)
                write_result(path, result)
    for layers in LAYERS:
        result["chains"][str(layers)] = [of_chain(layers, means) for means in ("swap", "all")]
        print(layers, result["chains"][str(layers)], flush=True)
        write_result(path, result)


if __name__ == "__main__":
    main()
