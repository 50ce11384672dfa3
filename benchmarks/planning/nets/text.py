"""Language models: GPT-2 (Radford et al. 2019), Llama (Touvron et al. 2302.13971) and an LSTM translator with attention
(Bahdanau et al. 1409.0473, Luong et al. 1508.04025).

Shapes: B batch, T S tokens of target and source, D features, H heads, V words.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

GPT2 = {"small": (12, 768, 12), "medium": (24, 1024, 16), "large": (36, 1280, 20), "xl": (48, 1600, 25)}
"""Layers, features, heads."""

LLAMA = {
    "1b": (16, 2048, 32, 8, 8192, 128_256),
    "7b": (32, 4096, 32, 32, 11_008, 32_000),
    "small": (2, 512, 8, 2, 2048, 32_000),
}
"""Layers, features, heads, heads of keys, hidden features, words: of Llama 3.2 1B, Llama 2 7B, and one to try with."""


class Gpt2Block(nn.Module):
    """Attention and a hidden layer, each after a norm and beside a shortcut."""

    def __init__(self, features: int, heads: int, dropout: float, plain: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.plain = heads, dropout, plain
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.qkv, self.out = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.wide, self.narrow = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        parts = self.qkv(self.norm1(x_BTD)).split(D, 2)
        query, key, value = (part.view(B, T, self.heads, D // self.heads).transpose(1, 2) for part in parts)
        y_BTD = self.out(self.attend(query, key, value).transpose(1, 2).reshape(B, T, D))
        x_BTD = x_BTD + functional.dropout(y_BTD, self.dropout, self.training)
        y_BTD = self.narrow(functional.gelu(self.wide(self.norm2(x_BTD)), approximate="tanh"))
        return x_BTD + functional.dropout(y_BTD, self.dropout, self.training)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """In one kernel, or in plain products with scores of all pairs."""
        dropout = self.dropout if self.training else 0.0
        if not self.plain:
            return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        shares = functional.softmax(scores.masked_fill(later, float("-inf")), -1)
        return functional.dropout(shares, dropout) @ value


class Gpt2(nn.Module):
    """Tokens to the loss of the next ones; the head shares the embedding's weight."""

    def __init__(self, size: str = "small", tokens: int = 1024, dropout: float = 0.1, plain: bool = False) -> None:
        super().__init__()
        layers, features, heads = GPT2[size]
        words = 50_257
        self.words, self.places = nn.Embedding(words, features), nn.Embedding(tokens, features)
        self.blocks = nn.ModuleList(Gpt2Block(features, heads, dropout, plain) for _ in range(layers))
        self.norm, self.dropout = nn.LayerNorm(features), nn.Dropout(dropout)

    def forward(self, words_BT: Tensor) -> Tensor:
        places = torch.arange(words_BT.shape[1], device=words_BT.device)
        x_BTD = self.dropout(self.words(words_BT) + self.places(places))
        for block in self.blocks:
            x_BTD = block(x_BTD)
        scores_BTV = functional.linear(self.norm(x_BTD), self.words.weight)
        return functional.cross_entropy(scores_BTV.flatten(0, 1), words_BT.flatten())


def turned(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotary places (Su et al. 2104.09864): pairs of features turned by an angle of their place."""
    first, second = x_BHTD.chunk(2, -1)
    return x_BHTD * cos_TD + torch.cat([-second, first], -1) * sin_TD


class LlamaBlock(nn.Module):
    """Attention with fewer heads of keys, and a gated hidden layer."""

    def __init__(self, features: int, heads: int, key_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, features // heads
        self.norm1, self.norm2 = nn.RMSNorm(features), nn.RMSNorm(features)
        self.query = nn.Linear(features, features, bias=False)
        self.key = nn.Linear(features, key_heads * self.size, bias=False)
        self.value = nn.Linear(features, key_heads * self.size, bias=False)
        self.out = nn.Linear(features, features, bias=False)
        self.gate, self.wide = nn.Linear(features, hidden, bias=False), nn.Linear(features, hidden, bias=False)
        self.narrow = nn.Linear(hidden, features, bias=False)

    def forward(self, x_BTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        y_BTD = self.norm1(x_BTD)
        query = turned(self.query(y_BTD).view(B, T, self.heads, self.size).transpose(1, 2), cos_TD, sin_TD)
        key = turned(self.key(y_BTD).view(B, T, self.key_heads, self.size).transpose(1, 2), cos_TD, sin_TD)
        value = self.value(y_BTD).view(B, T, self.key_heads, self.size).transpose(1, 2)
        shared = self.heads // self.key_heads
        if shared > 1:
            key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BTD = x_BTD + self.out(y.transpose(1, 2).reshape(B, T, D))
        y_BTD = self.norm2(x_BTD)
        return x_BTD + self.narrow(functional.silu(self.gate(y_BTD)) * self.wide(y_BTD))


class Llama(nn.Module):
    """Tokens to the loss of the next ones; `layers` of the size's own number, where given."""

    def __init__(self, size: str = "1b", tokens: int = 2048, layers: int | None = None) -> None:
        super().__init__()
        depth, features, heads, key_heads, hidden, words = LLAMA[size]
        self.words = nn.Embedding(words, features)
        self.blocks = nn.ModuleList(LlamaBlock(features, heads, key_heads, hidden) for _ in range(layers or depth))
        self.norm, self.head = nn.RMSNorm(features), nn.Linear(features, words, bias=False)
        width = features // heads
        rates = 10_000.0 ** (-torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(tokens), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, words_BT: Tensor) -> Tensor:
        x_BTD = self.words(words_BT)
        cos, sin = self.cos.to(x_BTD.dtype), self.sin.to(x_BTD.dtype)
        for block in self.blocks:
            x_BTD = block(x_BTD, cos, sin)
        return functional.cross_entropy(self.head(self.norm(x_BTD)).flatten(0, 1), words_BT.flatten())


class Translator(nn.Module):
    """A bidirectional LSTM reads the source; LSTM cells write the target, each looking at all of the source."""

    def __init__(self, words: int = 32_000, features: int = 1024, layers: int = 2, dropout: float = 0.2) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, features), nn.Embedding(words, features)
        self.reader = nn.LSTM(features, features // 2, layers, batch_first=True, bidirectional=True)
        sizes = [2 * features] + [features] * (layers - 1)
        self.cells = nn.ModuleList(nn.LSTMCell(size, features) for size in sizes)
        self.look, self.merge = nn.Linear(features, features, bias=False), nn.Linear(2 * features, features)
        self.head, self.dropout = nn.Linear(features, words), nn.Dropout(dropout)

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        read_BSD, _ = self.reader(self.dropout(self.source(source_BS)))
        keys_BSD = self.look(read_BSD)
        words_BTD = self.dropout(self.target(target_BT))
        B, T, D = words_BTD.shape
        states = [(words_BTD.new_zeros(B, D), words_BTD.new_zeros(B, D)) for _ in self.cells]
        seen_BD, written = words_BTD.new_zeros(B, D), list[Tensor]()
        for t in range(T):
            x = torch.cat([words_BTD[:, t], seen_BD], 1)
            for i, cell in enumerate(self.cells):
                states[i] = cell(x, states[i])
                x = self.dropout(states[i][0])
            shares_BS1 = torch.softmax(torch.bmm(keys_BSD, x.unsqueeze(2)), 1)
            looked_BD = torch.bmm(read_BSD.transpose(1, 2), shares_BS1).squeeze(2)
            seen_BD = torch.tanh(self.merge(torch.cat([x, looked_BD], 1)))
            written.append(seen_BD)
        scores_BTV = self.head(self.dropout(torch.stack(written, 1)))
        return functional.cross_entropy(scores_BTV.flatten(0, 1), target_BT.flatten())
