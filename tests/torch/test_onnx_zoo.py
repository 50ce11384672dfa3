"""The nine networks of ONNX's model zoo that the library's own tests ship: their weights are made of their shapes."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from elbowroom.frameworks.onnx import load
from tests.torch.onnx_files import both, peaks

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NETS = {
    "bvlc_alexnet": 60_965_224,
    "densenet121": 7_978_856 + 2 * 41_824,  # torchvision's, and Caffe's scales and shifts behind its norms once more
    "inception_v1": 6_998_552,
    "inception_v2": 11_214_888,
    "resnet50": 25_557_032,
    "shufflenet": 1_393_320,
    "squeezenet": 1_235_496,
    "vgg19": 143_667_240,
    "zfnet512": 87_250_536,
}
"""Numbers that train. Those of ResNet-50, VGG-19 and SqueezeNet 1.1 are torchvision's, of the others the file's."""

pytestmark = pytest.mark.skipif(not LIGHT.is_dir(), reason="this build of onnx has no networks with it")


@pytest.mark.parametrize("name", NETS)
def test_a_network_of_the_zoo_trains_all_of_its_weights(name: str) -> None:
    model = load(LIGHT / f"light_{name}.onnx", batch=2, values=False)

    assert sum(each.numel() for each in model.parameters()) == NETS[name]
    assert all(each.requires_grad for each in model.parameters())


def vgg19() -> nn.Module:
    """VGG-19 as it was published; its activations overwrite."""
    parts: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(depth):
            parts += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        parts.append(nn.MaxPool2d(2, 2))
    parts += [nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*parts, nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000))


class Fire(nn.Module):
    """A layer of SqueezeNet: narrow, then wide by two convolutions next to each other."""

    def __init__(self, channels: int, narrow: int, wide: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(channels, narrow, 1), nn.ReLU(inplace=True))
        self.small = nn.Sequential(nn.Conv2d(narrow, wide, 1), nn.ReLU(inplace=True))
        self.large = nn.Sequential(nn.Conv2d(narrow, wide, 3, padding=1), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return torch.cat([self.small(x), self.large(x)], 1)


def squeezenet() -> nn.Module:
    """SqueezeNet 1.1 as it was published; its activations overwrite. It ends with [N, 1000, 1, 1]."""
    pool = (nn.MaxPool2d(3, 2) for _ in range(3))
    fires = [
        *(next(pool), Fire(64, 16, 64), Fire(128, 16, 64)),
        *(next(pool), Fire(128, 32, 128), Fire(256, 32, 128)),
        *(next(pool), Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)),
    ]
    last = [nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(inplace=True), nn.AvgPool2d(13)]
    return nn.Sequential(nn.Conv2d(3, 64, 3, 2), nn.ReLU(inplace=True), *fires, *last)


@pytest.mark.long
@pytest.mark.parametrize(("name", "make"), [("vgg19", vgg19), ("squeezenet", squeezenet)])
def test_a_network_of_the_zoo_peaks_where_its_original_does(name: str, make: type[nn.Module]) -> None:
    options = {"batch": 2, "inplace": True, "logits": True}

    original, graph = both(make, [torch.randn(2, 3, 224, 224)], str(LIGHT / f"light_{name}.onnx"), **options)

    assert peaks(graph) == peaks(original)
