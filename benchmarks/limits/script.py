"""A training as a user's script: `elbowroom run benchmarks/limits/script.py WORKLOAD STEPS`, on the rig.

After each step it prints a line of JSON after "@@": peaks of the allocator in that step.
"""

from __future__ import annotations

import json
import sys

import torch

from benchmarks.limits.workloads import made


def main() -> None:
    name, steps = sys.argv[1], int(sys.argv[2])
    if "elbowroom.run.room" in sys.modules:
        from tests.fakecuda.within import trust

        trust()
    step = made(name)
    for _ in range(steps):
        torch.cuda.reset_peak_memory_stats()
        step()
        peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        print("@@" + json.dumps(peaks), flush=True)


if __name__ == "__main__":
    main()
