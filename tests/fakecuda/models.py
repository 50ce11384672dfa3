"""Hand-written models of the rig's corpus (spec: {"lib": "models", "ctor": NAME, "kwargs": {...}}).

Which names live how long is part of what the corpus measured: do not inline or rename across statements.
"""

# Shapes: B batch, T tokens, D width, H heads, E width of a head.

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self, sizes: Sequence[int] = (1024, 4096, 4096, 1000), dropout: float = 0.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)]
        self.net = nn.Sequential(*layers[:-2])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class VDNNAlexNet(nn.Module):
    """AlexNet in one tower (Krizhevsky 2014), in-place ReLU as in torchvision."""

    def __init__(self, classes: int = 1000, inplace: bool = True) -> None:
        super().__init__()
        self.f = nn.Sequential(
            *(nn.Conv2d(3, 96, 11, 4, 2), nn.ReLU(inplace), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(inplace), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(inplace)),
            *(nn.Conv2d(384, 384, 3, padding=1), nn.ReLU(inplace)),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace), nn.MaxPool2d(3, 2)),
        )
        self.c = nn.Sequential(
            *(nn.Dropout(), nn.Linear(9216, 4096), nn.ReLU(inplace)),
            *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace)),
            nn.Linear(4096, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.f(x).flatten(1))


class Block(nn.Module):
    def __init__(self, d: int, h: int, drop: float) -> None:
        super().__init__()
        self.h = h
        self.n1 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)
        self.n2 = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)
        self.p = drop

    def forward(self, x_BTD: Tensor) -> Tensor:
        b, t, d = x_BTD.shape
        q, k, v = (y.view(b, t, self.h, d // self.h).transpose(1, 2) for y in self.qkv(self.n1(x_BTD)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
        x_BTD = x_BTD + F.dropout(self.o(a.transpose(1, 2).reshape(b, t, d)), self.p, self.training)
        return x_BTD + F.dropout(self.down(F.gelu(self.up(self.n2(x_BTD)))), self.p, self.training)


class MiniGPT(nn.Module):
    def __init__(
        self, v: int = 8000, d: int = 512, n: int = 6, h: int = 8, t: int = 1024, drop: float = 0.0, ckpt: bool = False
    ) -> None:
        super().__init__()
        self.e, self.pe = nn.Embedding(v, d), nn.Embedding(t, d)
        self.b = nn.ModuleList(Block(d, h, drop) for _ in range(n))
        self.f = nn.LayerNorm(d)
        self.head = nn.Linear(d, v, bias=False)
        self.ckpt = ckpt

    def forward(self, i: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        x = self.e(i) + self.pe(torch.arange(i.shape[1], device=i.device))
        for b in self.b:
            x = checkpoint(b, x, use_reentrant=False) if self.ckpt else b(x)
        return self.head(self.f(x))


class RNNLM(nn.Module):
    def __init__(
        self,
        v: int = 10000,
        e: int = 512,
        h: int = 1024,
        layers: int = 2,
        cell: str = "LSTM",
        dropout: float = 0.2,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.e = nn.Embedding(v, e)
        kind = getattr(nn, cell)
        self.r = kind(e, h, layers, dropout=dropout, bidirectional=bidirectional, batch_first=True)
        self.d = nn.Dropout(dropout)
        self.o = nn.Linear(h * (2 if bidirectional else 1), v)

    def forward(self, i: Tensor) -> Tensor:
        return self.o(self.d(self.r(self.e(i))[0]))


class DLRM(nn.Module):
    """A recommender: x is (B, dense); idx is (B, tables), or (B, tables, k) for bags of k."""

    def __init__(
        self,
        tables: int = 26,
        rows: int = 100000,
        dim: int = 64,
        dense: int = 13,
        bag: bool = True,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        self.t = nn.ModuleList(
            nn.EmbeddingBag(rows, dim, mode="sum", sparse=sparse) if bag else nn.Embedding(rows, dim, sparse=sparse)
            for _ in range(tables)
        )
        self.bot = nn.Sequential(
            *(nn.Linear(dense, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, dim), nn.ReLU())
        )
        n = tables + 1
        self.top = nn.Sequential(
            *(nn.Linear(dim + n * (n - 1) // 2, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))
        )
        i = torch.tril_indices(n, n, -1)
        self.register_buffer("li", i[0])
        self.register_buffer("lj", i[1])

    def _index(self, table: nn.Module, idx: Tensor, k: int) -> Tensor:
        if idx.dim() == 3:
            return idx[:, k]
        return idx[:, k : k + 1] if isinstance(table, nn.EmbeddingBag) else idx[:, k]

    def forward(self, x: Tensor, idx: Tensor) -> Tensor:
        b = self.bot(x)
        e = [t(self._index(t, idx, k)) for k, t in enumerate(self.t)]
        z = torch.stack([b, *e], 1)
        return self.top(torch.cat([b, torch.bmm(z, z.transpose(1, 2))[:, self.li, self.lj]], 1)).squeeze(1)  # pyright: ignore[reportArgumentType]


class DCGenerator(nn.Module):
    def __init__(self, z: int = 100, f: int = 64, c: int = 3, size: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.ConvTranspose2d(z, f * 8, 4, 1, 0, bias=False)]
        layers += [nn.BatchNorm2d(f * 8), nn.ReLU(True)]
        n, m = 4, f * 8
        while n * 2 < size:
            layers += [nn.ConvTranspose2d(m, m // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(m // 2), nn.ReLU(True)]
            n, m = n * 2, m // 2
        self.net = nn.Sequential(*layers, nn.ConvTranspose2d(m, c, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, z: Tensor) -> Tensor:
        return self.net(z)


class DCDiscriminator(nn.Module):
    def __init__(self, f: int = 64, c: int = 3, size: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(c, f, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
        n, m = size // 2, f
        while n > 4:
            layers += [nn.Conv2d(m, m * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(m * 2), nn.LeakyReLU(0.2, True)]
            n, m = n // 2, m * 2
        self.net = nn.Sequential(*layers, nn.Conv2d(m, 1, 4, 1, 0, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).view(-1)


def _double(a: int, b: int, norm: type[nn.Module]) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv3d(a, b, 3, padding=1), norm(b), nn.ReLU(True)),
        *(nn.Conv3d(b, b, 3, padding=1), norm(b), nn.ReLU(True)),
    )


class UNet3D(nn.Module):
    """Cicek et al.: double convolutions with batch or instance norm, transposed convolutions up, skips by cat."""

    def __init__(self, cin: int = 1, classes: int = 3, f: int = 32, depth: int = 4, norm: str = "batch") -> None:
        super().__init__()
        kind = nn.BatchNorm3d if norm == "batch" else nn.InstanceNorm3d
        w = [f << i for i in range(depth)]
        self.down = nn.ModuleList(_double(a, b, kind) for a, b in zip([cin, *w], w, strict=False))
        self.pool = nn.MaxPool3d(2)
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(w[-2::-1], w[:0:-1], strict=True))
        self.dec = nn.ModuleList(_double(2 * a, a, kind) for a in w[-2::-1])
        self.out = nn.Conv3d(f, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        k: list[Tensor] = []
        for i, d in enumerate(self.down):
            x = d(x)
            if i + 1 < len(self.down):
                k.append(x)
                x = self.pool(x)
        for u, d in zip(self.up, self.dec, strict=True):
            x = d(torch.cat([k.pop(), u(x)], 1))
        return self.out(x)


class ConvVAE(nn.Module):
    def __init__(self, size: int = 64, z: int = 128, f: int = 64) -> None:
        super().__init__()
        self.enc = nn.Sequential(
            *(nn.Conv2d(3, f, 4, 2, 1), nn.ReLU()),
            *(nn.Conv2d(f, 2 * f, 4, 2, 1), nn.BatchNorm2d(2 * f), nn.ReLU()),
            *(nn.Conv2d(2 * f, 4 * f, 4, 2, 1), nn.BatchNorm2d(4 * f), nn.ReLU()),
            nn.Flatten(),
        )
        n = 4 * f * (size // 8) ** 2
        self.mu, self.lv, self.fc = nn.Linear(n, z), nn.Linear(n, z), nn.Linear(z, n)
        self.sh = (4 * f, size // 8, size // 8)
        self.dec = nn.Sequential(
            *(nn.ConvTranspose2d(4 * f, 2 * f, 4, 2, 1), nn.BatchNorm2d(2 * f), nn.ReLU()),
            *(nn.ConvTranspose2d(2 * f, f, 4, 2, 1), nn.ReLU()),
            *(nn.ConvTranspose2d(f, 3, 4, 2, 1), nn.Sigmoid()),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.enc(x)
        mu, lv = self.mu(h), self.lv(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        return self.dec(self.fc(z).view(-1, *self.sh))


class TorchTransformer(nn.Module):
    """nn.Transformer: encoder and decoder of torch's own layers."""

    def __init__(self, v: int = 10000, d: int = 512, h: int = 8, n: int = 6, ff: int = 2048, drop: float = 0.1) -> None:
        super().__init__()
        self.e = nn.Embedding(v, d)
        self.t = nn.Transformer(d, h, n, n, ff, drop, batch_first=True)
        self.o = nn.Linear(d, v)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask
        return self.o(
            self.t(self.e(src), self.e(tgt), tgt_mask=mask(tgt.shape[1], device=tgt.device), tgt_is_causal=True)
        )
