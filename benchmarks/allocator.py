"""How long the allocator's model takes for a million events of a steady training.

    python -m benchmarks.allocator [--events 1000000] [--rounds 3] [--settings expandable_segments:True]

The events are those of a training step recorded on a GPU (tests/data/allocator), repeated. Prints one line of JSON; on
a busy machine the seconds of the CPU say more than those of the clock.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import time
from pathlib import Path
from typing import Any

from elbowroom.allocator import replay

DATA = Path(__file__).parents[1] / "tests" / "data" / "allocator"
NAME = "wed_medium_1024_train.events.csv.gz"


def step() -> list[tuple[str, int, int]]:
    """(action, address, bytes) of one step that starts and ends with the same blocks."""
    with gzip.open(DATA / NAME, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        ("alloc" if row["action"] == "alloc" else "free", int(row["addr_minus_base"]), int(row["size"]))
        for row in rows
        if row["action"] != "free_completed"
    ]


def events(count: int) -> list[tuple[Any, ...]]:
    """Steps one after the other; what a step frees without having allocated it, is allocated before the first."""
    once = step()
    live: dict[int, int] = {}
    made: list[tuple[Any, ...]] = []
    for what, address, size in once:
        if what == "free" and live.pop(address, None) is None:
            made.append(("alloc", address, size))
        elif what == "alloc":
            live[address] = size
    made.reverse()
    left = [("free", address) for address in live]
    again = [("alloc", address, size) for _, address, size in made]
    body = [(what, address, size) if what == "alloc" else (what, address) for what, address, size in once]
    while len(made) < count:
        made += body
        made += left
        made += again
    return made[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", default="")
    given = parser.parse_args()
    stream = events(given.events)
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    for _ in range(given.rounds):
        start, cpu_start = time.perf_counter(), time.process_time()
        done = replay(stream, given.settings)
        seconds.append(round(time.perf_counter() - start, 3))
        cpu_seconds.append(round(time.process_time() - cpu_start, 3))
    print(
        json.dumps(
            {
                "events": len(stream),
                "settings": given.settings,
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "peak_reserved_bytes": done.peak_reserved_bytes,
                "peak_allocated_bytes": done.peak_allocated_bytes,
            }
        )
    )


if __name__ == "__main__":
    main()
