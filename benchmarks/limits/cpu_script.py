"""One training of benchmarks.limits.cpu, as a script: `python -m benchmarks.limits.cpu_script NAME STEPS [checkpoint]`.

It knows nothing of elbowroom, and prints each loss in full and a digest of the weights.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.cases import load_case
from benchmarks.job import apply_block

SEED = 5
Step = tuple[nn.Module, Callable[[], float]]


class Block(nn.Module):
    """A residual block of two convolutions, [N, C, H, W] to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm_first, self.norm_second = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(x + self.norm_second(self.second(self.norm_first(self.first(x)).relu())))


class Deep(nn.Module):
    """A residual net of 300 convolutions, whose saved storages have 512 KiB each."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.ModuleList(Block(32) for _ in range(149))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = apply_block(block, x, checkpointed=self.checkpointed)
        return self.head(x.mean((2, 3)))


def deep(*, checkpointed: bool) -> Step:
    torch.manual_seed(SEED)
    model = Deep(checkpointed=checkpointed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    return model, lambda: stepped(optimizer, lambda: nn.functional.cross_entropy(model(images), labels))


def swin(*, checkpointed: bool) -> Step:
    from monai.networks.nets.swin_unetr import SwinUNETR

    torch.manual_seed(SEED)
    model = SwinUNETR(in_channels=1, out_channels=2, feature_size=12, spatial_dims=3, use_checkpoint=checkpointed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    volume, labels = torch.randn(1, 1, 64, 64, 64), torch.randint(0, 2, (1, 64, 64, 64))
    return model, lambda: stepped(optimizer, lambda: nn.functional.cross_entropy(model(volume), labels))


def stepped(optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> float:
    """One step; returns its loss."""
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()
    optimizer.step()
    return loss.item()


def built(name: str, *, checkpointed: bool) -> Step:
    """The model of a name, and what trains it for one step."""
    if name in OWN:
        return OWN[name](checkpointed=checkpointed)
    job = load_case(name).build(SEED, checkpointed)
    return job.model, job.step


OWN: dict[str, Callable[..., Step]] = {"resnet300": deep, "swin_unetr": swin}


def main() -> None:
    name, steps, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    model, step = built(name, checkpointed=rest == ["checkpoint"])
    for _ in range(int(steps)):
        print("loss", step().hex(), flush=True)
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("weights", digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
