"""Ways to train a model whose weights need not all be on the device, and the models: they run inside the rig.

Each way gets a model in RAM, and returns what trains one step. Shape letters: N samples, T tokens, D width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import elbowroom as er
from benchmarks.weights.fine_tuning import Shape, made

Step = Callable[[], Any]
Loss = Callable[[nn.Module], Tensor]
ALLOW: Any = ("swap", "state", "gradient", "parameter")
"""Means of elbowroom here: kernels do nothing on the rig, so no recompute gives again what was there."""
DECODERS = {
    "gpt2": Shape(width=1024, hidden=4096, depth=8, heads=16, key_heads=16, words=16384, tokens=256, gated=False),
    "llama": Shape(width=2048, hidden=5632, depth=6, heads=16, key_heads=4, words=8192, tokens=256, gated=True),
}
MLP_WIDTH, MLP_DEPTH, MLP_ROWS = 4096, 12, 64


def model_of(name: str) -> tuple[nn.Sequential, Loss]:
    """Make a model in RAM, of any numbers, and its loss on a fixed batch on the device."""
    if name == "mlp":
        x_ND = torch.zeros(MLP_ROWS, MLP_WIDTH, device="cuda")
        with torch.device("meta"):
            layers = nn.Sequential(
                *(nn.Sequential(nn.Linear(MLP_WIDTH, MLP_WIDTH), nn.GELU()) for _ in range(MLP_DEPTH))
            )
        return layers.to_empty(device="cpu"), lambda model: model(x_ND).square().mean()
    shape = DECODERS[name]
    torch.set_default_dtype(torch.bfloat16 if shape.gated else torch.float32)
    with torch.device("meta"):
        model: Any = made(shape)
    torch.set_default_dtype(torch.float32)
    text_NT = torch.zeros(1, shape.tokens + 1, dtype=torch.long, device="cuda")

    def loss(model: nn.Module) -> Tensor:
        return functional.cross_entropy(model(text_NT[:, :-1]).flatten(0, 1), text_NT[:, 1:].flatten())

    return model.to_empty(device="cpu"), loss


def largest_modules(model: nn.Sequential) -> int:
    """Return the bytes of weights, gradients and the two states of AdamW of the two largest layers with weights."""
    layers = [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
    sizes = sorted((sum(p.nbytes for p in each.parameters(recurse=False)) for each in layers), reverse=True)
    return 4 * sum(sizes[:2])


def _stepped(optimizer: Any, backward: Step) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        backward()
        optimizer.step()

    return step


def plain(model: nn.Sequential, loss: Loss) -> Step:
    """All of it on the device."""
    model = model.cuda()
    return _stepped(torch.optim.AdamW(model.parameters()), lambda: loss(model).backward())


def fsdp2(model: nn.Sequential, loss: Loss) -> Step:
    """FSDP2 with CPUOffloadPolicy on one rank: weights come for each block, the optimizer steps on the host.

    The group is one without a network: a collective of one rank has nothing to send.
    """
    from torch.distributed import init_process_group
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    for layer in model:
        fully_shard(layer, offload_policy=CPUOffloadPolicy())
    sharded: Any = fully_shard(model, offload_policy=CPUOffloadPolicy())
    return _stepped(torch.optim.AdamW(model.parameters()), lambda: loss(sharded).backward())


def torchao(model: nn.Sequential, loss: Loss, *, gradients: bool = False) -> Step:
    """torchao's CPUOffloadOptimizer: weights stay, the optimizer steps on the host.

    Args:
        model: the model.
        loss: its loss.
        gradients: whether gradients leave as well.
    """
    from torchao.optim import CPUOffloadOptimizer  # pyright: ignore[reportMissingImports]

    model = model.cuda()
    optimizer: Any = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, offload_gradients=gradients)
    return _stepped(optimizer, lambda: loss(model).backward())


def deepspeed(model: nn.Sequential, loss: Loss) -> Step:
    """ZeRO-3 of DeepSpeed, weights and optimizer on the host, on one rank, with torch's AdamW.

    Its buckets are the smallest that it works with: with its own sizes it holds as much as plain training.
    """
    import deepspeed as ds  # pyright: ignore[reportMissingImports]

    os.environ.update(LOCAL_RANK="0", RANK="0", WORLD_SIZE="1", DS_ACCELERATOR="cuda")
    from torch.distributed import (
        HashStore,  # pyright: ignore[reportPrivateImportUsage]
        init_process_group,
    )
    from torch.testing._internal.distributed import fake_pg as fake_pg

    init_process_group("cpu:gloo,cuda:fake", store=HashStore(), rank=0, world_size=1)
    host, largest = {"device": "cpu", "pin_memory": True}, max(p.numel() for p in model.parameters())
    least = {"reduce_bucket_size": largest, "stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 0}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": next(model.parameters()).dtype == torch.bfloat16},
        "zero_optimization": {"stage": 3, "offload_param": host, "offload_optimizer": host, **least},
    }
    optimizer = torch.optim.AdamW(model.parameters())
    engine: Any = ds.initialize(model=model, optimizer=optimizer, config=config)[0]

    def step() -> None:
        engine.backward(loss(engine))
        engine.step()

    return step


PEERS: dict[str, Callable[[nn.Sequential, Loss], Step]] = {
    "plain": plain,
    "FSDP2, CPUOffloadPolicy": fsdp2,
    "torchao, CPUOffloadOptimizer": torchao,
    "torchao, gradients too": partial(torchao, gradients=True),
    "DeepSpeed ZeRO-3, offloaded": deepspeed,
}
OURS = "elbowroom"


@contextmanager
def trained(way: str, name: str, budget_bytes: int | None) -> Iterator[Step]:
    """Yield what trains one step of a model in a way; `budget_bytes` is that of elbowroom."""
    model, loss = model_of(name)
    if way != OURS:
        yield PEERS[way](model, loss)
        return
    from tests.fakecuda.within import trust

    trust()
    with er.within(f"device={budget_bytes}", allow=ALLOW):
        yield plain(model, loss)


def versions() -> dict[str, str]:
    """Return the versions of the peers that are installed."""
    found: dict[str, str] = {}
    for package in ("torch", "torchao", "deepspeed"):
        with suppress(ModuleNotFoundError):
            found[package] = version(package)
    return found
