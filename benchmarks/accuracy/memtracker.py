"""A case of the corpus under torch's own MemTracker with fake tensors: what PyTorch itself offers for the question.

Its fake tensors are on the CPU: on a build without CUDA those on "cuda" end the process as soon as autograd runs. It
knows no allocator, so its peak stands for the allocated and for the reserved one alike.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import nn
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
    from tests.fakecuda.jobs import STATIC_DTYPE, optimizer, tensor

    dtype = STATIC_DTYPE.get(spec.get("precision", "fp32"))
    net: Any = converted(built(spec["model"]), dtype, spec.get("memory_format") == "channels_last")
    net.train()
    inputs = {name: tensor(spec, each, dtype) for name, each in spec["inputs"].items()}
    target = spec.get("target")
    wanted = dtype if spec["loss"] in ("mse", "bce") else None
    parameters = [each for each in net.parameters() if each.requires_grad]
    return net, optimizer(spec["optim"], parameters), inputs, tensor(spec, target, wanted) if target else None


def built(model: dict[str, Any]) -> Any:
    """The model of a spec, without the draws that ask for a value: fake tensors have none."""
    from tests.fakecuda.jobs import build

    with patch.object(nn.init, "trunc_normal_", lambda tensor, *_, **__: tensor):
        return build(model)


def converted(net: nn.Module, dtype: torch.dtype | None, channels_last: bool) -> nn.Module:
    """What `net.to(dtype)` and `net.to(memory_format=...)` do, which fake tensors refuse: they cannot be swapped."""
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the old one too, so that its id is not given again
    for module in [*net.modules()]:
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if id(tensor) not in made:
                made[id(tensor)] = tensor, _as(tensor, dtype, channels_last)
            setattr(module, name, made[id(tensor)][1])
    return net


def _as(tensor: torch.Tensor, dtype: torch.dtype | None, channels_last: bool) -> torch.Tensor:
    new = tensor.detach()
    if dtype and tensor.is_floating_point():
        new = new.to(dtype)
    if channels_last and tensor.dim() == 4:
        new = new.contiguous(memory_format=torch.channels_last)
    return nn.Parameter(new, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new


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
