"""Runs inside the rig: a model that is larger than the device is made, moved there, trained and read.

stdin: one JSON object {"way": how it comes to the device, "budget": of the device}.
Prints one JSON object after "@@". Kernels do nothing there, so parameters hold what this script gives them.
"""

from __future__ import annotations

import io
import json
import sys
import warnings
from typing import Any

import torch
from torch import nn

import elbowroom as er
from elbowroom.engine.storages import RAW_STORAGE
from tests.fakecuda.within import trust

WIDTH, LAYERS, ROWS, MIB = 2048, 16, 64, 2**20


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def loaded(way: str, on_host: nn.Sequential) -> nn.Sequential:
    if way == "to":
        return on_host.to("cuda")
    if way == "cuda":
        return on_host.cuda()
    if way == "made there":
        with torch.device("cuda"):
            model = layers()
    else:
        with torch.device("meta"):
            model = layers()
        model.to_empty(device="cuda")
    model.load_state_dict(on_host.state_dict())
    return model


def main() -> None:
    spec = json.load(sys.stdin)
    trust()
    on_host = layers()
    expected = [p.detach().clone() for p in on_host.parameters()]
    found: dict[str, Any] = {"capacity": torch.cuda.mem_get_info()[1], "weights": sum(p.nbytes for p in expected)}

    def looked() -> int:
        return torch.cuda.max_memory_reserved()

    allow: Any = ("swap", "state", "gradient", "parameter")
    warnings.simplefilter("ignore")
    with er.within(spec["budget"], allow=allow, min_size="1MiB") as room:
        model = loaded(spec["way"], on_host)
        del on_host
        found["after loading"] = looked()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        batch = torch.zeros(ROWS, WIDTH, device="cuda")
        found["steps"] = []
        for _ in range(8):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            found["steps"].append(looked())
        states = {name: value.cpu() for name, value in model.state_dict().items()}
        found["state dict"] = all(torch.equal(a, b) for a, b in zip(states.values(), expected, strict=True))
        found["read"] = looked()
        found["modes"] = [step.mode for step in room.steps]
        found["mismatches"] = sum(step.mismatches for step in room.steps)

    found["after"] = looked()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, map_location="cpu")
    found["saved"] = all(torch.equal(a, b) for a, b in zip(saved.values(), expected, strict=True))
    found["on host"] = sum(p.device.type == "cpu" for p in model.parameters())
    found["empty"] = sum(RAW_STORAGE(p).nbytes() == 0 for p in model.parameters())
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
