"""A case of the corpus under torch's own MemTracker with fake tensors: what PyTorch itself offers for the question.

Its fake tensors are on the CPU: on a build without CUDA those on "cuda" end the process as soon as autograd runs. It
knows no allocator, so its peak stands for the allocated and for the reserved one alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

STEPS = 2
AMP = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}


def run(*, spec: dict[str, Any], data: str) -> dict[str, Any]:
    """Peak of two steps: the second one's is the higher, as optimizer states are there."""
    import sys

    sys.path.append(data)
    torch.set_num_threads(1)
    if "gan" in spec:
        return {"error": "two models a step: not written for this tool"}
    tracker = MemTracker()
    with FakeTensorMode(allow_non_fake_inputs=True):
        net, optimizer, inputs, target = _job(spec)
        tracker.track_external(net, optimizer, *[x for x in (*inputs.values(), target) if torch.is_tensor(x)])
        with tracker:
            for _ in range(STEPS):
                _step(spec, tracker, net, optimizer, inputs, target)
    peak = tracker.get_tracker_snapshot("peak")
    total = sum(int(sizes["Total"]) for sizes in peak.values())
    return {"simulated": {"allocated": total, "reserved": total}}


def _job(spec: dict[str, Any]) -> tuple[Any, torch.optim.Optimizer, dict[str, Any], Any]:
    from tests.fakecuda.jobs import STATIC_DTYPE, build, optimizer, tensor

    dtype = STATIC_DTYPE.get(spec.get("precision", "fp32"))
    net: Any = build(spec["model"])
    net = net.to(dtype) if dtype else net
    if spec.get("memory_format") == "channels_last":
        net.to(memory_format=torch.channels_last)
    net.train()
    inputs = {name: tensor(spec, each, dtype) for name, each in spec["inputs"].items()}
    target = spec.get("target")
    wanted = dtype if spec["loss"] in ("mse", "bce") else None
    parameters = [each for each in net.parameters() if each.requires_grad]
    return net, optimizer(spec["optim"], parameters), inputs, tensor(spec, target, wanted) if target else None


def _step(
    spec: dict[str, Any], tracker: MemTracker, net: Any, optimizer: Any, inputs: dict[str, Any], target: Any
) -> None:
    from tests.fakecuda.jobs import loss_of

    amp = AMP.get(spec.get("precision", "fp32"))
    micro_batches = spec.get("accum", 1)
    for _ in range(micro_batches):
        tracker.reset_mod_stats()
        with torch.autocast("cpu", amp or torch.bfloat16, enabled=amp is not None):
            out = net(**inputs) if spec.get("call") == "kwargs" else net(*inputs.values())
            loss = loss_of(spec["loss"], out, target)
        (loss / micro_batches).backward()
        del out, loss
    if spec.get("clip"):
        torch.nn.utils.clip_grad_norm_(net.parameters(), spec["clip"])
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
