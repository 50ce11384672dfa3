"""Runs inside the rig, with real copies: storages to the host and the disk and back in any order.

stdin: one JSON object {"gds": whether they go to the disk past the host, through a plain file}. Prints one JSON object
after "@@".
"""

from __future__ import annotations

import json
import random
import sys
import tempfile

import torch
from torch import Tensor

from elbowroom.engine.cuda_device import tiers_below
from elbowroom.engine.executor import Executor
from elbowroom.engine.saved_tensors import Handle
from elbowroom.units import parse_budget
from tests.torch.plain_gds import PlainGdsFile

STORAGES = 20
MIB = 2**20


def saved(executor: Executor, number: int, content: Tensor) -> Handle:
    """A storage on the device that is on its way to the disk, or to the host if there is room."""
    tensor = content.cuda()
    entry = executor.add(number, tensor.untyped_storage(), 0)
    executor.swap_out(entry, random.choice(["disk", None]))
    return Handle(executor, entry, tensor)


def main() -> None:
    gds = json.load(sys.stdin).get("gds", False)
    torch.cuda.gds.GdsFile = PlainGdsFile  # pyright: ignore[reportAttributeAccessIssue]
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        tier = tiers_below(torch.device("cuda", 0), parse_budget("1GiB,host=40MiB"), folder, 1 << 40, gds=gds)
        executor = Executor(tier, device=torch.device("cuda", 0))
        sizes = [random.randrange(MIB, 30 * MIB) for _ in range(STORAGES)]
        contents = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in sizes]
        handles = {}
        for number, content in enumerate(contents):
            handles[number] = saved(executor, number, content)
            executor.writes_done(number)
        executor.settle()
        found = {"on_device": torch.cuda.memory_allocated(), "host": tier.size_bytes, "pinned": tier.pinned_bytes}
        order = random.sample(range(STORAGES), STORAGES)
        wrong = 0
        for place, number in enumerate(order):
            for soon in order[place : place + 3]:
                executor.bring_back(handles[soon].entry)
            whole = torch.empty(0, dtype=torch.uint8, device="cuda").set_(executor.read(handles[number].entry))  # pyright: ignore[reportArgumentType]
            wrong += not torch.equal(whole.cpu(), contents[number])
            del handles[number], whole
        executor.close()
        found |= {"wrong": wrong, "left": tier.size_bytes + tier.held_bytes}
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
