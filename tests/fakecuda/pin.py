"""Runs inside the rig: events of pinned memory through torch; after each a line with the bytes it holds.

stdin: one JSON array of events. Needs torch alone.
"""

from __future__ import annotations

import json
import sys

import torch


def main() -> None:
    live: dict[int, torch.Tensor] = {}
    torch.cuda.init()  # without it there are no statistics
    print("started")
    for what, *rest in json.load(sys.stdin):
        if what == "alloc":
            live[rest[0]] = torch.empty(rest[1], dtype=torch.uint8, pin_memory=True)
        elif what == "free":
            del live[rest[0]]
        elif what == "record_stream":
            live[rest[0]][:1].to("cuda", non_blocking=True)
        elif what == "synchronize":
            torch.cuda.synchronize()
        else:
            torch._C._host_emptyCache()  # torch 2.11 has no public name for it
        print(torch.cuda.host_memory_stats().get("allocated_bytes.current", 0))


main()
