"""Runs inside the rig: a model that is larger than the device trains with clipped gradients.

Between steps it is saved, written as safetensors does, loaded, averaged and evaluated.

stdin: one JSON object {"budget": of the device}. Prints one JSON object after "@@". Kernels do nothing there, so
parameters hold what this script gives them.
"""

from __future__ import annotations

import copy
import io
import json
import sys
import warnings
from typing import Any

import torch
from torch import nn

import elbowroom as er
from tests.fakecuda.within import trust

WIDTH, LAYERS, ROWS, STEPS, EVERY = 1024, 24, 16, 8, 4
READER = """
def storage_of(tensor):
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes(), tensor.data_ptr()
"""


def written(states: dict[str, torch.Tensor], storage_of: Any) -> list[torch.Tensor] | None:
    """Return what safetensors would write: it asks which tensors share a storage, and copies one after the other.

    None if their storages are not all apart, or others once a tensor was copied.
    """
    before = {name: storage_of(each) for name, each in states.items()}
    copies = [each.cpu() for each in states.values()]
    after = {name: storage_of(each) for name, each in states.items()}
    apart = len({address for address, _, _ in before.values()}) == len(states)
    sizes = [each[1] for each in before.values()] == [each.nbytes for each in copies]
    begins = all(address == first for address, _, first in before.values())
    return copies if apart and sizes and begins and after == before else None


def main() -> None:
    spec = json.load(sys.stdin)
    trust()
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    expected = [p.detach().clone() for p in model.parameters()]
    file = io.BytesIO()
    reader: dict[str, Any] = {"__name__": "safetensors.torch"}
    exec(READER, reader)
    found: dict[str, Any] = {"peaks": {}, "right": []}

    def looked(what: str) -> None:
        found["peaks"][what] = max(found["peaks"].get(what, 0), torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()

    def equal(states: dict[Any, torch.Tensor]) -> bool:
        return all(torch.equal(a, b) for a, b in zip(states.values(), expected, strict=True))

    def between() -> None:
        file.seek(0)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        looked("save")
        states = written(model.state_dict(), reader["storage_of"])
        found["right"].append(states is not None and equal(dict(enumerate(states))))
        looked("write")
        file.seek(0)
        saved = torch.load(file, map_location="cpu")
        found["right"].append(equal(saved["model"]))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        looked("resume")
        with torch.no_grad():
            for its, mine in zip(average.parameters(), model.parameters(), strict=True):
                its.mul_(0.9).add_(mine, alpha=0.1)
                mine.norm().item()
        looked("average")
        model.eval()
        with torch.no_grad():
            model(batch)
            average(batch)
        model.train()
        looked("evaluate")
        found["right"].append(equal({name: value.cpu() for name, value in average.state_dict().items()}))

    allow: Any = ("swap", "state", "gradient", "parameter")
    warnings.simplefilter("ignore")
    with er.within(spec["budget"], allow=allow, min_size="1MiB", planner="on_demand") as room:
        model.to("cuda")
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        scaler = torch.amp.GradScaler("cuda")
        batch = torch.zeros(ROWS, WIDTH, device="cuda")
        looked("load")
        for number in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(model(batch).square().mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            looked("clip")
            scaler.step(optimizer)
            scaler.update()
            looked("steps")
            if number % EVERY == EVERY - 1:
                between()
        found["modes"] = [step.mode for step in room.steps]
        found["mismatches"] = sum(step.mismatches for step in room.steps)
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
