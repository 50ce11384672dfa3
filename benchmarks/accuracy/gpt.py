"""The model behind the snapshots of a real GPU: a pre-norm transformer of plain ops, with an AdamW of plain ops.

Written after the description in the repository Wedsonlin/assignment2-systems (its results/ hold the snapshots), so that
the same ops run in the same order: every product is an einsum, softmax and cross entropy are spelt out.
"""

# Shapes: B batch, T tokens, D width, H heads, E width of a head, V vocabulary.

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.einsum("bti,oi->bto", x_BTD, self.weight)


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        given = x_BTD.dtype
        x_BTD = x_BTD.to(torch.float32)
        scale_BT1 = torch.rsqrt(x_BTD.pow(2).mean(-1, keepdim=True) + 1e-5)
        x_BTD = x_BTD * scale_BT1
        return (self.weight * x_BTD).to(given)


class Rotation(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        angles_TF = torch.outer(torch.arange(tokens).float(), 10_000.0 ** -(torch.arange(0, width, 2) / width))
        self.register_buffer("table_2TF", torch.stack((angles_TF.cos(), angles_TF.sin())), persistent=False)

    def forward(self, x_BHTE: Tensor) -> Tensor:
        even, odd = x_BHTE.unflatten(-1, (-1, 2)).movedim(-1, 0).unbind(0)
        cos, sin = self.table_2TF[:, : x_BHTE.shape[-2], :].unbind(0)  # pyright: ignore[reportIndexIssue]
        turned_even = cos * even - sin * odd
        turned_odd = sin * even + cos * odd
        return torch.concat((turned_even, turned_odd), dim=-1)


def softmax(x: Tensor) -> Tensor:
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    powers = torch.exp(shifted)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


def attention(q_BHTE: Tensor, k_BHTE: Tensor, v_BHTE: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("bhqe,bhke->bhqk", q_BHTE, k_BHTE) / math.sqrt(k_BHTE.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("bhqk,bhke->bhqe", weights, v_BHTE)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, rotation: Rotation) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (Linear(width, width) for _ in range(4))
        self.rotation = rotation

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k, v = self.q(x_BTD), self.k(x_BTD), self.v(x_BTD)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, k, v))
        q = self.rotation(q)
        k = self.rotation(k)
        place = torch.arange(x_BTD.shape[1], device=x_BTD.device)
        mask = place[:, None] >= place[None, :]
        mask = mask[None, ...]
        mixed = attention(q, k, v, mask)
        mixed = mixed.transpose(1, 2).flatten(2).contiguous()
        return self.out(mixed)


class Gated(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(width, hidden), Linear(hidden, width), Linear(width, hidden)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.w2(silu(self.w1(x_BTD)) * self.w3(x_BTD))


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, rotation: Rotation) -> None:
        super().__init__()
        self.attention = Attention(width, heads, rotation)
        self.hidden = Gated(width, hidden)
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        mixed = self.attention(self.norm1(x_BTD))
        middle = x_BTD + mixed
        fed = self.hidden(self.norm2(middle))
        return middle + fed


class Gpt(nn.Module):
    def __init__(self, *, vocabulary: int, tokens: int, width: int, layers: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(vocabulary, width))
        self.rotation = Rotation(tokens, width // heads)
        self.layers = nn.ModuleList(Block(width, heads, hidden, self.rotation) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.head = Linear(width, vocabulary)

    def forward(self, x_BT: Tensor) -> Tensor:
        x = self.embedding[x_BT, :]
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x)


def cross_entropy(logits_BTV: Tensor, target_BT: Tensor) -> Tensor:
    negative = -log_softmax(logits_BTV)
    return torch.mean(torch.gather(negative, -1, target_BT.unsqueeze(-1)))


def log_softmax(x: Tensor) -> Tensor:
    highest = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - highest
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


class AdamW(torch.optim.Optimizer):
    """A parameter at a time, every intermediate a tensor of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3, "decay": 0.01})

    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        # In one loop, so that names keep tensors of one parameter until the next one's replace them.
        for group in self.param_groups:
            for parameter in group["params"]:
                grad, state = parameter.grad.data, self.state[parameter]
                parameter.data -= group["lr"] * group["decay"] * parameter.data
                before_m = state.get("m", torch.zeros_like(grad))
                before_v = state.get("v", torch.zeros_like(grad))
                m = 0.9 * before_m + (0.1 * grad)
                v = 0.999 * before_v + (0.001 * torch.square(grad))
                parameter.data -= group["lr"] * m / (torch.sqrt(v) + 1e-8)
                state["m"] = m
                state["v"] = v
