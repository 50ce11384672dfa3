"""Trainer: one child process of the demo, which trains and writes each event as a line of JSON to a pipe.

It is run as `python -m elbowroom.demo.trainer '{"mode": ...}'`. It does not know the limit under which it may run.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from elbowroom.run.room import Room

Mode = Literal["plain", "within"]
RECORDS = ("trace", "machine", "plan", "simulated", "measured")
"""Records of a room that are saved, each as a file of this name."""
MOST_EXTRA = 6
"""Steps after the trained ones, of which one is to be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOrder:
    """Order for a child.

    Attributes:
        mode: plain PyTorch, or the same inside `elbowroom.within`.
        pipe: file descriptor for the events.
        shape_XYZ: voxels of the volume.
        folder: folder for spilled storages and records.
        budget_bytes: budget of `within`.
        measure: whether to add a step at the end and measure its allocated peak.
    """

    module: ClassVar[str] = "elbowroom.demo.trainer"

    mode: Mode
    pipe: int
    shape_XYZ: tuple[int, int, int]
    seed: int
    steps: int
    folder: str
    budget_bytes: int = 0
    measure: bool = True

    def argument(self) -> str:
        """Write it as a word of a command line."""
        return json.dumps(asdict(self))


def main(argument: str) -> None:
    """Carry out an order."""
    given = json.loads(argument)
    x, y, z = given.pop("shape_XYZ")
    order = TrainingOrder(**given, shape_XYZ=(x, y, z))
    report(_events(order), order.pipe)


def report(events: Iterable[Mapping[str, Any]], pipe: int) -> None:
    """Write events to a file descriptor as they come, each as a line of JSON."""
    with os.fdopen(pipe, "w", buffering=1) as writer:
        for event in events:
            writer.write(json.dumps(event) + "\n")


def _events(order: TrainingOrder) -> Iterator[dict[str, Any]]:
    if order.mode == "within":
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    from elbowroom.demo import job

    training = job.build(order.seed, order.shape_XYZ)
    yield {"event": "bare", "allocated_bytes": job.live_bytes(training), **memory()}
    with surroundings(order.mode, order.budget_bytes, spill_dir=order.folder) as room:
        for loss, step_ns in job.train(training, order.steps):
            yield {"event": "step", "loss": loss, "step_ns": step_ns}
        yield {"event": "trained", "weights_sha256": job.weights_sha256(training), **memory()}
        if room is not None:
            for _ in _measured(room, job.train(training, MOST_EXTRA, order.steps)):
                yield {"event": "extra"}
        elif order.measure:
            yield {"event": "measured", "peak_allocated_bytes": job.peak_allocated_bytes(training, order.steps)}
    if room is not None:
        save_records(room, Path(order.folder))
        yield {"event": "measured", **_figures(room, order.steps)}


def _measured(room: Room, steps: Iterator[object]) -> Iterator[object]:
    """Yield further steps until one was measured under the plan that lasts: a step may show that it needs another.

    What was measured of a step is known once the next one has begun. The last one is not measured, so nothing changes.
    """
    room.measure_next_step()
    for number, each in enumerate(steps, start=1):
        yield each
        if number % 2 == 0:
            if room.measured is not None:
                return
            room.measure_next_step()


@contextmanager
def surroundings(mode: Mode, budget_bytes: int | None, **knobs: Any) -> Iterator[Room | None]:
    """Context of a training: a room in RAM with these arguments of `within`, or none if the mode is plain."""
    if mode == "plain":
        yield None
        return
    from elbowroom import within

    warnings.filterwarnings("default", message="elbowroom: ")  # the others are left out of the demo
    with within(budget_bytes, device="cpu", **knobs) as room:
        yield room


def save_records(room: Room, folder: Path) -> None:
    """Save the records that a room has, each as a file of its name."""
    for name in RECORDS:
        record = getattr(room, name)
        if record is not None:
            record.save(folder / f"{name}.json")


def _figures(room: Room, steps: int) -> dict[str, Any]:
    """Return the peaks, and of the last step that counts the bytes moved and the time compute waited for them.

    The allocated peak is the room's own count. Storages that come back from disk are not of torch's allocator, so the
    profiler would miss them.
    """
    return {
        **moved(room, steps),
        "peak_allocated_bytes": room.measured.peak_allocated_bytes if room.measured else None,
        "simulated_step_ns": room.simulated.step_ns if room.simulated else None,
        "modes": [step.mode for step in room.steps],
        "mismatches": sum(step.mismatches for step in room.steps),
    }


def moved(room: Room, steps: int) -> dict[str, Any]:
    """Return the peak as it was simulated, and of a step, counted from 1, what it moved and how long compute waited."""
    last = room.steps[steps - 1]
    return {
        "simulated_peak_allocated_bytes": room.simulated.peak_allocated_bytes if room.simulated else None,
        "swapped_out_bytes": last.swapped_out_bytes,
        "swapped_back_bytes": last.swapped_back_bytes,
        "stall_ns": last.stall_ns,
    }


def memory() -> dict[str, int]:
    """Return this process's memory as the system reports it: resident, its peak, anonymous part, data segment."""
    fields = {"VmRSS": "rss_bytes", "VmHWM": "peak_rss_bytes", "RssAnon": "anonymous_bytes", "VmData": "data_bytes"}
    found: dict[str, int] = {}
    for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if name in fields:
            found[fields[name]] = int(value.split()[0]) * 1024
    from elbowroom.engine.residence import most_ever_bytes

    # The system's own count begins anew in each step under a limit.
    found["peak_rss_bytes"] = max(found.get("peak_rss_bytes", 0), most_ever_bytes())
    return found


if __name__ == "__main__":
    main(sys.argv[1])
