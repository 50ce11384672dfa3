"""Runs inside the rig: a convolution net that may choose the algorithms of its layers, on the CUDA build of PyTorch.

Kernels do nothing, so times mean nothing; memory and the order of things are true. stdin: one JSON object {"share": of
the keep-all reserved peak, "fastest": name of the choice that is to be taken for the fastest}. Prints one JSON object
after "@@".
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from torch.backends import cudnn

from elbowroom.capture import layers
from elbowroom.capture.layers import Cost, LayerCall
from elbowroom.engine.conv_backends import CUDNN
from elbowroom.run import conv_algorithms as layer_choices
from tests.fakecuda.within import plain, within
from tests.fakecuda.within_models import MODELS


def settings() -> tuple[Any, ...]:
    """What is set now, of all that a choice sets."""
    return tuple(getattr(cudnn, name) for name in CUDNN)


def main() -> None:
    spec = json.load(sys.stdin)
    measure = layers.measure
    costs: list[tuple[LayerCall, tuple[Cost, ...]]] = []

    def measured(call: LayerCall) -> tuple[Cost, ...]:
        """Memory as it is; times as the test wants them."""
        found = measure(call)
        costs.append((call, found))
        times = {cost.name: 1000 if cost.name == spec["fastest"] else 10_000 for cost in found}
        return tuple(replace(cost, forward_ns=times[cost.name], backward_ns=times[cost.name]) for cost in found)

    layer_choices.measure = measured
    step = MODELS["residual net"]()
    _, reserved = plain(step)
    before = settings()
    # the planner that needs no solver, which the rig has not
    means: Any = {"allow": ["swap", "algorithm"], "planner": "vdnn", "options": {"policy": "conv"}}
    run = within(step, int(spec["share"] * reserved), 6, **means)
    found = {
        "before": before,
        "after": settings(),
        "scratch_bytes": [
            [call.shape, {cost.name: [cost.forward_bytes, cost.backward_bytes] for cost in made}]
            for call, made in costs
        ],
        "run": run,
    }
    print("@@" + json.dumps(found))


if __name__ == "__main__":
    main()
