"""A transformer of GPT-2 small's shape: 12 layers, 768 wide, 12 heads, pre-norm, tied head.

It reads bytes of Python's own sources. The vocabulary is those 256 bytes and not GPT-2's 50,257 tokens, so that the
head does not dominate a short sequence; the layers and their 85 million parameters are as in GPT-2 small.
Shapes: B batch, T positions, C width, H heads, K head width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.job import Batch, Job, apply_block, python_source_bytes, training_step

DESCRIPTION = "GPT-2 small (12 layers, 768 wide, 12 heads; 256 bytes as vocabulary), AdamW, Python's sources, 1 x 512"
BATCH = 1
LENGTH = 512
LAYERS = 12
WIDTH = 768
HEADS = 12
VOCABULARY = 256


class Attention(nn.Module):
    """Causal self-attention, [B, T, C] to [B, T, C]."""

    def __init__(self) -> None:
        super().__init__()
        self.project_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.project_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BTC: Tensor) -> Tensor:
        heads_BTHK = (t.unflatten(-1, (HEADS, -1)) for t in self.project_in(x_BTC).chunk(3, dim=-1))
        q_BHTK, k_BHTK, v_BHTK = (t.transpose(1, 2) for t in heads_BTHK)
        y_BHTK = functional.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        return self.project_out(y_BHTK.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    """Attention and a four times wider feed-forward network, both on a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm_feed = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attention(self.norm_attention(x_BTC))
        return x_BTC + self.feed(self.norm_feed(x_BTC))


class Gpt2(nn.Module):
    """Tokens [B, T] to scores of the next token [B, T, V]."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        y_BTC = self.tokens(tokens_BT) + self.positions.weight
        for layer in self.layers:
            y_BTC = apply_block(layer, y_BTC, checkpointed=self.checkpointed)
        return functional.linear(self.norm(y_BTC), self.tokens.weight)


def build(seed: int, checkpointed: bool = False) -> Job:
    """A GPT-2, its optimizer and eight pieces of text, all from `seed`."""
    torch.manual_seed(seed)
    pieces_NBT = python_source_bytes(8 * BATCH * (LENGTH + 1)).view(8, BATCH, LENGTH + 1)
    batches = tuple((piece_BT[:, :-1].contiguous(), piece_BT[:, 1:].contiguous()) for piece_BT in pieces_NBT)
    model = Gpt2(checkpointed=checkpointed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def loss_of(batch: Batch) -> Tensor:
        tokens_BT, following_BT = batch
        return functional.cross_entropy(model(tokens_BT).flatten(0, 1), following_BT.flatten())

    step = training_step(model, optimizer, batches, loss_of)
    return Job(model=model, optimizer=optimizer, batches=batches, step=step, blocks=tuple(model.layers))
