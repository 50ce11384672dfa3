"""Outside probe: measure in a child process the memory of a process on a GPU outside torch's allocator.

The child makes a context and takes a small training step with the usual libraries: convolutions (cuDNN), products
(cuBLAS), attention, norms and an optimizer, in float32 and under autocast. Before and after the step it asks the driver
(NVML) for its memory. If the driver does not report single processes, the growth of all processes together counts.
Limits: kernels that only a larger job loads, and buffers of NCCL, are not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys

from elbowroom.errors import UsageError
from elbowroom.hardware import nvml
from elbowroom.hardware.outside_measured import MeasuredOutside

LIMIT_S = 300


def measure_outside() -> MeasuredOutside:
    """Measure it on the first visible GPU.

    Raises:
        UsageError: torch sees no GPU, the driver does not answer, or the child process failed.
    """
    command = [sys.executable, "-m", "elbowroom.capture.outside_probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"machine: the measurement on the GPU took longer than {LIMIT_S} s; wait until nobody else uses it"
        ) from None
    if done.returncode == 0:
        context_bytes, outside_bytes = json.loads(done.stdout.splitlines()[-1])
        return MeasuredOutside(context_bytes, outside_bytes)
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise UsageError(
        f"machine: what lies outside the allocator could not be measured: {said}; needed are a build of torch for CUDA "
        "and a driver that says what a GPU holds; install them, or leave --measure out"
    )


def main() -> None:
    """Measure in the child process, and write both figures as JSON."""
    import torch

    before = nvml.used()
    if before is None or not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device" if before is not None else "the driver (NVML) does not answer")
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    context_bytes = _held(before)
    for dtype in (None, torch.float16):
        _step(dtype)
    torch.cuda.synchronize()
    sys.stdout.write(f"{json.dumps([context_bytes, max(context_bytes, _held(before))])}\n")


def _held(before: nvml.Used) -> int:
    """Return the bytes of this process less those of torch's allocator."""
    import torch

    now = nvml.used()
    if now is None:
        sys.exit("the driver (NVML) does not answer any more")
    taken_bytes = now.own_bytes if now.own_bytes is not None else now.all_bytes - before.all_bytes
    return max(0, taken_bytes - torch.cuda.memory_reserved())


def _step(dtype: object) -> None:
    """Take one training step; under autocast to a dtype, if one is given."""
    import torch
    from torch import nn
    from torch.nn import functional

    net = nn.ModuleDict(
        {
            "first": nn.Conv2d(3, 64, 3, padding=1),
            "norm": nn.BatchNorm2d(64),
            "second": nn.Conv2d(64, 128, 3, stride=2, padding=1),
            "block": nn.TransformerEncoderLayer(128, 4, 256, batch_first=True),
            "last": nn.Linear(128, 10),
        }
    ).to("cuda")
    optimizer = torch.optim.AdamW(net.parameters())
    images, labels = torch.randn(8, 3, 32, 32, device="cuda"), torch.randint(10, (8,), device="cuda")
    with torch.autocast("cuda", dtype if isinstance(dtype, torch.dtype) else torch.float16, enabled=dtype is not None):
        maps = net["second"](functional.relu(net["norm"](net["first"](images))))
        loss = functional.cross_entropy(net["last"](net["block"](maps.flatten(2).transpose(1, 2)).mean(1)), labels)
    loss.backward()
    optimizer.step()


if __name__ == "__main__":
    main()
