"""Small trainings on "cuda" for the runs within a budget: name -> setup() -> step(). Needs torch alone."""

# Shapes: B batch, C channels, H height, W width, T tokens, D width of a token, Z depth of a volume.

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], Any]


def supervised(model: nn.Module, x: Tensor, y: Tensor, optimizer: Any = torch.optim.AdamW, **options: Any) -> Step:
    """Cross entropy, backward, step, on one batch."""
    model = model.cuda()
    x, y = x.cuda(), y.cuda()
    changed = optimizer(model.parameters(), lr=1e-3)
    amp = options.get("amp")
    micro_batches = options.get("micro_batches", 1)

    def step() -> None:
        changed.zero_grad(set_to_none=True)
        for _ in range(micro_batches):
            with torch.autocast("cuda", torch.bfloat16, enabled=bool(amp)):
                out = model(x)
                loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
            (loss / micro_batches).backward()
        changed.step()

    return step


class Residual(nn.Module):
    """Two convolutions with batch norm around a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm_one, self.norm_two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        hidden = F.relu(self.norm_one(self.one(x_BCHW)), inplace=True)
        return F.relu(x_BCHW + self.norm_two(self.two(hidden)), inplace=True)


class Attention(nn.Module):
    """A transformer block; `causal` as in a language model."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x_BTD: Tensor) -> Tensor:
        b, t, d = x_BTD.shape
        q, k, v = self.qkv(self.norm_one(x_BTD)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x_BTD = x_BTD + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x_BTD + self.inner(self.norm_two(x_BTD))


class Tokens(nn.Module):
    """A language model: embedding, blocks, head."""

    def __init__(self, words: int, width: int, depth: int, causal: bool = True) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = nn.Sequential(*(Attention(width, 8, causal) for _ in range(depth)))

    def forward(self, x_BT: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(x_BT)))


class Patches(nn.Module):
    """A vision transformer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.cut, self.head = nn.Conv2d(3, width, 16, 16), nn.Linear(width, 10)
        self.blocks = nn.Sequential(*(Attention(width, 8, causal=False) for _ in range(depth)))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.head(self.blocks(self.cut(x_BCHW).flatten(2).transpose(1, 2)).mean(1))


class Levels(nn.Module):
    """A U-Net of 2 or 3 dimensions: each level's output meets its way back by a concatenation."""

    def __init__(self, dims: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        convolution: Any = (nn.Conv2d, nn.Conv3d)[dims - 2]
        norm: Any = (nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 2]

        def double(a: int, b: int) -> nn.Module:
            layers = [convolution(a, b, 3, padding=1), norm(b, affine=True), nn.LeakyReLU(0.1, inplace=True)]
            return nn.Sequential(*layers, convolution(b, b, 3, padding=1), norm(b, affine=True), nn.ReLU())

        self.down = nn.ModuleList(double(a, b) for a, b in zip((1, *widths), widths, strict=False))
        pairs = list(itertools.pairwise(widths))
        self.up = nn.ModuleList(double(a + b, a) for a, b in pairs)
        self.dims, self.head = dims, convolution(widths[0], 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level in self.down:
            pool = F.max_pool2d if self.dims == 2 else F.max_pool3d
            x = level(pool(x, 2) if kept else x)
            kept.append(x)
        x = kept.pop()
        for level in reversed(self.up):
            skip = kept.pop()
            x = level(torch.cat([skip, F.interpolate(x, size=skip.shape[2:])], 1))
        return self.head(x)


class Recurrent(nn.Module):
    """An LSTM over tokens."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.cells = nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, x_BT: Tensor) -> Tensor:
        return self.head(self.cells(self.words(x_BT))[0])


class Dense(nn.Module):
    """Layers that see the outputs of all before them."""

    def __init__(self, depth: int, growth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, growth, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(seen), nn.ReLU(), nn.Conv2d(seen, growth, 3, padding=1))
            for seen in range(growth, (depth + 1) * growth, growth)
        )
        self.head = nn.Linear((depth + 1) * growth, 10)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = self.first(x_BCHW)
        for layer in self.layers:
            x_BCHW = torch.cat([x_BCHW, layer(x_BCHW)], 1)
        return self.head(x_BCHW.mean((2, 3)))


def texts_of_many_lengths() -> Step:
    """The first three of full length, and then each of its own: 37 and 385 have no common factor."""
    lengths = itertools.chain([512] * 3, (512 - 37 * n % 385 for n in itertools.count()))
    model = Tokens(8000, 512, 6).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        x_BT = torch.zeros(8, next(lengths), dtype=torch.long, device="cuda")
        F.cross_entropy(model(x_BT).flatten(0, -2), x_BT.flatten()).backward()
        optimizer.step()

    return step


def images(b: int, size: int, channels: int = 3) -> tuple[Tensor, Tensor]:
    return torch.zeros(b, channels, size, size), torch.zeros(b, dtype=torch.long)


def words(b: int, t: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(b, t, dtype=torch.long), torch.zeros(b, t, dtype=torch.long)


def perceptron(**options: Any) -> Step:
    layers = [layer for _ in range(12) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    return supervised(nn.Sequential(*layers), torch.zeros(4096, 1024), torch.zeros(4096, dtype=torch.long), **options)


def wide_layers(optimizer: Any = torch.optim.AdamW) -> Step:
    """Few samples: nearly all that a step holds are parameters, gradients and optimizer states."""
    layers = [layer for _ in range(10) for layer in (nn.Linear(2048, 2048), nn.GELU())]
    return supervised(nn.Sequential(*layers), torch.zeros(256, 2048), torch.zeros(256, dtype=torch.long), optimizer)


def many_rows_first() -> Step:
    """The layer that comes last in backward, when all gradients are there, has 256 times the rows of the others."""
    rows = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Unflatten(0, (64, 256)), nn.AdaptiveAvgPool2d((1, None)))
    layers = [layer for _ in range(16) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    model = nn.Sequential(rows, nn.Flatten(), *layers)
    return supervised(model, torch.zeros(64 * 256, 1024), torch.zeros(64, dtype=torch.long), momentum)


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr, momentum=0.9)


def residual_net(**options: Any) -> Step:
    net = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), *(Residual(64) for _ in range(6)), nn.AdaptiveAvgPool2d(1))
    return supervised(nn.Sequential(net, nn.Flatten(), nn.Linear(64, 10)), *images(16, 128), **options)


def vgg() -> Step:
    layers: list[nn.Module] = []
    for a, b in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(b, b, 3, padding=1), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return supervised(nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 256, 10)), *images(8, 128))


def separable() -> Step:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1)]
    for _ in range(8):
        layers += [nn.Conv2d(32, 192, 1), nn.BatchNorm2d(192), nn.Hardswish(), nn.Conv2d(192, 192, 3, 1, 1, groups=192)]
        layers += [nn.BatchNorm2d(192), nn.ReLU6(inplace=True), nn.Conv2d(192, 32, 1)]
    return supervised(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), *images(16, 96))


def autoencoder() -> Step:
    down = [nn.Conv2d(3, 64, 3, 2, 1), nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.Tanh()]
    up = [nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(64, 10, 4, 2, 1), nn.Softplus()]
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return supervised(nn.Sequential(*down, *up, *pool), *images(32, 128), optimizer=torch.optim.SGD)


def volume_net() -> Step:
    x, y = torch.zeros(1, 1, 64, 64, 64), torch.zeros(1, 64, 64, 64, dtype=torch.long)
    return dense_target(Levels(3, (16, 32, 64)), x, y)


def plane_net() -> Step:
    return dense_target(Levels(2, (32, 64, 128, 256)), torch.zeros(4, 1, 192, 192), torch.zeros(4, 192, 192).long())


def dense_target(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """A target for every point."""
    model, x, y = model.cuda(), x.cuda(), y.cuda()
    changed = torch.optim.AdamW(model.parameters())

    def step() -> None:
        changed.zero_grad()
        F.cross_entropy(model(x), y).backward()
        changed.step()

    return step


def adversarial() -> Step:
    """Two nets, two optimizers, two backward passes in a step."""
    maker = nn.Sequential(
        nn.ConvTranspose2d(64, 128, 4), nn.BatchNorm2d(128), nn.ReLU(True),
        nn.ConvTranspose2d(128, 64, 4, 4), nn.BatchNorm2d(64), nn.ReLU(True),
        nn.ConvTranspose2d(64, 3, 8, 8), nn.Tanh(),
    ).cuda()  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(64, 128, 4, 2, 1), nn.BatchNorm2d(128),
        nn.LeakyReLU(0.2, True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 1),
    ).cuda()  # fmt: skip
    of_maker, of_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    real, noise = torch.zeros(64, 3, 128, 128, device="cuda"), torch.zeros(64, 64, 1, 1, device="cuda")
    score = F.binary_cross_entropy_with_logits

    def step() -> None:
        of_judge.zero_grad()
        seen = judge(real)
        score(seen, torch.ones_like(seen)).backward()
        made = maker(noise)
        told = judge(made.detach())
        score(told, torch.zeros_like(told)).backward()
        of_judge.step()
        of_maker.zero_grad()
        fooled = judge(made)
        score(fooled, torch.ones_like(fooled)).backward()
        of_maker.step()

    return step


class Thin(nn.Module):
    """A layer with norm, around which there is a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x_BD: Tensor) -> Tensor:
        return x_BD + self.down(F.gelu(self.up(self.norm(x_BD))))


def small_storages() -> Step:
    """All that it saves is of 256 KiB or less: 512 rows of 128 numbers of 4 bytes."""
    x_BD, y_B = torch.randn(512, 128), torch.randint(128, (512,))
    return supervised(nn.Sequential(*(Thin(128) for _ in range(96))), x_BD, y_B, torch.optim.SGD)


MODELS: dict[str, Callable[[], Step]] = {
    "perceptron": perceptron,
    "residual net": residual_net,
    "residual net in bfloat16": lambda: residual_net(amp=True),
    "perceptron in micro-batches": lambda: perceptron(micro_batches=3),
    "vgg": vgg,
    "separable convolutions": separable,
    "autoencoder": autoencoder,
    "volume net": volume_net,
    "plane net": plane_net,
    "language model": lambda: supervised(Tokens(8000, 512, 6), *words(8, 512)),
    "texts of many lengths": texts_of_many_lengths,
    "wide layers": lambda: wide_layers(),
    "wide layers with momentum": lambda: wide_layers(momentum),
    "many rows first": many_rows_first,
    "language model of two blocks": lambda: supervised(Tokens(8000, 768, 2), *words(1, 128)),
    "language model in bfloat16": lambda: supervised(Tokens(8000, 512, 6), *words(8, 512), amp=True),
    "vision transformer": lambda: supervised(Patches(384, 8), *images(32, 224)),
    "recurrent net": lambda: supervised(Recurrent(4000, 512), *words(32, 256)),
    "dense net": lambda: supervised(Dense(12, 24), *images(16, 96)),
    "adversarial nets": adversarial,
    "small storages": small_storages,
}
