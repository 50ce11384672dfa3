"""Lost CUDA device: it no longer answers, and the run ends without it.

After a hardware fault or an access to invalid memory, every CUDA call of the process may return the same error. Calls
that free memory do so too. What was on the device is gone. So nothing is brought back and nothing waited for when a run
ends. Its threads, its file and its memory on the host are given back as usual.
"""

from __future__ import annotations

import torch

from elbowroom.engine.executor import Executor
from elbowroom.errors import DeviceLost


def loss_of(executor: Executor, steps: int) -> DeviceLost | None:
    """Return the error to raise if the device of a run is lost; None if it answers.

    A lost device is asked for nothing from then on.

    Args:
        executor: the executor of the run.
        steps: number of steps of the training that have ended.
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
    """Wait for a device, and return CUDA's error if there is one. While CUDA captures a graph, return None at once."""
    try:
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(device)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None
