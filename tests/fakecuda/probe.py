"""What an op allocates in the CUDA build: run in the rig, statement by statement.

    cd RIG && ./fake_torch.sh .../probe.py "x = torch.randn(8, 512, device='cuda')" "y = x.sum(0)" ...

Prints, for each statement, its allocations (a bytes) and frees (f bytes) in order. FAKECUDA_CC and FAKECUDA_SMS choose
the GPU. A statement that begins with "#" is run without being shown. With "-" statements come from stdin.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("FAKECUDA_CAPACITY", str(80 << 30))
os.environ.setdefault("FAKECUDA_BACKING", "0")
os.environ.setdefault("FAKECUDA_CC", "90")
os.environ.setdefault("FAKECUDA_SMS", "132")
os.environ.setdefault("FAKECUDNN_WORKSPACE", "0")

import torch
import torch.nn as nn
import torch.nn.functional as F

aten = torch.ops.aten


def history() -> Any:
    """Everything the allocator did so far."""
    snapshot: Any = torch.cuda.memory._snapshot()
    return snapshot["device_traces"][0]


def main() -> None:
    statements = sys.argv[1:] if sys.argv[1:] != ["-"] else sys.stdin.read().splitlines()
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1_000_000)
    names: dict[str, object] = {"torch": torch, "nn": nn, "F": F, "aten": aten, "dev": "cuda"}
    warm = torch.zeros(64, 64, device="cuda")
    torch.mm(warm, warm)
    F.linear(warm, warm, warm[0])
    for statement in statements:
        quiet = statement.startswith("#")
        begin = len(history())
        exec(statement.lstrip("# "), names)
        events = history()[begin:]
        if not quiet:
            seen = [("a" if e["action"] == "alloc" else "f", e["size"]) for e in events if e["action"] in SHOWN]
            print(statement, "->", " ".join(f"{what}{size}" for what, size in seen), flush=True)


SHOWN = ("alloc", "free_requested")

if __name__ == "__main__":
    main()
    os._exit(0)
