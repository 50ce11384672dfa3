"""Runs inside the rig: a training whose parameters move is broken off in the middle of its optimizer's step.

stdin: one JSON object {"cases": [names], "folder": for files}. Prints one JSON object after "@@": per fault what was
raised, whether all bytes are somewhere, and whether training goes on. With the argument "killed" it is the process that
is killed.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.engine import optimizer_parts
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.run.room import run_of
from tests.fakecuda.within import trust

WIDTH, LAYERS, STEPS, PART = 1024, 12, 6, 5
BUDGET = "device=110MiB,host=48MiB"
"""Of some 192 MiB of weights, gradients and states: the host alone cannot hold what must go."""
ALLOW: Any = ("swap", "state", "gradient", "parameter")


class Broken(Exception):
    """Of the user."""


class PartsTraining:
    """Layers of 4 MiB with AdamW on a small batch."""

    def __init__(self) -> None:
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.zeros(8, WIDTH, device="cuda")

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).mean().backward()
        self.optimizer.step()

    def tensors(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        for values in self.optimizer.state.values():
            yield from (each for each in values.values() if isinstance(each, Tensor))


@contextmanager
def in_a_part(fault: Callable[[], None]) -> Iterator[None]:
    """Have a fault as part `PART` of an optimizer's step begins, once its bytes are on the device."""
    only, seen = optimizer_parts.only, [0]

    def faulty(*args: Any) -> Any:
        seen[0] += 1
        if seen[0] == PART:
            fault()
        return only(*args)

    optimizer_parts.only = faulty
    try:
        yield
    finally:
        optimizer_parts.only = only


def raises() -> None:
    raise Broken


def interrupts() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def fills_disk() -> None:
    """Let no later write succeed."""

    def write(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    SpillFile.write = write


FAULTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "an error of the user": raises,
    "an interrupt": interrupts,
    "a full disk": fills_disk,
}


def trained(training: PartsTraining, folder: str, fault: Callable[[], None] | None, steps: int = STEPS) -> str:
    """Train in a room, with a fault in one more step. Returns how the last step was done."""
    with er.within(BUDGET, allow=ALLOW, spill_dir=folder) as room:
        for _ in range(steps):
            training.step()
        if fault is not None:
            with in_a_part(fault):
                training.step()
            training.step()
        return run_of(room)._mode


def tried(name: str, folder: str) -> dict[str, Any]:
    """One fault, and what is left of it."""
    training, write = PartsTraining(), SpillFile.write
    error = mode = ""
    try:
        mode = trained(training, folder, FAULTS[name])
    except (Exception, KeyboardInterrupt) as problem:  # noqa: BLE001 - it is what is looked at
        error = f"{type(problem).__name__}: {problem}"
    finally:
        SpillFile.write = write
    short = [RAW_STORAGE(each).nbytes() < each.nelement() * each.element_size() for each in training.tensors()]
    files = os.listdir(folder)
    training.model.cuda()
    training.optimizer.load_state_dict(training.optimizer.state_dict())  # its states follow the weights
    return {
        "error": error,
        "mode": mode,
        "tensors": len(short),
        "without bytes": sum(short),
        "files": files,
        "then": trained(training, folder, None) if not any(short) else "",
    }


def killed(folder: str) -> None:
    """Save after each step, until a kill in a part of one."""
    training = PartsTraining()

    def save() -> None:
        kept = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        torch.save(kept, Path(folder, "new.pt"))
        os.replace(Path(folder, "new.pt"), Path(folder, "kept.pt"))

    with er.within(BUDGET, allow=ALLOW, spill_dir=folder):
        for _ in range(STEPS):
            training.step()
            save()
        with in_a_part(lambda: os.kill(os.getpid(), signal.SIGKILL)):
            training.step()


def kill(folder: str) -> dict[str, Any]:
    """Have a process killed, and read the checkpoint that it saved before."""
    done = subprocess.run([sys.executable, __file__, "killed", folder], check=False)
    kept = torch.load(Path(folder, "kept.pt"), map_location="cpu", weights_only=True)
    states = [each for values in kept["optimizer"]["state"].values() for each in values.values()]
    return {
        "code": done.returncode,
        "files": os.listdir(folder),
        "weights": sum(each.nbytes for each in kept["model"].values()),
        "states": sum(each.nbytes for each in states if each.ndim),
    }


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background of a shell ignores it
    warnings.simplefilter("ignore")
    trust()
    if sys.argv[1:2] == ["killed"]:
        killed(sys.argv[2])
        return
    spec = json.load(sys.stdin)
    found = {name: tried(name, spec["folder"]) for name in spec["cases"]}
    print("@@" + json.dumps({**found, "a kill": kill(spec["folder"])}))


if __name__ == "__main__":
    main()
