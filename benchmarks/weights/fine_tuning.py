"""Fine-tuning of a model by its shape: `python -m benchmarks.weights` has it planned on a GPU that is not there.

Shape letters: N samples, T tokens, D width, E width of a head.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a decoder.

    Attributes:
        key_heads: heads of keys and values, which several heads of queries share.
        gated: whether the MLP has a gate and norms have no bias, as Llama has it; else it is that of GPT-2.
        rank: rank of the trained update of each product (LoRA); 0 trains all weights.
    """

    width: int
    hidden: int
    depth: int
    heads: int
    key_heads: int
    words: int
    tokens: int
    gated: bool
    rank: int = 0


SHAPES = {
    # Llama 3 8B (The Llama 3 Herd of Models, table 3)
    "llama-8b": Shape(width=4096, hidden=14336, depth=32, heads=32, key_heads=8, words=128256, tokens=1024, gated=True),
    # Llama 2 13B (its config: hidden_size 5120, intermediate_size 13824, 40 layers, 40 heads, 32000 words)
    "llama-13b-lora": Shape(
        width=5120, hidden=13824, depth=40, heads=40, key_heads=40, words=32000, tokens=1024, gated=True, rank=16
    ),
    # GPT-2 XL (Language Models are Unsupervised Multitask Learners, table 2)
    "gpt2-xl": Shape(width=1600, hidden=6400, depth=48, heads=25, key_heads=25, words=50257, tokens=1024, gated=False),
}


class Product(nn.Module):
    """A linear layer, frozen with a trained update of low rank where the shape has a rank."""

    def __init__(self, inputs: int, outputs: int, shape: Shape) -> None:
        super().__init__()
        self.whole = nn.Linear(inputs, outputs, bias=not shape.gated)
        self.update: nn.Module | None = None
        if shape.rank:
            self.whole.requires_grad_(False)
            self.update = nn.Sequential(
                nn.Linear(inputs, shape.rank, bias=False), nn.Linear(shape.rank, outputs, bias=False)
            )

    def forward(self, x_NTD: Tensor) -> Tensor:
        found = self.whole(x_NTD)
        return found if self.update is None else found + self.update(x_NTD)


class Decoder(nn.Module):
    """One block: attention and an MLP, each with a norm before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        norm: Callable[[int], nn.Module] = nn.RMSNorm if shape.gated else nn.LayerNorm
        self.shape, kept = shape, shape.width // shape.heads * shape.key_heads
        self.norm_attention, self.norm_mlp = norm(shape.width), norm(shape.width)
        self.queries, self.out = Product(shape.width, shape.width, shape), Product(shape.width, shape.width, shape)
        self.keys, self.values = Product(shape.width, kept, shape), Product(shape.width, kept, shape)
        self.up, self.down = Product(shape.width, shape.hidden, shape), Product(shape.hidden, shape.width, shape)
        self.gate = Product(shape.width, shape.hidden, shape) if shape.gated else None

    def forward(self, x_NTD: Tensor) -> Tensor:
        samples, tokens, width = x_NTD.shape
        y_NTD = self.norm_attention(x_NTD)
        q, k, v = (
            product(y_NTD).view(samples, tokens, heads, width // self.shape.heads).transpose(1, 2)
            for product, heads in (
                (self.queries, self.shape.heads),
                (self.keys, self.shape.key_heads),
                (self.values, self.shape.key_heads),
            )
        )
        if self.shape.key_heads < self.shape.heads:
            k, v = (each.repeat_interleave(self.shape.heads // self.shape.key_heads, dim=1) for each in (k, v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_NTD = x_NTD + self.out(seen.transpose(1, 2).reshape(samples, tokens, width))
        y_NTD = self.norm_mlp(x_NTD)
        inner = (
            functional.gelu(self.up(y_NTD)) if self.gate is None else functional.silu(self.gate(y_NTD)) * self.up(y_NTD)
        )
        return x_NTD + self.down(inner)


def made(shape: Shape) -> nn.Module:
    """Make the model where tensors are made now."""
    words, head = nn.Embedding(shape.words, shape.width), nn.Linear(shape.width, shape.words, bias=False)
    for each in (words, head) if shape.rank else ():
        each.requires_grad_(False)
    return nn.Sequential(words, *(Decoder(shape) for _ in range(shape.depth)), head)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a model of random weights by its shape.")
    parser.add_argument("--shape", choices=tuple(SHAPES), required=True)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = made(shape)
    optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=1e-5)
    for _ in range(arguments.steps):
        text = torch.randint(shape.words, (1, shape.tokens + 1), device="cuda")
        optimizer.zero_grad()
        functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
