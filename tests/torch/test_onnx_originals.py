"""ONNX graphs hold what the PyTorch originals hold: peaks in allocated and reserved bytes are the same to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.cases.resnet50 import ResNet50
from benchmarks.planning.nets.dense import UNet3d
from benchmarks.planning.nets.images import Vgg16
from tests.torch.onnx_files import TRAINING, both, exported, peaks

LONG = pytest.mark.long
QUICK = ("MobileNetV2", "GPT", "LSTM")
IMAGES = (2, 3, 64, 64)
WORDS = 1000


class Inverted(nn.Module):
    """An inverted residual of MobileNetV2: wide, by channel, narrow, with batch norms and ReLU6."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        wide = 6 * channels
        self.conv = nn.Sequential(
            *(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True)),
            *(
                nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
                nn.BatchNorm2d(wide),
                nn.ReLU6(inplace=True),
            ),
            *(nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.same = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.same else self.conv(x)


def mobile() -> nn.Module:
    blocks = [Inverted(*each) for each in ((16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1))]
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True)),
        *(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 10)),
    )


class Block(nn.Module):
    """A layer of a transformer, with attention in one call or by hand, and the norms first."""

    def __init__(self, width: int, *, plain: bool, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.plain, self.drop = plain, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.view(batch, tokens, 4, width // 4).transpose(1, 2) for part in parts)
        if self.plain:
            y = torch.softmax(q @ k.transpose(-1, -2) / (width // 4) ** 0.5, -1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, tokens, width)))
        return x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))


class Language(nn.Module):
    """Words to scores of words; with `tied`, the head shares the embedding's weight."""

    def __init__(self, *, plain: bool = False, tied: bool = True, dropout: float = 0.1, width: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width, plain=plain, dropout=dropout) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    def __init__(self, kind: Any = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.layer = kind(32, 48, batch_first=True, **options)
        self.head = nn.Linear(48 * (2 if self.layer.bidirectional else 1), WORDS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layer(self.words(words))[0])


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, functional.gelu, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 10))


def grouped() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1)),
        *(nn.InstanceNorm2d(16, affine=True), nn.PReLU(16), nn.ConvTranspose2d(16, 8, 2, 2), nn.Hardswish()),
        *(nn.Upsample(scale_factor=2), nn.Conv2d(8, 5, 1)),
    )


ORIGINALS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "ResNet-50": (lambda: ResNet50(checkpointed=False), IMAGES, {}),
    "VGG-16": (lambda: Vgg16(64, 10), IMAGES, {"inplace": True}),
    "MobileNetV2": (mobile, IMAGES, {"inplace": True}),
    "U-Net": (lambda: UNet3d(1, 3, 8), (1, 1, 16, 16, 16), {"inplace": True}),
    "GroupNorm and others": (grouped, IMAGES, {}),
    "GPT": (Language, (4, 32), {}),
    "GPT, attention by hand": (lambda: Language(plain=True, tied=False), (4, 32), {}),
    "encoder": (encoder, (4, 32, 64), {}),
    "LSTM": (Recurrent, (4, 32), {}),
    "LSTM, two ways and layers": (lambda: Recurrent(num_layers=2, bidirectional=True), (4, 32), {}),
    "GRU": (lambda: Recurrent(nn.GRU), (4, 32), {}),
}


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=LONG) for name in ORIGINALS])
def test_a_graph_peaks_where_its_original_does(name: str, tmp_path: Path) -> None:
    # given a network of PyTorch, and its export with batch norms and dropout
    make, shape, options = ORIGINALS[name]
    words = len(shape) == 2
    inputs = [torch.ones(shape, dtype=torch.int64) if words else torch.randn(shape)]
    file = exported(make(), inputs, tmp_path / "net.onnx", **TRAINING)

    # when both train with AdamW
    original, graph = both(make, inputs, file, **options)

    # then they hold the same at their peaks, by all ends of the estimate
    assert peaks(graph) == peaks(original)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_graph_peaks_where_its_original_does_with_other_optimizers(optimizer: str, tmp_path: Path) -> None:
    inputs = [torch.randn(IMAGES)]
    file = exported(mobile(), inputs, tmp_path / "net.onnx", **TRAINING)

    original, graph = both(mobile, inputs, file, optimizer=optimizer, inplace=True)

    assert peaks(graph) == peaks(original)


@pytest.mark.long
def test_batch_norms_that_an_export_for_inference_folded_are_put_back(tmp_path: Path) -> None:
    # given an export in which each batch norm is part of the convolution before it
    inputs = [torch.randn(IMAGES)]
    file = exported(ResNet50(checkpointed=False), inputs, tmp_path / "net.onnx")
    said: list[tuple[str, str]] = []

    original, graph = both(lambda: ResNet50(checkpointed=False), inputs, file, notes=lambda *each: said.append(each))

    # then the answer is that of the original, and says so: 53 convolutions, of two graphs
    assert peaks(graph) == peaks(original)
    assert len(said) == 2 * 53
    assert {kind for kind, _ in said} == {"exported"}


@pytest.mark.long
def test_activations_are_not_in_place_unless_it_is_asked_for(tmp_path: Path) -> None:
    inputs = [torch.randn(IMAGES)]
    file = exported(Vgg16(64, 10), inputs, tmp_path / "net.onnx", **TRAINING)

    original, graph = both(lambda: Vgg16(64, 10), inputs, file)

    assert peaks(graph)[0].likely_bytes >= peaks(original)[0].likely_bytes
    names = [[op.name for op in trace.ops] for trace in (original, graph)]
    assert [any("relu_" in name for name in each) for each in names] == [True, False]
