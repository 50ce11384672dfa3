"""An LSTM language model on bytes of Python's own sources, with truncated backpropagation through time.

The text runs on from step to step: each step starts with the hidden state that the step before ended with, detached.
Shapes: B batch, T positions, C width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.job import Batch, Job, apply_block, python_source_bytes, training_step

DESCRIPTION = "LSTM language model, 8 layers of 384, AdamW, Python's sources as bytes, 32 texts x 128, truncated BPTT"
BATCH = 32
LENGTH = 128
LAYERS = 8
WIDTH = 384
VOCABULARY = 256
STEPS_OF_TEXT = 64


class LstmLayer(nn.Module):
    """One LSTM layer on a residual path, [B, T, C] to [B, T, C]; carries its state to the next call, detached."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.carried: tuple[Tensor, Tensor] | None = None
        self.ended: tuple[Tensor, Tensor] | None = None

    def forward(self, x_BTC: Tensor) -> Tensor:
        y_BTC, (hidden, cell) = self.lstm(self.norm(x_BTC), self.carried)
        self.ended = (hidden.detach(), cell.detach())
        return x_BTC + y_BTC

    def carry(self) -> None:
        """The state that the last call ended with becomes the start of the next one."""
        self.carried = self.ended


class LstmModel(nn.Module):
    """Tokens [B, T] to scores of the next token [B, T, V]."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(LstmLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        y_BTC = self.tokens(tokens_BT)
        for layer in self.layers:
            y_BTC = apply_block(layer, y_BTC, checkpointed=self.checkpointed)
        return self.head(self.norm(y_BTC))

    def carry(self) -> None:
        """Ends a piece of text in every layer; called after backward, which may call the layers again."""
        for layer in self.layers:
            assert isinstance(layer, LstmLayer)
            layer.carry()


def build(seed: int, checkpointed: bool = False) -> Job:
    """An LSTM model, its optimizer and the text in pieces that follow each other, all from `seed`."""
    torch.manual_seed(seed)
    text_BT = python_source_bytes(BATCH * (STEPS_OF_TEXT * LENGTH + 1)).view(BATCH, -1)
    starts = range(0, STEPS_OF_TEXT * LENGTH, LENGTH)
    batches = tuple(
        (text_BT[:, at : at + LENGTH].contiguous(), text_BT[:, at + 1 : at + LENGTH + 1].contiguous()) for at in starts
    )
    model = LstmModel(checkpointed=checkpointed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(batch: Batch) -> Tensor:
        tokens_BT, following_BT = batch
        return functional.cross_entropy(model(tokens_BT).flatten(0, 1), following_BT.flatten())

    inner = training_step(model, optimizer, batches, loss_of)

    def step() -> float:
        loss = inner()
        model.carry()
        return loss

    return Job(model=model, optimizer=optimizer, batches=batches, step=step, blocks=tuple(model.layers))
