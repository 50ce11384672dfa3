"""A decoder-only transformer by its settings, with the parts that fine-tuning adds, to make public tables' jobs again.

What counts is which storages live when: what autograd saves, in which dtype, and what each op takes for a while.
Weights in four bits are one byte tensor that every product unpacks into a temporary matrix, as bitsandbytes does.
"""

# Shapes: B batch, T tokens, D width, H heads, G groups of keys and values, E width of a head, V vocabulary, R rank.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Linear = Callable[..., nn.Module]
"""(inputs, outputs, bias, place): what stands for a linear layer at a place such as "qkv" or "head"."""

BLOCK = 64
"""Weights in four bits share one scale in so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model.

    Attributes:
        groups: heads of keys and values.
        rotary: numbers of a head that are rotated.
        gated: SwiGLU, else GELU.
        rms: RMS norm, else layer norm.
        scaled_in_float32: an RMS norm multiplies by its weight before it goes back to the dtype it was given.
        parallel: attention and MLP side by side on one residual.
        one_norm: attention and MLP share the norm.
    """

    layers: int
    width: int
    heads: int
    groups: int
    mlp: int
    vocabulary: int
    rotary: int
    gated: bool = True
    rms: bool = True
    bias: bool = False
    qkv_bias: bool = False
    head_bias: bool = False
    parallel: bool = False
    one_norm: bool = False
    scaled_in_float32: bool = True

    @property
    def head(self) -> int:
        return self.width // self.heads


class RmsNorm(nn.Module):
    def __init__(self, width: int, scaled_in_float32: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.scaled_in_float32 = scaled_in_float32

    def forward(self, x_BTD: Tensor) -> Tensor:
        given = x_BTD.dtype
        x_BTD = x_BTD.float()
        scale_BT1 = torch.rsqrt(torch.mean(x_BTD * x_BTD, dim=-1, keepdim=True) + 1e-5)
        if self.scaled_in_float32:
            return (self.weight * (x_BTD * scale_BT1)).to(given)
        return (x_BTD * scale_BT1).to(given) * self.weight


class _Product4(torch.autograd.Function):
    """x W' of a matrix in four bits, which is unpacked once in forward and once in backward; keeps x, as asked."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, outputs: int, bias: Tensor | None) -> Tensor:
        ctx.outputs = outputs
        ctx.save_for_backward(x, packed)
        return functional.linear(x, _unpacked(x, packed, outputs), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        x, packed = ctx.saved_tensors
        return torch.matmul(grads[0], _unpacked(x, packed, ctx.outputs)), None, None, None


def _unpacked(x: Tensor, packed: Tensor, outputs: int) -> Tensor:
    """Weights were float16 when they were packed, and are again when unpacked."""
    made = torch.empty(outputs, 2 * packed.numel() // outputs, dtype=torch.float16, device=x.device)
    return made.to(x.dtype)


class Linear4(nn.Module):
    """A frozen linear layer in four bits: two weights a byte, and a scale for every `BLOCK`.

    Args:
        twice: scales are quantised too: a byte each, and float32 for every 256 of them.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool, twice: bool) -> None:
        super().__init__()
        blocks = inputs * outputs // BLOCK
        self.outputs = outputs
        self.register_buffer("packed", torch.empty(inputs * outputs // 2, dtype=torch.uint8))
        self.register_buffer("scales", torch.empty(blocks, dtype=torch.uint8 if twice else torch.float32))
        self.register_buffer("scales_of_scales", torch.empty(blocks // 256 if twice else 0, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(outputs), requires_grad=False) if bias else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        return _Product4.apply(x_BTD, self.packed, self.outputs, self.bias)


class Block(nn.Module):
    def __init__(self, shape: Shape, linear: Linear, attention: Linear | None) -> None:
        super().__init__()
        self.shape = shape
        self.norm_1 = norm_of(shape)
        self.norm_2 = None if shape.one_norm else norm_of(shape)
        bias, qkv_bias = shape.bias, shape.bias or shape.qkv_bias
        self.qkv = linear(shape.width, (shape.heads + 2 * shape.groups) * shape.head, qkv_bias, "qkv")
        self.out = linear(shape.width, shape.width, bias, "out")
        self.up = linear(shape.width, shape.mlp, bias, "up")
        self.gate = linear(shape.width, shape.mlp, bias, "gate") if shape.gated else None
        self.down = linear(shape.mlp, shape.width, bias, "down")
        self.extra = attention() if attention else None

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n_1 = self.norm_1(x_BTD)
        attended = self.attend(n_1, cos, sin)
        if self.shape.parallel:
            return self.feed(self.norm_2(x_BTD) if self.norm_2 else n_1) + attended + x_BTD
        x_BTD = attended + x_BTD
        return self.feed(self.norm_2(x_BTD) if self.norm_2 else n_1) + x_BTD

    def attend(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.split(self.qkv(x_BTD))
        q, k = (self.rotated(each, cos, sin) for each in (q, k))
        y_BHTE = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y_BTHE = y_BHTE.transpose(1, 2)
        if self.extra is not None:
            y_BTHE = y_BTHE + self.extra(self, q)
        return self.out(y_BTHE.reshape(x_BTD.shape))

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, H, T, E) each; those of a group stand side by side."""
        batch, tokens, _ = qkv.shape
        shape, each = self.shape, self.shape.heads // self.shape.groups
        grouped = qkv.view(batch, tokens, shape.groups, each + 2, shape.head).permute(0, 2, 3, 1, 4)
        q, k, v = grouped.split((each, 1, 1), dim=2)
        if each > 1:
            k, v = (x.expand(batch, shape.groups, each, tokens, shape.head) for x in (k, v))
        q, k, v = (x.reshape(batch, -1, tokens, shape.head) for x in (q, k, v))
        return q, k, v

    def rotated(self, x_BHTE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned, rest = x_BHTE[..., : self.shape.rotary], x_BHTE[..., self.shape.rotary :]
        half = self.shape.rotary // 2
        crossed = torch.cat((-turned[..., half:], turned[..., :half]), dim=-1)
        turned = ((turned * cos) + (crossed * sin)).to(x_BHTE.dtype)
        return torch.cat((turned, rest), dim=-1)

    def feed(self, x_BTD: Tensor) -> Tensor:
        up = self.up(x_BTD)
        if self.gate is None:
            return self.down(functional.gelu(up))
        return self.down(functional.silu(self.gate(x_BTD)) * up)


class Decoder(nn.Module):
    """The whole model.

    Args:
        linear: makes linear layers.
        attention: makes what a block's attention has beside it, by its number, or None.
        recomputed: each block is run again in backward, in the older, reentrant way.
    """

    def __init__(
        self,
        shape: Shape,
        tokens: int,
        linear: Linear,
        attention: Callable[[int], Linear | None] = lambda _: None,
        recomputed: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape, linear, attention(number)) for number in range(shape.layers))
        self.norm = norm_of(shape)
        self.head = linear(shape.width, shape.vocabulary, shape.head_bias, "head")
        angles = torch.empty(tokens, shape.rotary, dtype=torch.float32)
        self.register_buffer("cos", angles)
        self.register_buffer("sin", angles.clone())
        self.recomputed = recomputed

    def hidden(self, ids_BT: Tensor) -> Tensor:
        x_BTD, cos, sin = self.embedding(ids_BT), self.cos[: ids_BT.shape[1]], self.sin[: ids_BT.shape[1]]
        if self.recomputed:
            x_BTD = x_BTD.requires_grad_()
        for block in self.blocks:
            if self.recomputed:
                x_BTD = checkpoint(block, x_BTD, cos, sin, use_reentrant=True)
            else:
                x_BTD = block(x_BTD, cos, sin)
        return self.norm(x_BTD)


def norm_of(shape: Shape) -> nn.Module:
    """The norm of a model's blocks."""
    return RmsNorm(shape.width, shape.scaled_in_float32) if shape.rms else nn.LayerNorm(shape.width)


def plain(inputs: int, outputs: int, bias: bool, _place: str) -> nn.Module:
    """A linear layer as it is."""
    return nn.Linear(inputs, outputs, bias=bias)
