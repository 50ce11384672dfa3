"""A CUDA device that does not answer any more: what is left to do in its process.

After some errors (a fault of the hardware, an access to memory that is not there) every call of CUDA of the process
returns the same error, those that give memory back too. What was on the device is gone. So nothing is brought back and
nothing waited for when a run ends; its threads, its file and its memory on the host are given back as ever.
"""

from __future__ import annotations

import torch

from elbowroom.engine.executor import Executor
from elbowroom.errors import DeviceLost


def loss_of(executor: Executor, steps: int) -> DeviceLost | None:
    """What to raise if the device of a run is lost, of which nothing is asked from then on; None where it answers.

    Args:
        executor: of the run.
        steps: how many steps of the training have ended.
    """
    streams = executor.tier.streams
    answer = None if streams is None else _answer(executor.device)
    if streams is None or answer is None:
        return None
    streams.lost = True
    return DeviceLost(
        f"device {executor.device}: given a run of {steps} steps, after which it is lost: CUDA answers every call of "
        f"this process with an error ({answer}). What it held is gone, weights too. Allowed is a new "
        "process: start the training again from its last saved state; if that happens again, look at the device "
        "(nvidia-smi -q, Xid in dmesg)"
    )


def _answer(device: torch.device) -> str | None:
    """What CUDA says instead of waiting for a device; None where it waits, or may not as it records a graph."""
    try:
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(device)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None
