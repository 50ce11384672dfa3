"""On the path of a script that is tried: seeds before it starts, and a digest of the weights after each step.

Python imports this module by its name before it runs a script, so the script stays as it is. The digest reads memory
without a call of torch that anything could see. ELBOWROOM_WILD_DIGEST names the file; without it nothing is done.
With ELBOWROOM_WILD_UNCHECKED, torchvision takes small data for the real data whose checksums it knows.
ELBOWROOM_WILD_MEMORY names a file that the memory of the GPU is written to when the process ends. With
ELBOWROOM_WILD_STEPS the script ends after that many steps of optimizers, as if it called sys.exit().
"""

import atexit
import ctypes
import importlib.abc
import importlib.util
import json
import os
import sys
import zlib
from typing import Any

MOST_BYTES = 1 << 20
"""Of one parameter: the digest of a step has to be quick."""
FIRST_STEPS = 24
"""Those whose memory is noted one by one: an estimate is of the first ones."""


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once a module was executed."""

    def __init__(self, actions: dict[str, Any]) -> None:
        self.actions = actions

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        action = self.actions.pop(name, None)
        if action is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            action(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def watch_steps(optimizers: Any) -> None:
    """A line for each step of an optimizer: the digest of the parameters it updates."""
    rank = os.environ.get("RANK", "")
    name = os.environ["ELBOWROOM_WILD_DIGEST"] + (f".{rank}" if rank else "")

    def note(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        digest = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                digest = zlib.crc32(_bytes_of(parameter), digest)
        with open(name, "a") as file:
            file.write(f"{digest:08x}\n")

    optimizers.register_optimizer_step_post_hook(note)


def _bytes_of(parameter: Any) -> bytes:
    if parameter.device.type != "cpu" or not parameter.is_contiguous():
        return b""
    size = min(parameter.numel() * parameter.element_size(), MOST_BYTES)
    return ctypes.string_at(parameter.data_ptr(), size) if size and parameter.data_ptr() else b""


def seed_numpy(module: Any) -> None:
    module.random.seed(0)


def seed_torch(module: Any) -> None:
    module.manual_seed(0)


def watch_memory(optimizers: Any) -> None:
    """The most that the GPU's allocator held until each of the first steps, and until the end."""
    process, last = os.getpid(), int(os.environ.get("ELBOWROOM_WILD_STEPS", "0"))
    after_steps: list[int] = []
    known: set[int] = set()
    count = [0]

    def note(optimizer: Any, *_: Any) -> None:
        count[0] += 1
        known.add(id(optimizer))
        if count[0] <= FIRST_STEPS:
            after_steps.append(sys.modules["torch"].cuda.max_memory_reserved())
        if count[0] == last:
            raise SystemExit(0)

    def write() -> None:
        cuda = sys.modules["torch"].cuda
        if os.getpid() != process or not cuda.is_initialized():
            return
        statistics = cuda.memory_stats()
        found = {
            "steps": count[0],
            "optimizers": len(known),
            "reserved_bytes": statistics.get("reserved_bytes.all.peak", 0),
            "allocated_bytes": statistics.get("allocated_bytes.all.peak", 0),
            "reserved_after_steps_bytes": after_steps,
            "retries": statistics.get("num_alloc_retries", 0),
            "out_of_memory": statistics.get("num_ooms", 0),
        }
        with open(os.environ["ELBOWROOM_WILD_MEMORY"], "w") as file:
            json.dump(found, file)

    atexit.register(write)
    optimizers.register_optimizer_step_post_hook(note)


def trust_files(module: Any) -> None:
    module.check_integrity = lambda path, *_: os.path.isfile(path)


if os.environ.get("ELBOWROOM_WILD_UNCHECKED"):
    sys.meta_path.insert(0, AfterImport({"torchvision.datasets.utils": trust_files}))
if os.environ.get("ELBOWROOM_WILD_MEMORY"):
    sys.meta_path.insert(0, AfterImport({"torch.optim.optimizer": watch_memory}))
if os.environ.get("ELBOWROOM_WILD_DIGEST"):
    import random

    random.seed(0)
    sys.meta_path.insert(
        0, AfterImport({"torch": seed_torch, "numpy": seed_numpy, "torch.optim.optimizer": watch_steps})
    )
