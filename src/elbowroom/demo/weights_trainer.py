"""Trainer of `demo --weights`: one child process, which makes a model, trains it and writes events to a pipe.

It is run as `python -m elbowroom.demo.weights_trainer '{"mode": ...}'`. It does not know the limit under which it may
run. With elbowroom the model is made inside the room, as it would not fit otherwise.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from elbowroom.demo.trainer import Mode, memory, save_records

if TYPE_CHECKING:
    from elbowroom.planners.request import Means
    from elbowroom.run.room import Room

MEANS: tuple[Means, ...] = ("swap", "state", "gradient", "parameter")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOrder:
    """Order for a child.

    Attributes:
        mode: plain PyTorch, or the same inside `elbowroom.within`.
        pipe: file descriptor for the events.
        width: features of the model.
        depth: its blocks.
        folder: folder for spilled storages and records.
        records: whether to save the records of the run.
    """

    module: ClassVar[str] = "elbowroom.demo.weights_trainer"

    mode: Mode
    width: int
    depth: int
    seed: int
    steps: int
    folder: str
    pipe: int = -1
    records: bool = False

    def argument(self) -> str:
        """Write it as a word of a command line."""
        return json.dumps(asdict(self))


def main(argument: str) -> None:
    """Carry out an order."""
    order = WeightsOrder(**json.loads(argument))
    with os.fdopen(order.pipe, "w", buffering=1) as pipe:
        for event in _events(order):
            pipe.write(json.dumps(event) + "\n")


def _events(order: WeightsOrder) -> Iterator[dict[str, Any]]:
    if order.mode == "within":
        warnings.filterwarnings("default", message="elbowroom: ")  # the others are left out of the demo
    from elbowroom.demo import weights_job

    yield {"event": "bare", **memory()}
    with _surroundings(order) as room:
        training = weights_job.build(order.seed, order.width, order.depth)
        yield {"event": "made", **memory()}
        for loss, step_ns in weights_job.train(training, order.steps):
            yield {"event": "step", "loss": loss, "step_ns": step_ns}
        yield {"event": "trained", "weights_sha256": weights_job.weights_sha256(training), **memory()}
        del training
        gc.collect()  # an optimizer is in a cycle; of what is gone nothing needs to come back
    if room is not None:
        if order.records:
            save_records(room, Path(order.folder))
        yield {"event": "measured", **_figures(room)}


@contextmanager
def _surroundings(order: WeightsOrder) -> Iterator[Room | None]:
    if order.mode == "plain":
        yield None
        return
    from elbowroom import within

    with within(spill_dir=order.folder, device="cpu", allow=MEANS) as room:
        yield room


def _figures(room: Room) -> dict[str, Any]:
    """Return the peak as it was simulated, and of the last step the bytes moved and the time compute waited."""
    last = room.steps[-1]
    return {
        "simulated_peak_allocated_bytes": room.simulated.peak_allocated_bytes if room.simulated else None,
        "swapped_out_bytes": last.swapped_out_bytes,
        "swapped_back_bytes": last.swapped_back_bytes,
        "stall_ns": last.stall_ns,
    }


if __name__ == "__main__":
    main(sys.argv[1])
