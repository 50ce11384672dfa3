"""torchtitan's table of Llama 3.1 on 8 to 512 H100: reserved GiB of a rank; most of its rows are compiled.

benchmarks/llama3_h100_202412_torchtitan.md (pytorch/torchtitan, December 2024) gives the layout, the sequence length
and the local batch. Its code of that month gives the rest: each block is wrapped for selective checkpoints of its ops,
which keep every second matrix product and attention, then sharded by `fully_shard`, with bfloat16 weights and float32
reductions; AdamW, gradients clipped, and a loss of float32 logits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from benchmarks.accuracy.tables.row import GIB, Row, lines

COMPILED = "weights sharded by FSDP, with torch.compile, float8, tensor, context or pipeline parallelism"
LAYERS, WIDTH, HEADS, GROUPS, MLP, VOCABULARY = 32, 4096, 32, 8, 14336, 128256
HEAD = WIDTH // HEADS
TOKENS = 8192
ATTENTION = ("_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention")
ATTENTION += ("_scaled_dot_product_flash_attention_for_cpu",)  # for tools that count on the CPU
ALLOCATOR = "expandable_segments:True"
"""run_llama_train.sh sets it."""


def rows(folder: Path) -> Iterator[Row]:
    """The rows of torchtitan_llama3_h100_202412.csv."""
    for number, (_, setup, variant, *cells) in enumerate(lines(folder / "torchtitan_llama3_h100_202412.csv")):
        if variant != "FSDP":
            yield Row(id=f"torchtitan-{number}", family="torchtitan", reason=COMPILED)
            continue
        ranks = int(setup.split(" GPUs")[0].split()[-1])
        yield Row(
            id=f"torchtitan-{number}-{ranks}-gpus",
            family="torchtitan, FSDP",
            model="Llama 3.1 8B",
            gpu="h100-sxm",
            level="reserved",
            measured_bytes=round(float(cells[-1]) * GIB),
            rounded_to_bytes=GIB // 10,
            spec={"batch": 2, "ranks": ranks},
        )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(WIDTH, GROUPS * HEAD, bias=False) for _ in range(2))

    def forward(self, x_BTD: Tensor, turns: Tensor) -> Tensor:
        batch, tokens, _ = x_BTD.shape
        q, k, v = (w(x_BTD).view(batch, tokens, -1, HEAD) for w in (self.wq, self.wk, self.wv))
        q, k = turned(q, turns), turned(k, turns)
        k, v = (repeated(each) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # torch's choice at the time, which the checkpoints keep
            y_BHTE = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y_BHTE.transpose(1, 2).contiguous().view(batch, tokens, -1))


def turned(x_BTHE: Tensor, turns: Tensor) -> Tensor:
    """Rotary positions, in complex numbers."""
    pairs = torch.view_as_complex(x_BTHE.float().reshape(*x_BTHE.shape[:-1], -1, 2))
    shaped = turns[: x_BTHE.shape[1]].view(1, x_BTHE.shape[1], 1, -1)
    return torch.view_as_real(pairs * shaped).flatten(3).type_as(x_BTHE)


def repeated(x_BTGE: Tensor) -> Tensor:
    """Keys and values of a group for each of its heads."""
    batch, tokens, groups, head = x_BTGE.shape
    wide = x_BTGE[:, :, :, None, :].expand(batch, tokens, groups, HEADS // GROUPS, head)
    return wide.reshape(batch, tokens, HEADS, head)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, MLP, bias=False) for _ in range(2))
        self.w2 = nn.Linear(MLP, WIDTH, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x_BTD)) * self.w3(x_BTD))


class Norm(nn.Module):
    """RMS norm of plain ops in float32, which the settings for Llama 3 name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x_BTD: Tensor) -> Tensor:
        wide = x_BTD.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x_BTD) * self.weight


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = (Norm() for _ in range(2))

    def forward(self, x_BTD: Tensor, turns: Tensor) -> Tensor:
        h_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), turns)
        return h_BTD + self.feed_forward(self.ffn_norm(h_BTD))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.register_buffer("turns", torch.empty(2 * TOKENS, HEAD // 2, dtype=torch.complex64), persistent=True)
        self.layers = nn.ModuleDict({str(number): Block() for number in range(LAYERS)})
        self.norm = Norm()
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        h_BTD = self.tok_embeddings(ids_BT)
        for layer in self.layers.values():
            h_BTD = layer(h_BTD, self.turns)
        return self.output(self.norm(h_BTD))


def _every_second_product() -> Any:
    """Contexts of a selective checkpoint that keep attention and every second matrix product of a block."""
    kept = {getattr(torch.ops.aten, name).default for name in ("mm", *ATTENTION)}
    products: dict[bool, int] = defaultdict(int)

    def policy(context: Any, func: Any, *_: object, **__: object) -> CheckpointPolicy:
        products[context.is_recompute] += func == torch.ops.aten.mm.default
        keeps = func in kept and not (func == torch.ops.aten.mm.default and products[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def whole_model(_: Mapping[str, Any]) -> Llama:
    """The model of a row before it is sharded."""
    return Llama()


def batch_of(spec: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Tokens and labels of a step."""
    ids, labels = (torch.zeros(spec["batch"], TOKENS, dtype=torch.long) for _ in range(2))
    return ids, labels


def shard(model: Llama, mesh: Any) -> None:
    """Wrap and shard the model as its settings say."""
    how: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    }
    for number, block in model.layers.items():
        wrapped = checkpoint_wrapper(block, context_fn=_every_second_product, preserve_rng_state=False)
        model.layers[number] = wrapped
        fully_shard(wrapped, **how, reshard_after_forward=int(number) < LAYERS - 1)
    fully_shard(model, **how, reshard_after_forward=True)


def tracked(model: Llama, optimizer: torch.optim.Optimizer, inputs: tuple[Tensor, Tensor]) -> None:
    """One step."""
    ids, labels = inputs
    optimizer.zero_grad()
    logits = model(ids)
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
    del logits
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def train(*, batch: int, ranks: int) -> None:
    """The steps of a row, without end."""
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (ranks,))
    with torch.device("meta"):
        model = Llama()
    shard(model, mesh)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)
    while True:
        ids, labels = (each.to("cuda") for each in batch_of({"batch": batch}))
        tracked(model, optimizer, (ids, labels))
