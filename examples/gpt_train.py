"""Train a GPT on Python's own sources, in the manner of nanoGPT: settings are the constants at the top.

    python examples/gpt_train.py                                               # small, also on a CPU
    elbowroom estimate examples/gpt_train.py --gpu rtx4090
    elbowroom largest examples/gpt_train.py --vary batch_size=1..512 --gpu rtx4090
    elbowroom largest examples/gpt_train.py --vary block_size=64..8192 --multiple-of 64 --gpu rtx4090

The script knows nothing of elbowroom.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

batch_size = 4
block_size = 256
n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.1
accumulation = 2
learning_rate = 6e-4
steps = 5
vocabulary = 256  # bytes


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.out = nn.Linear(n_embd, n_embd)

    def forward(self, x_BTC: Tensor) -> Tensor:
        B, T, C = x_BTC.shape
        heads = (each.view(B, T, n_head, C // n_head).transpose(1, 2) for each in self.qkv(x_BTC).split(C, dim=2))
        rate = dropout if self.training else 0.0
        y = nn.functional.scaled_dot_product_attention(*heads, dropout_p=rate, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(n_embd)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout)
        )

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attention(self.norm1(x_BTC))
        return x_BTC + self.mlp(self.norm2(x_BTC))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, n_embd)
        self.positions = nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block() for _ in range(n_layer))
        self.norm = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTC = self.tokens(tokens_BT) + self.positions(places)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return nn.functional.cross_entropy(self.head(self.norm(x_BTC)).flatten(0, 1), targets_BT.flatten())


def read_text() -> Tensor:
    """The modules of Python's standard library, as bytes."""
    text = b"".join(path.read_bytes() for path in sorted(Path(json.__file__).parents[1].glob("*.py")))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batch(text: Tensor, device: str) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - block_size - 1, (batch_size,)).tolist()
    tokens = torch.stack([text[start : start + block_size + 1] for start in starts]).long()
    if device == "cuda":
        tokens = tokens.pin_memory().to(device, non_blocking=True)
    return tokens[:, :-1], tokens[:, 1:]


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = read_text()
    model = GPT().to(device)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=device == "cuda")
    for step in range(steps):
        for _ in range(accumulation):
            tokens_BT, targets_BT = batch(text, device)
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                loss = model(tokens_BT, targets_BT) / accumulation
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step}  loss {loss.item() * accumulation:.4f}")


if __name__ == "__main__":
    main()
