"""Runs inside the rig: what one op of a training holds at least, with everything else away.

stdin: one JSON object {"workload": name}. Prints the allocated bytes as a JSON number after "@@". They are those of
the plan that moves everything, made from a capture. cuDNN's workspaces are left out: torch does with less if it must.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import elbowroom as er
from benchmarks.limits.workloads import made
from elbowroom.step.workspaces import without_workspaces

GPU = "h100-sxm"
STEPS = 3


def one_op_bytes(name: str) -> int:
    """The least allocated bytes with which the plan that moves everything gets by."""
    machine = replace(er.Machine.of(GPU), allocator="exact")
    trace = without_workspaces(er.capture(lambda: made(name), machine=machine, steps=STEPS, in_parts=True))
    try:
        er.plan(trace, machine, 1, "on_demand", allow=("swap", "state", "gradient"))
    except er.Infeasible as problem:
        return problem.least_feasible_bytes
    raise AssertionError("no training takes one byte")


def main() -> None:
    print("@@" + json.dumps(one_op_bytes(json.load(sys.stdin)["workload"])))


if __name__ == "__main__":
    main()
