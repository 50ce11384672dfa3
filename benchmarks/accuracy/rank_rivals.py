"""What other tools say of a rank of a public table: FSDPMemTracker of torch, and the formulas of two estimators.

The formulas are written again as published, so that neither package is needed: accelerate imports torchvision, and
DeepSpeed was not installed. They are those of accelerate 1.15 (commands/estimate.py, estimate_training_usage) and of
DeepSpeed 0.19.8 (runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs without offloading). Neither counts
activations. accelerate's knows no ranks, and both take all weights as trained by Adam. FSDPMemTracker counts tensors of
the model under fake tensors. It takes `fully_shard` alone, so litgpt's rows, under FSDP1, have no such figure.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

ACCELERATE = "accelerate estimate-memory, its formula"
ZERO3 = "DeepSpeed's ZeRO-3 estimator, its formula"
TRACKER = "torch's FSDPMemTracker (fake tensors)"
STEPS = 2


def rivals_of(table: str, spec: Mapping[str, Any]) -> dict[str, int]:
    """Bytes on a rank, by tool.

    Args:
        table: name of the table's module; it has `whole_model` if it has rows of several ranks.
        spec: arguments of a job of it, `ranks` among them.
    """
    module = importlib.import_module(f"benchmarks.accuracy.tables.{table}")
    with torch.device("meta"):
        model = module.whole_model(spec)
    sizes = [each.numel() for each in model.parameters()]
    largest = max(sum(each.numel() for each in part.parameters(recurse=False)) for part in model.modules())
    found = {ACCELERATE: accelerate_bytes(sizes), ZERO3: zero3_bytes(sum(sizes), largest, spec["ranks"])}
    if hasattr(module, "tracked"):
        found[TRACKER] = tracked_bytes(module, spec)
    return found


def accelerate_bytes(sizes: Iterable[int]) -> int:
    """The largest of accelerate's four stages in mixed precision, from parameters' numbers of elements.

    Weights stay in float32; gradients are in both precisions; Adam's two states, and as much in its step.
    """
    whole = 4 * sum(sizes)
    return max(whole, whole + whole // 2, 2 * whole)


def zero3_bytes(parameters: int, largest_layer: int, ranks: int) -> int:
    """DeepSpeed's formula for ZeRO-3 on GPUs alone: 18 bytes of a parameter are sharded, one layer is gathered."""
    return 4 * largest_layer + int(18 * parameters / ranks)


def tracked_bytes(module: Any, spec: Mapping[str, Any]) -> int:
    """Peak of FSDPMemTracker over two steps, the second of which has optimizer states."""
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=spec["ranks"], store=FakeStore())
    mesh = init_device_mesh("cpu", (spec["ranks"],))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model: nn.Module = module.whole_model(spec)
        module.shard(model, mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        inputs = module.batch_of(spec)
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs(inputs)
        with tracker:
            for _ in range(STEPS):
                module.tracked(model, optimizer, inputs)
                tracker.reset_mod_stats()
    dist.destroy_process_group()
    return sum(int(sizes["Total"]) for sizes in tracker.get_tracker_snapshot("peak").values())
