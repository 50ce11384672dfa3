"""Fine-tuning of ViT-giant as torchao measured it: batch 32 of 224 x 224, all of it in bf16, blocks checkpointed.

The model has the shapes of timm's `vit_giant_patch14_dinov2.lvd142m`, with 45 classes. Shape letters: N samples,
T patches and the token of the class, D width, C channels, H height, W width.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, DEPTH, HEADS, HIDDEN, PATCH, SIDE, CLASSES, BATCH = 1536, 40, 24, 4096, 14, 224, 45, 32


class VisionBlock(nn.Module):
    """Attention and a gated MLP, each scaled and with a norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.scale_attention, self.scale_mlp = (nn.Parameter(torch.full((WIDTH,), 1e-5)) for _ in range(2))

    def forward(self, x_NTD: Tensor) -> Tensor:
        samples, tokens, _ = x_NTD.shape
        qkv: Tensor = self.qkv(self.norm_attention(x_NTD))
        q, k, v = qkv.view(samples, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(samples, tokens, WIDTH)
        x_NTD = x_NTD + self.scale_attention * self.out(seen)
        gate, value = self.up(self.norm_mlp(x_NTD)).chunk(2, dim=-1)
        return x_NTD + self.scale_mlp * self.down(functional.silu(gate) * value)


class VisionGiant(nn.Module):
    """Patches, blocks that are computed again in backward, and the classes."""

    def __init__(self) -> None:
        super().__init__()
        tokens = (SIDE // PATCH) ** 2 + 1
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.zeros(1, tokens, WIDTH))
        self.blocks = nn.ModuleList(VisionBlock() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        patches_NTD = self.patches(x_NCHW).flatten(2).transpose(1, 2)
        token_NTD = self.token.expand(len(x_NCHW), -1, -1)
        x: Any = torch.cat([token_NTD, patches_NTD], 1) + self.places
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x)[:, 0])


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune ViT-giant of random weights on random images.")
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    model = VisionGiant().bfloat16().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(steps):
        images = torch.randn(BATCH, 3, SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
        labels = torch.randint(CLASSES, (BATCH,), device="cuda")
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
