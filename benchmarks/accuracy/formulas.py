"""A case of the corpus by the tools that count by formula: accelerate's estimate-memory, and torchinfo's summary.

Neither knows an allocator: their one figure stands for the allocated and for the reserved peak alike.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from benchmarks.accuracy.memtracker import AMP, built

NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def accelerate(*, spec: dict[str, Any], data: str) -> dict[str, Any]:
    """What `accelerate estimate-memory` says of training with Adam: the largest of its four stages."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    from tests.fakecuda.jobs import STATIC_DTYPE

    sys.path.append(data)
    if "gan" in spec:
        return {"error": "two models a step: not written for this tool"}
    with torch.device("meta"):
        net = built(spec["model"])
    precision = spec.get("precision", "fp32")
    dtype = STATIC_DTYPE.get(precision) or AMP.get(precision)
    size_bytes, _ = calculate_maximum_sizes(net)
    return _both(max(estimate_training_usage(size_bytes, NAMES.get(dtype, "float32")).values()))


def torchinfo(*, spec: dict[str, Any], data: str) -> dict[str, Any]:
    """torchinfo's "Estimated Total Size": input, parameters, and twice the outputs of all layers."""
    from torchinfo import summary

    from tests.fakecuda.jobs import STATIC_DTYPE, tensor

    sys.path.append(data)
    torch.set_num_threads(1)
    if "gan" in spec:
        return {"error": "two models a step: not written for this tool"}
    dtype = STATIC_DTYPE.get(spec.get("precision", "fp32"))
    with torch.device("meta"):
        net = built(spec["model"]).to(dtype)
        inputs = {name: tensor(spec, each, dtype) for name, each in spec["inputs"].items()}
    given = inputs if spec.get("call") == "kwargs" else [*inputs.values()]
    found = summary(net, input_data=given, verbose=0, mode="train", device="meta")
    return _both(found.total_input + found.total_output_bytes + found.total_param_bytes)


def _both(size_bytes: float) -> dict[str, Any]:
    return {"simulated": {"allocated": round(size_bytes), "reserved": round(size_bytes)}}
