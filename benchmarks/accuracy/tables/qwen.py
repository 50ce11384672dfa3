"""Qwen's table of fine-tuning: LoRA on one A100 with 80 GB by length of sequence, in GB; what was read is not said.

README.md and finetune.py (QwenLM/Qwen, end of 2023) give torch 2.0, CUDA 11.8, flash attention 2, batch 1, 8 batches a
step, padding to the length, rank 64 on all linear layers of a block, AdamW of torch, gradient norm 1, bfloat16 weights
under autocast; the script for one GPU recomputes every block. "LoRA (emb)" also trains copies of embedding and head,
beside the frozen ones. It is taken that GB is 10**9 bytes, as the weights in the same README's table of inference say,
and that nvidia-smi was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.accuracy.tables.decoder import Decoder, Shape, plain
from benchmarks.accuracy.tables.row import GB, Row, lines

RANK, SCALE, DROPOUT = 64, 0.25, 0.05
MICRO_BATCHES = (1, 2)
"""In the first step, which makes the optimizer's state, and in later ones: eight hold no more than two."""
TRAINED = {"LoRA": False, "LoRA (emb)": True}
WHY = {
    "Q-LoRA": "weights in auto-gptq's int4 kernels under DeepSpeed's ZeRO-2 engine: what both hold beside is not known",
    "Full-parameter": "DeepSpeed's ZeRO-3 engine, whose buckets and pinned pools are its own",
    "LoRA (multinode)": "several GPUs under DeepSpeed's ZeRO engine, and one sum over them",
    "LoRA + Deepspeed Zero3": "several GPUs under DeepSpeed's ZeRO-3 engine, and one sum over them",
}


def _shape(layers: int, width: int, heads: int, mlp: int) -> Shape:
    sizes = {"layers": layers, "width": width, "heads": heads, "groups": heads, "mlp": mlp}
    return Shape(**sizes, vocabulary=151936, rotary=128, qkv_bias=True, scaled_in_float32=False)


SHAPES = {
    "1.8B": _shape(24, 2048, 16, 5504),
    "7B": _shape(32, 4096, 32, 11008),
    "14B": _shape(40, 5120, 40, 13696),
}


class Lora(nn.Module):
    def __init__(self, base: nn.Module, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base, self.drop = base.requires_grad_(False), nn.Dropout(DROPOUT)
        self.down, self.up = nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        known = self.base(x_BTD)
        known += self.up(self.down(self.drop(x_BTD))) * SCALE
        return known


def rows(folder: Path) -> Iterator[Row]:
    """The rows of qwen_finetune_profile.csv."""
    for size, method, _nodes, _gpus, tokens, gigabytes, *_ in lines(folder / "qwen_finetune_profile.csv"):
        name = f"qwen-{size}-{method}-{tokens}"
        if method not in TRAINED:
            yield Row(id=name, family="Qwen", reason=WHY[method])
            continue
        spec = {"size": size, "tokens": int(tokens), "embeddings": TRAINED[method]}
        measured = round(float(gigabytes) * GB)
        kind = {"family": f"Qwen, {method}", "model": size, "gpu": "a100-80gb", "level": "device"}
        yield Row(id=name, **kind, measured_bytes=measured, rounded_to_bytes=GB // 10, spec=spec)


def train(*, size: str, tokens: int, embeddings: bool) -> None:
    """The steps of a row, without end."""
    torch.set_default_dtype(torch.bfloat16)
    net = model_of(size, tokens, embeddings).to("cuda")
    trained = [each for each in net.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, weight_decay=0.1)
    ids = torch.zeros(1, tokens, dtype=torch.long)
    for micro_batches in chain(MICRO_BATCHES, repeat(MICRO_BATCHES[-1])):
        for _ in range(micro_batches):
            _micro_batch(net, ids)
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        net.zero_grad()


def model_of(size: str, tokens: int, embeddings: bool) -> Decoder:
    """A model of the table, with what it trains."""

    def linear(inputs: int, outputs: int, bias: bool, place: str) -> nn.Module:
        made = plain(inputs, outputs, bias, place)
        return made if place == "head" else Lora(made, inputs, outputs)

    net = Decoder(SHAPES[size], tokens, linear, recomputed=True)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.endswith((".down.weight", ".up.weight")) and ".base." not in name)
    if embeddings:
        net.frozen = nn.ModuleList((net.embedding, net.head))
        net.embedding = nn.Embedding(*net.embedding.weight.shape)
        net.head = nn.Linear(*reversed(net.frozen[1].weight.shape), bias=False)
    return net


def _micro_batch(net: Decoder, ids: Tensor) -> None:
    ids_BT, labels_BT = ids.to("cuda"), ids.to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = _loss(net, ids_BT, labels_BT)
    (loss / 8).backward()


def _loss(net: Decoder, ids_BT: Tensor, labels_BT: Tensor) -> Tensor:
    logits_BTV = net.head(net.hidden(ids_BT))
    shifted = logits_BTV[..., :-1, :].contiguous()
    loss = functional.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels_BT[..., 1:].contiguous().view(-1))
    logits_BTV.float()  # accelerate hands outputs on in float32
    return loss
