"""litgpt's resource tables: LoRA and adapters on one A100 with 40 GB, most bytes allocated, in GB of 10**9.

tutorials/resource-tables.md (Lightning-AI/litgpt, 20 October 2023) gives hardware, precision (bf16-true) and data: the
longest example of Alpaca in each tokenizer's tokens, which the first batch holds. finetune/lora.py and finetune/
adapter.py give the rest: rank 8 on queries and values, dropout 0.05, AdamW, logits and loss in pieces of 128 tokens,
and what a model gives back in float32, as Fabric hands it on.

Rows of several GPUs are of one rank under Fabric's FSDPStrategy, which shards each block and runs it again in backward.
All micro-batches of a step but the last are under no_sync. So a rank holds the gradients of the whole model, those of
the frozen weights among them: they lie in one storage with those of LoRA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional

from benchmarks.accuracy.tables.decoder import Block, Decoder, Linear4, Shape, plain
from benchmarks.accuracy.tables.row import GB, Row, lines

RANK, SCALE, DROPOUT = 8, 2.0, 0.05
PROMPT, FIRST_LAYER = 10, 2
"""Learnt tokens of an adapter, and the first layer that has them."""
PIECE = 128

_NEOX: dict[str, Any] = {"gated": False, "rms": False, "bias": True, "parallel": True}
SHAPES = {
    "phi-1.5": Shape(
        layers=24,
        width=2048,
        heads=32,
        groups=32,
        mlp=8192,
        vocabulary=51200,
        rotary=32,
        **{"one_norm": True, "head_bias": True, **_NEOX},
    ),
    "StableLM Alpha": Shape(
        layers=16,
        width=4096,
        heads=32,
        groups=32,
        mlp=16384,
        vocabulary=50688,
        rotary=32,
        **_NEOX,
    ),
    "Llama 2 7 B": Shape(layers=32, width=4096, heads=32, groups=32, mlp=11008, vocabulary=32000, rotary=128),
    "Llama 2 13 B": Shape(layers=40, width=5120, heads=40, groups=40, mlp=13824, vocabulary=32000, rotary=128),
    "Falcon": Shape(
        layers=60,
        width=8192,
        heads=128,
        groups=8,
        mlp=32768,
        vocabulary=65024,
        rotary=64,
        **{**_NEOX, "bias": False},
    ),
}
TOKENS = {"phi-1.5": 1044, "StableLM Alpha": 1034, "Llama 2 7 B": 1304, "Llama 2 13 B": 1304, "Falcon": 1079}
WHY = {"Single-GPU Inference": "inference: there is no training step to capture"}
NOT_RUN = "its table has no figure: bitsandbytes' weights were not run under FSDP"
MICRO_BATCHES, SHORT = 3, 256
"""Of a step under FSDP, with more of which nothing more is held; and tokens of all but the first of them.

Only the first batch of a training has the longest example. What it holds as its backward ends, beside the gradients,
is the most.
"""


def rows(folder: Path) -> Iterator[Row]:
    """The rows of litgpt_resource_tables.csv; the second of its tables of adapters is of adapter_v2."""
    method, tables_of_adapters = "lora", 0
    for number, (_, section, *cells) in enumerate(lines(folder / "litgpt_resource_tables.csv")):
        if cells[0] == "Size":
            tables_of_adapters += "Adapter" in section
            method = "lora" if "LoRA" in section else f"adapter{'_v2' if tables_of_adapters == 2 else ''}"
            continue
        name = f"litgpt-{number}"
        if section in WHY:
            yield Row(id=name, family="litgpt", reason=WHY[section])
            continue
        size, model, quantization, batch, *_ = cells
        memory = cells[-2]
        if memory == "N/A":
            yield Row(id=name, family="litgpt", reason=NOT_RUN)
            continue
        model = f"{model} {size}" if model == "Llama 2" else model
        ranks = int(cells[-3].split(" x ")[0]) if " x " in cells[-3] else 1
        spec = {"model": model, "method": method, "quantization": quantization, "batch": int(batch)}
        many, bits = ranks > 1, "" if quantization == "None" else ", 4 bits"
        yield Row(
            id=f"{name}-{model}-{method}-{quantization}-b{batch}" + (f"-{ranks}-gpus" if many else ""),
            family=f"litgpt, {method}{bits}" + (", FSDP" if many else ""),
            model=model,
            gpu="a100-40gb",
            measured_bytes=None if memory == "OOM" else round(float(memory.split()[0]) * GB),
            rounded_to_bytes=GB // 100,
            spec=spec | ({"ranks": ranks} if many else {}),
        )


class QkvLora(nn.Module):
    """Queries, keys and values with low-rank additions to the queries and the values.

    The additions come from one grouped convolution of width 1 and are put into zeros, column by column.
    """

    def __init__(self, base: nn.Module, shape: Shape) -> None:
        super().__init__()
        self.base, self.drop = base, nn.Dropout(DROPOUT)
        self.values = shape.groups * shape.head
        self.down = nn.Parameter(torch.empty(2 * RANK, shape.width))
        self.up = nn.Parameter(torch.empty(shape.width + self.values, RANK))
        self.outputs = shape.width + 2 * self.values
        columns = torch.cat((torch.arange(shape.width), torch.arange(self.outputs - self.values, self.outputs)))
        self.register_buffer("columns", columns)

    def forward(self, x_BTD: Tensor) -> Tensor:
        known = self.base(x_BTD)
        low_BTR = functional.linear(self.drop(x_BTD), self.down)
        added = self.raised(low_BTR)
        zeros = added.new_zeros((*added.shape[:-1], self.outputs)).view(-1, self.outputs)
        padded = zeros.index_copy(1, self.columns, added.reshape(-1, added.shape[-1]))
        return known + padded.view(*added.shape[:-1], self.outputs) * SCALE

    def raised(self, low_BTR: Tensor) -> Tensor:
        """Equal parts go through one grouped convolution, unequal ones through two."""
        low_BRT = low_BTR.transpose(-2, -1)
        if self.up.shape[0] == 2 * self.values:
            return functional.conv1d(low_BRT, self.up.unsqueeze(-1), groups=2).transpose(-2, -1)
        parts = zip(low_BRT.chunk(2, 1), self.up.split((self.up.shape[0] - self.values, self.values)), strict=True)
        return torch.cat([functional.conv1d(low, up.unsqueeze(-1)) for low, up in parts], dim=1).transpose(-2, -1)


class Prompt(nn.Module):
    """What an adapter adds to attention: learnt tokens that every query also looks at, behind a gate."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(PROMPT, shape.width)
        self.gate = nn.Parameter(torch.zeros(1, 1, shape.heads, 1))

    def forward(self, block: Block, q_BHTE: Tensor) -> Tensor:
        prefix = self.tokens.weight.reshape(1, PROMPT, -1)
        _, k, v = block.split(block.qkv(prefix))
        k, v = (each.expand(q_BHTE.shape[0], -1, -1, -1) for each in (k, v))
        mask = torch.ones(q_BHTE.shape[-2], PROMPT, dtype=torch.bool, device=q_BHTE.device)
        y_BHTE = functional.scaled_dot_product_attention(q_BHTE, k, v, attn_mask=mask)
        return self.gate * y_BHTE.transpose(1, 2)


class Scaled(nn.Module):
    """A linear layer with a bias and a scale that are trained, the second form of adapters."""

    def __init__(self, base: nn.Module, outputs: int) -> None:
        super().__init__()
        self.base = base
        self.adapter_bias = nn.Parameter(torch.zeros(outputs))
        self.adapter_scale = nn.Parameter(torch.ones(outputs))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.adapter_scale * (self.base(x_BTD) + self.adapter_bias)


def trainable(name: str, method: str) -> bool:
    """Whether a method trains a parameter."""
    if method == "lora":
        return name.endswith((".qkv.down", ".qkv.up"))
    second = ("adapter_bias", "adapter_scale", "norm_1.", "norm_2.", "norm.weight", "norm.bias")
    return ".extra." in name or (method == "adapter_v2" and any(part in name for part in second))


def model_of(model: str, method: str, quantization: str) -> Decoder:
    """A model of the tables as a method fine-tunes it."""
    shape = SHAPES[model]

    def linear(inputs: int, outputs: int, bias: bool, place: str) -> nn.Module:
        if quantization == "None":
            made = plain(inputs, outputs, bias, place)
        else:
            made = Linear4(inputs, outputs, bias, twice=quantization.endswith("-dq"))
        if method == "adapter_v2":
            return Scaled(made, outputs)
        return QkvLora(made, shape) if method == "lora" and place == "qkv" else made

    def attention(number: int) -> Any:
        return (lambda: Prompt(shape)) if method != "lora" and number >= FIRST_LAYER else None

    net = Decoder(shape, TOKENS[model], linear, attention)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(trainable(name, method))
    return net


def whole_model(spec: Mapping[str, Any]) -> Decoder:
    """The model of a row before it is sharded."""
    return model_of(spec["model"], spec["method"], spec["quantization"])


class Pieces(nn.Module):
    """A model with its head and the pieces of its logits, so that one forward has all of it."""

    def __init__(self, net: Decoder) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids_BT: Tensor) -> list[Tensor]:
        return [self.net.head(piece) for piece in self.net.hidden(ids_BT).split(PIECE, dim=1)]


def sharded(net: Pieces) -> nn.Module:
    """The model as Fabric's FSDPStrategy wraps it in bf16-true."""
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    dist.init_process_group("nccl")
    whole = FullyShardedDataParallel(
        net,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=0,
        mixed_precision=half,
        use_orig_params=True,
        limit_all_gathers=True,
    )
    apply_activation_checkpointing(
        whole,
        checkpoint_wrapper_fn=partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
        check_fn=lambda module: isinstance(module, Block),
    )
    return whole


def train(*, model: str, method: str, quantization: str, batch: int, ranks: int = 1) -> None:
    """The steps of a row, without end: one micro-batch each on one GPU, as gradients and states are small."""
    torch.set_default_dtype(torch.bfloat16)
    net = Pieces(model_of(model, method, quantization))
    whole = sharded(net) if ranks > 1 else net.to("cuda")
    optimizer = torch.optim.AdamW([each for each in net.parameters() if each.requires_grad], lr=3e-4, weight_decay=0.01)
    longest, others = (torch.zeros(batch, tokens, dtype=torch.long) for tokens in (TOKENS[model], SHORT))
    while True:
        if isinstance(whole, FullyShardedDataParallel):
            with whole.no_sync():
                for number in range(MICRO_BATCHES - 1):
                    _micro_batch(whole, others if number else longest)
        _micro_batch(whole, longest if whole is net else others)
        optimizer.step()
        optimizer.zero_grad()


def _micro_batch(net: nn.Module, ids: Tensor) -> None:
    ids_BT, targets_BT = ids.to("cuda"), ids.to("cuda")
    logits = [piece.float() for piece in net(ids_BT)]
    logits[-1] = logits[-1][..., :-1, :]
    pieces = [each.reshape(-1, each.shape[-1]) for each in logits]
    wanted = [each.reshape(-1) for each in targets_BT[..., 1:].split(PIECE, dim=1)]
    losses = [functional.cross_entropy(a, b, reduction="none") for a, b in zip(pieces, wanted, strict=True)]
    (torch.cat(losses).mean() / 128).backward()
