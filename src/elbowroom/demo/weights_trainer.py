"""Trainer of `demo --weights`: one child process, which makes a model, trains it and writes events to a pipe.

It is run as `python -m elbowroom.demo.weights_trainer '{"mode": ...}'`. It does not know the limit under which it may
run. With elbowroom the model is made inside the room, as it would not fit otherwise.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from elbowroom.demo.trainer import Mode, memory, moved, report, save_records, surroundings

if TYPE_CHECKING:
    from elbowroom.planners.request import Means

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
    report(_events(order), order.pipe)


def _events(order: WeightsOrder) -> Iterator[dict[str, Any]]:
    from elbowroom.demo import weights_job

    yield {"event": "bare", **memory()}
    with surroundings(order.mode, None, spill_dir=order.folder, allow=MEANS) as room:
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
        yield {"event": "measured", **moved(room, len(room.steps))}


if __name__ == "__main__":
    main(sys.argv[1])
