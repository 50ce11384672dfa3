"""Qwen's table of fine-tuning: LoRA on one A100 with 80 GB by length of sequence, in "G"; what was read is not said.

README.md and finetune.py (QwenLM/Qwen, end of 2023) give torch 2.0, CUDA 11.8, flash attention 2, batch 1, 8 batches a
step, padding to the length, rank 64 on all linear layers of a block, AdamW of torch, gradient norm 1, bfloat16 weights
under autocast; the script for one GPU recomputes every block. "LoRA (emb)" also trains copies of embedding and head,
beside the frozen ones. The README asks for peft below 0.6 with torch 2.0: LoRA's weights are float32 there, as is what
they are given (`update_layer` and `Linear.forward` of peft 0.5.0; from 0.6.0 on they have the base layer's dtype).

It is taken that nvidia-smi was read, which prints MiB, and that a G is 1000 of them: 162.0 G on two GPUs with 81,920
MiB is more than GiB allow. With 10**9 bytes what lies outside the allocator would fall as sequences grow. Kernels were
loaded all at once: the README says CUDA 11.4 of other runs of PyTorch 2.0.1 on that GPU, for which there are builds for
11.7 and 11.8 only, so that is the driver's, and loading at the first use needs driver 515 (CUDA 11.7).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.accuracy.tables.decoder import Decoder, Shape, plain
from benchmarks.accuracy.tables.row import MIB, Row, lines

RANK, SCALE, DROPOUT = 64, 0.25, 0.05
MICRO_BATCHES = 2
"""Eight hold no more than two, and leave no other holes; the first makes gradients, later ones add to them."""
LOADING = "eager"
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
        self.down = nn.Linear(inputs, RANK, bias=False, dtype=torch.float32)
        self.up = nn.Linear(RANK, outputs, bias=False, dtype=torch.float32)

    def forward(self, x_BTD: Tensor) -> Tensor:
        known = self.base(x_BTD)
        known += self.up(self.down(self.drop(x_BTD.float()))) * SCALE
        return known


class AdamW(torch.optim.AdamW):
    """Takes the memory of torch 2.0's: what it divides by is a list beside the roots, to which later ones add in place.

    As in its `_multi_tensor_adamw`, lists of one dtype are held until those of the next are made.
    """

    @torch.no_grad()
    def step(self, *_: None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for each in self.param_groups[0]["params"]:
            if not self.state[each]:
                self.state[each] = {"exp_avg": torch.zeros_like(each), "exp_avg_sq": torch.zeros_like(each)}
            kinds.setdefault(each.dtype, []).append(each)
        for weights in kinds.values():
            means, squares = ([self.state[each][name] for each in weights] for name in ("exp_avg", "exp_avg_sq"))
            roots = [each.sqrt() for each in squares]
            divisors = [each + 1e-8 for each in roots]
            for weight, mean, divisor in zip(weights, means, divisors, strict=True):
                weight.addcdiv_(mean, divisor)


def rows(folder: Path) -> Iterator[Row]:
    """The rows of qwen_finetune_profile.csv."""
    for size, method, _nodes, _gpus, tokens, gigabytes, *_ in lines(folder / "qwen_finetune_profile.csv"):
        name = f"qwen-{size}-{method}-{tokens}"
        if method not in TRAINED:
            yield Row(id=name, family="Qwen", reason=WHY[method])
            continue
        spec = {"size": size, "tokens": int(tokens), "embeddings": TRAINED[method]}
        measured = round(1000 * float(gigabytes)) * MIB
        kind = {"family": f"Qwen, {method}", "model": size, "gpu": "a100-80gb", "level": "device"}
        yield Row(id=name, **kind, measured_bytes=measured, rounded_to_bytes=100 * MIB, spec=spec)


def train(*, size: str, tokens: int, embeddings: bool) -> None:
    """The steps of a row, without end."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        net = model_of(size, tokens, embeddings)
    net.to_empty(device="cuda")
    trained = [each for each in net.parameters() if each.requires_grad]
    optimizer = AdamW(trained, lr=3e-4, weight_decay=0.1)
    ids = torch.zeros(1, tokens, dtype=torch.long)
    while True:
        for _ in range(MICRO_BATCHES):
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
    loss, logits_BTV = _outputs(net, ids_BT, labels_BT)
    logits_BTV = logits_BTV.float()  # accelerate hands outputs on in float32
    return loss


def _outputs(net: Decoder, ids_BT: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
    logits_BTV = net.head(net.hidden(ids_BT))
    shifted = logits_BTV[..., :-1, :].contiguous()
    loss = functional.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels_BT[..., 1:].contiguous().view(-1))
    return loss, logits_BTV
