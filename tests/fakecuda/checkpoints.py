"""Runs inside the rig: checkpoints of a training whose optimizer states are away between its steps.

stdin: one JSON object {"budget": of the run, "capacity_bytes": of the device as the run ends, or 0}. Prints one JSON
object after "@@". Kernels do nothing there, so the states are what this script copies to them.
"""

from __future__ import annotations

import ctypes
import io
import json
import sys
import warnings
from typing import Any

import torch
from torch import nn

import elbowroom as er
from elbowroom.run.room import run_of
from tests.fakecuda import MOVES
from tests.fakecuda.within import trust

WIDTH, LAYERS, ROWS = 1024, 8, 64


def written(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Write a value to each state, through the optimizer's own mapping."""
    for parameter, states in optimizer.state.items():
        for name in ("exp_avg", "exp_avg_sq"):
            states[name].copy_(torch.full(parameter.shape, value))


def seen(packed: dict[str, Any]) -> dict[str, list[Any]]:
    """The devices and the values of the states in a state dict."""
    found = [states[name] for states in packed["state"].values() for name in ("exp_avg", "exp_avg_sq")]
    return {
        "devices": sorted({each.device.type for each in found}),
        "values": sorted({value for each in found for value in each.cpu().unique().tolist()}),
    }


def main() -> None:
    spec = json.load(sys.stdin)
    trust()
    torch.cuda.reset_peak_memory_stats()
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).cuda()
    batch = torch.zeros(ROWS, WIDTH, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())

    def steps(count: int) -> int:
        torch.cuda.reset_peak_memory_stats()
        for _ in range(count):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        return torch.cuda.max_memory_reserved()

    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with er.within(spec["budget"], allow=MOVES, min_size=4096) as room:
            steps(5)
            written(optimizer, 0.25)
            steps(2)
            packed = optimizer.state_dict()
            found["first"] = seen(packed)
            saved = io.BytesIO()
            torch.save(packed, saved)
            found["with state dict"] = steps(3)
            written(optimizer, 0.5)
            steps(1)
            found["later"] = seen(packed)
            other = {"state": packed["state"], "param_groups": packed["param_groups"]}
            del packed
            found["loaded"] = seen(torch.load(io.BytesIO(saved.getvalue())))
            optimizer.load_state_dict(other)
            del other
            steps(2)
            found["swapped"] = sum(swap.tier == "host" for swap in room.plan.swaps) if room.plan else 0
            found["budget_bytes"] = run_of(room).budget_bytes
            if spec["capacity_bytes"]:
                torch.cuda.empty_cache()
                ctypes.CDLL("libcudart.so.13").fakecuda_set_capacity(ctypes.c_uint64(spec["capacity_bytes"]))
        found["closed"] = seen({"state": dict(enumerate(optimizer.state.values()))})
        found["state dict when closed"] = seen(optimizer.state_dict())
    found["told"] = [str(each.message) for each in told if str(each.message).startswith("elbowroom")]
    found["mismatches"] = sum(step.mismatches for step in room.steps)
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
