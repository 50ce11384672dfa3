"""What torch.compile saves for backward, beside the same partitioner in the CUDA build of PyTorch on the rig."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from elbowroom.capture.virtual import VirtualDevice
from tests.fakecuda.rig import machine_of, rig_folder

CAPACITY_BYTES = 8 * 2**30
RIG = machine_of(CAPACITY_BYTES, 89, 128)
BLOCKS = 4

# The last layer saves what the blocks give, so that the forward holds it whatever a block saves.
TRAINING = """
import torch
from torch import nn
from torch.nn import functional as F

class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(256), nn.LayerNorm(256)
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        q, k, v = (each.view(8, 512, 4, 64).transpose(1, 2) for each in self.qkv(self.first(x)).split(256, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(8, 512, 256)
        x = x + F.dropout(self.out(y), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), 0.1, self.training)

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = (nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(64), nn.BatchNorm2d(64)

    def forward(self, x):
        return F.relu(self.last(self.two(F.relu(self.norm(self.one(x)), inplace=True))) + x)

blocks = [{block}() for _ in range({blocks})]
ends = (nn.Linear(256, 256), nn.Linear(256, 256))
if {block} is Residual:
    ends = (nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 8, 3))
net = nn.Sequential(ends[0], *blocks, ends[1]).cuda()
for block in blocks:
    block.compile(backend="{backend}")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    x = torch.zeros(8, 512, 256, device="cuda") if {block} is Attending else torch.zeros(16, 3, 64, 64, device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled={autocast}):
        made = net(x)
    held = torch.cuda.memory_stats()["requested_bytes.all.current"]
    made.float().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.timeout(0)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("block", ["Attending", "Residual"])
def test_compiled_blocks_save_what_they_save_in_the_cuda_build(tmp_path: Path, block: str, autocast: bool) -> None:
    rig = rig_folder()
    if rig is None:
        pytest.skip("ELBOWROOM_RIG is not set: no rig with the CUDA build of PyTorch")
    settings = {"block": block, "autocast": autocast, "blocks": BLOCKS}

    with VirtualDevice(RIG, None) as device:
        exec(TRAINING.format(backend="inductor", **settings), {})
    known = device.compiled.tell(300)

    eager, compiled = (
        _on_rig(rig, tmp_path, TRAINING.format(backend=backend, **settings))
        for backend in ("eager", "aot_eager_decomp_partition")
    )
    less_bytes = sum((each.eager_bytes - each.kept_bytes) * times for each, times in known.items())
    assert sum(known.values()) == BLOCKS
    assert less_bytes == pytest.approx(eager - compiled, rel=0.01, abs=2**16)


def _on_rig(rig: Path, folder: Path, training: str) -> int:
    """Bytes that are held after a forward there."""
    script = folder / "training.py"
    script.write_text(training + "print('@@', held)\n")
    environment: dict[str, Any] = {
        **os.environ,
        "FAKECUDA_CAPACITY": str(CAPACITY_BYTES),
        "FAKECUDA_CC": str(RIG.compute_capability),
        "FAKECUDA_SMS": str(RIG.multiprocessors),
        "FAKECUDA_BACKING": "0",
        "PYTHONPATH": "",
    }
    command = [str(rig / "fake_torch.sh"), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout.rpartition("@@")[2])
