"""torchtune's tables: one row was neither compiled nor of sequences whose lengths are not given.

README.md (pytorch/torchtune, end of 2024), "Optimization flags": Llama 3.2 3B, full_finetune_single_device, batch 2,
4096 tokens, bfloat16, A100; most active bytes, in GiB. In the row "+ Packed Dataset" every sequence is full. AdamW of
torch, fused, is taken, and causal attention without a mask in the place of flex_attention, which saves the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.accuracy.tables.decoder import Decoder, Shape, plain
from benchmarks.accuracy.tables.row import GIB, Row, lines

SHAPE = Shape(
    layers=28,
    width=3072,
    heads=24,
    groups=8,
    mlp=8192,
    vocabulary=128256,
    rotary=128,
    scaled_in_float32=False,
)
TOKENS, BATCH = 4096, 2
COMPILED = "torch.compile: what is saved and fused is inductor's choice, which a capture leaves out"
SHORT = "sequences of a data set, whose lengths are not given"


def rows(folder: Path) -> Iterator[Row]:
    """The rows of torchtune_readme.csv."""
    for number, (_, _section, *cells) in enumerate(lines(folder / "torchtune_readme.csv")):
        name = f"torchtune-{number}"
        if cells[0] in ("Model", "Technique"):
            continue
        if "Packed Dataset" in cells[0]:
            kind = {"family": "torchtune", "model": "Llama 3.2 3B", "gpu": "a100-80gb", "rounded_to_bytes": GIB // 10}
            yield Row(id=name, **kind, measured_bytes=round(float(cells[1]) * GIB), spec={"tokens": TOKENS})
        else:
            yield Row(id=name, family="torchtune", reason=SHORT if cells[0] == "Baseline" else COMPILED)


def train(*, tokens: int) -> None:
    """The steps of the row, without end."""
    torch.set_default_dtype(torch.bfloat16)
    net = Decoder(SHAPE, tokens, plain)
    net.head.weight = net.embedding.weight
    net.to("cuda")
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-5, fused=True)
    ids = torch.zeros(BATCH, tokens, dtype=torch.long)
    while True:
        _loss(net, ids.to("cuda"), ids.to("cuda")).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _loss(net: Decoder, ids_BT: Tensor, labels_BT: Tensor) -> Tensor:
    logits_BTV = net.head(net.hidden(ids_BT)).float()
    ignored_B1 = torch.full((BATCH, 1), -100, device="cuda", dtype=torch.long)
    wanted_BT = torch.hstack((labels_BT[..., 1:], ignored_B1))
    return functional.cross_entropy(logits_BTV.reshape(-1, logits_BTV.shape[-1]), wanted_BT.reshape(-1))
