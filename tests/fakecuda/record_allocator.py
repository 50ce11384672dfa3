"""Write down what the real allocator says to random streams, for tests that run without it.

    ELBOWROOM_RIG=/path/to/rig python -m tests.fakecuda.record_allocator [STREAMS]

Writes tests/data/allocator/rig.json.xz: {"torch": ..., "at_end": names, "streams": [{settings, capacity_bytes,
events_done, events, answers, at_end}]}; each answer is a list of changes from one event to the next.
"""

from __future__ import annotations

import json
import lzma
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.core.allocator_streams import SETTINGS, random_stream
from tests.fakecuda.rig import AT_END, answers, rig_folder

OUT = Path(__file__).parents[1] / "data" / "allocator" / "rig.json.xz"


def main(count: int) -> None:
    rig = rig_folder()
    if rig is None:
        sys.exit("ELBOWROOM_RIG is not set; set it to the folder of a rig that was built")
    streams = device_records(rig, count)
    record = {"torch": "2.11.0", "at_end": list(AT_END.values()), "streams": streams}
    OUT.write_bytes(lzma.compress(json.dumps(record, separators=(",", ":")).encode(), preset=9))
    print(f"{len(streams)} streams, {sum(len(s['events']) for s in streams)} events, {OUT.stat().st_size} bytes")


def device_records(rig: Path, count: int) -> list[dict[str, Any]]:
    """Streams through the device's allocator."""
    streams: list[dict[str, Any]] = []
    for seed in range(count):
        stream = random_stream(seed, length=40 + seed % 5 * 20, settings=SETTINGS[seed % len(SETTINGS)])
        curves, at_end = answers(rig, stream)
        told = {name: [b - a for a, b in pairwise([0, *curve])] for name, curve in curves.items()}
        streams.append(
            {
                "settings": stream.settings,
                "capacity_bytes": stream.capacity_bytes,
                "events_done": stream.events_done,
                "events": stream.events,
                "answers": told,
                "at_end": list(at_end.values()),
            }
        )
    return streams


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
