"""What every benchmark case hands over, and the pieces that the cases share."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Batch = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training that is ready to run.

    Attributes:
        model: its parameters and buffers.
        optimizer: steps the model's parameters.
        batches: the inputs, used in turn.
        step: runs one training step to its end and returns the loss.
        blocks: the modules that torch.utils.checkpoint is put around in the checkpointed variant.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: tuple[Batch, ...]
    step: Callable[[], float]
    blocks: tuple[nn.Module, ...]


def apply_block(block: nn.Module, x: Tensor, *, checkpointed: bool) -> Tensor:
    """`block(x)`, recomputed in backward where `checkpointed`."""
    if not checkpointed:
        return block(x)
    result: Tensor = checkpoint(block, x, use_reentrant=False)
    return result


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: tuple[Batch, ...],
    loss_of: Callable[[Batch], Tensor],
) -> Callable[[], float]:
    """The loop body that the cases share.

    Gradients are zeroed in place, not freed, so that they belong to what is allocated before the step and a fraction
    of the activation peak is a fraction of activations alone (docs/benchmarks.md).
    """
    count = 0

    def step() -> float:
        nonlocal count
        batch = batches[count % len(batches)]
        count += 1
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    model.train()
    return step


def python_source_bytes(count: int) -> Tensor:
    """The first `count` bytes of the standard library's own sources, files in name order, as int64 [count].

    Text that every Python carries. Another version of Python has other text, so results name the version.
    """
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= count:
            return torch.frombuffer(text[:count], dtype=torch.uint8).long()
    raise ValueError(f"asked for {count} bytes of Python sources, the standard library holds {len(text)}: ask for less")
