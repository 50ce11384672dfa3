"""Runs inside the rig with two devices: trainings on both of them within the budget of one.

stdin: one JSON object {"cases": [names]}. Prints one JSON object after "@@": what each case found, nothing where there
is one device.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.run.room import run_of
from tests.fakecuda import MOVES
from tests.torch.helpers import moved_categories

FIRST, SECOND = "cuda:0", "cuda:1"
LEARNING, STEPS = 6, 2
Found = dict[str, Any]


class Chain(nn.Module):
    """Twelve linear layers on each of some devices, one device after the other."""

    def __init__(self, *devices: str) -> None:
        super().__init__()
        self.devices = devices
        self.stages = nn.ModuleList(nn.ModuleList(nn.Linear(512, 512) for _ in range(12)).to(each) for each in devices)

    def forward(self, x: Tensor) -> Tensor:
        for device, stage in zip(self.devices, self.stages, strict=True):
            x = x.to(device)
            for layer in stage:  # pyright: ignore[reportGeneralTypeIssues]
                x = torch.tanh(layer(x))
        return x


def training(*devices: str, rows: int) -> Callable[[], None]:
    """A step of one model on these devices: of 8192 rows outputs have 16 MiB each, of 256 too little to move."""
    model, batch = Chain(*devices), torch.zeros(rows, 512, device=devices[0])
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def reserved() -> dict[str, int]:
    return {device: torch.cuda.max_memory_reserved(device) for device in (FIRST, SECOND)}


def from_here() -> None:
    """Count peaks anew."""
    for device in (FIRST, SECOND):
        torch.cuda.reset_peak_memory_stats(device)


def run(trainings: Sequence[Sequence[str]], on: str | None, share: float, rows: int = 8192) -> Found:
    """Steps of several trainings in turn within a share of what they reserve of a device without a budget."""
    steps = [training(*devices, rows=rows) for devices in trainings]
    at = torch.cuda.current_device() if on is None else torch.device(on).index
    torch.cuda.empty_cache()
    from_here()
    for step in steps * 2:
        step()
    plain = reserved()
    torch.cuda.empty_cache()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with er.within(int(share * plain[f"cuda:{at}"]), device=on, min_size="1MiB", allow=MOVES) as room:
            for step in steps * LEARNING:
                step()
            from_here()
            for step in steps * STEPS:
                step()
            line = room.simulated
    texts = [str(each.message) for each in told if str(each.message).startswith("elbowroom")]
    return {
        "plain": plain,
        "reserved": reserved(),
        "budget_bytes": run_of(room).budget_bytes,
        "device": str(run_of(room).device),
        "modes": [step.mode for step in room.steps],
        "swapped": [step.swapped_out_bytes for step in room.steps],
        "categories": sorted(moved_categories(room)),
        "mismatches": sum(step.mismatches for step in room.steps),
        "passed": sorted(run_of(room).passed),
        "simulated": line.peak_reserved_bytes if line else 0,
        "told": [text for text in texts if " holds " not in text],
        "told_of_more": len([text for text in texts if " holds " in text]),
        "beyond_bytes": room.beyond_bytes,
    }


def refused(inner: str, outer: str) -> Found:
    """Opens a room inside another one, and a second one after both."""
    found = ""
    try:
        with er.within("1GiB", device=outer), er.within("1GiB", device=inner):
            pass
    except er.UsageError as error:
        found = str(error)
    with er.within("1GiB", device=inner) as room:
        return {"error": found, "then": str(run_of(room).device)}


def no_such_device() -> Found:
    try:
        with er.within("1GiB", device="cuda:2"):
            return {"error": ""}
    except er.UsageError as error:
        return {"error": str(error)}


def on_the_current() -> Found:
    with torch.cuda.device(SECOND):
        return run([[SECOND]], None, 0.7)


def main() -> None:
    cases: dict[str, Callable[[], Found]] = {
        "split, on the first": partial(run, [[FIRST, SECOND]], FIRST, 0.6),
        "split, on the second": partial(run, [[FIRST, SECOND]], SECOND, 0.6),
        "split, with its states": partial(run, [[FIRST, SECOND]], SECOND, 0.75, rows=256),
        "two models": partial(run, [[FIRST], [SECOND]], SECOND, 0.7),
        "on the current": on_the_current,
        "one inside another": partial(refused, SECOND, FIRST),
        "no such device": no_such_device,
    }
    names = json.load(sys.stdin)["cases"] if torch.cuda.device_count() > 1 else ()
    print("@@" + json.dumps({name: cases[name]() for name in names}))


if __name__ == "__main__":
    main()
