"""How good plans of `optimal` are and how long they take: `python -m benchmarks.planning.optimal TRACE.json ...`.

Each trace is a file that `er.capture(...).save` wrote. Allocated bytes are planned for (allocator "exact"), at shares
of what keeping everything takes, with swaps alone, with recomputes too, and with more means. Everything here is
simulated. Seconds are processor time of one core, so other load on the computer hardly counts.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import elbowroom as er
from elbowroom.lifetimes import LastStep, last_step
from elbowroom.planners import MEANS as MEANS_OF_PLANS

SHARES = (0.75, 0.5, 0.25)
MEANS = {
    "swap": ("swap",),
    "both": ("swap", "recompute"),
    "all three": ("swap", "recompute", "algorithm"),
    "all": MEANS_OF_PLANS,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--machine", default="a100-40gb")
    given = parser.parse_args()
    machine = replace(er.Machine.of(given.machine), allocator="exact")
    print("| trace | saved storages | budget | means | step | bound | gap | swaps | recomputes | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for path in given.traces:
        trace = er.Trace.load(path)
        step = last_step(trace)
        for share in SHARES:
            for means in MEANS:
                print(row(path.stem, step, machine, share, means), flush=True)


def row(name: str, step: LastStep, machine: er.Machine, share: float, means: str) -> str:
    """One row of the table; step and bound as what they are longer than keeping everything."""
    kept_ns, budget = int(step.at_ns[-1]), int(share * int(step.level.max()))
    began = time.process_time()
    begin = f"| {name} | {int((step.size[: len(step.saves)] >= 2**20).sum())} | {share:.0%} | {means}"
    try:
        made = er.plan(step.trace, machine, budget, "optimal", allow=MEANS[means])
    except er.Infeasible as problem:
        return f"{begin} | infeasible below {problem.least_feasible_bytes / int(step.level.max()):.0%} | | | | | |"
    seconds = time.process_time() - began
    bound = made.bound
    if bound is None:
        raise RuntimeError("planner 'optimal' gives every plan a bound")
    slower, least = bound.step_ns / kept_ns - 1, bound.lower_bound_ns / kept_ns - 1
    counts = f"{len(made.swaps)} | {len(made.recomputes)}"
    return f"{begin} | {slower:+.2%} | {least:+.2%} | {bound.gap:.2%} | {counts} | {seconds:.1f} |"


if __name__ == "__main__":
    main()
