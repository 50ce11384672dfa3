"""The models of the planning benchmark: their sizes are those of the papers, and each can be captured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.planning.models import CASES, setup_of, trace_of
from benchmarks.planning.nets import dense, images, inception, text
from elbowroom.capture import capture

pytestmark = pytest.mark.long


def parameters(net: nn.Module) -> int:
    return sum(each.numel() for each in net.parameters())


def test_models_have_as_many_parameters_as_published() -> None:
    with torch.device("meta"):
        # torchvision's resnet50, vgg16 and inception_v3 (without its auxiliary classifier): 25,557,032; 138,357,544 and
        # 27,161,264 - 3,326,696; GPT-2 small 124,439,808; Llama 2 7B 6,738,415,616
        assert parameters(images.ResNet(50)) == 25_557_032
        assert parameters(images.Vgg16()) == 138_357_544
        assert parameters(inception.InceptionV3()) == 27_161_264 - 3_326_696
        assert parameters(text.Gpt2("small")) == 124_439_808
        assert parameters(text.Llama("7b")) == 6_738_415_616
        # 1603.05027, table 4: 10.2 million; 1606.06650: 19 million
        assert parameters(images.DeepResNet(1001)) == pytest.approx(10.2e6, rel=0.02)
        assert parameters(dense.UNet3d(channels=3, classes=3)) == pytest.approx(19.07e6, rel=0.02)


SMALL: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 2, "resolution": 64},
    "resnet200": {"batch": 1, "resolution": 64},
    "resnet1001": {"depth": 29, "batch": 1},
    "resnet2000": {"depth": 20, "batch": 1},
    "vgg16": {"batch": 1, "resolution": 64},
    "inception_v3": {"batch": 1, "resolution": 128},
    "unet3d": {"resolution": 16, "base": 8},
    "deeplabv3": {"batch": 1, "resolution": 65},
    "gpt2_small": {"batch": 1, "tokens": 32},
    "gpt2_medium": {"batch": 1, "tokens": 32, "plain": True},
    "gpt2_large": {"batch": 1, "tokens": 32},
    "gpt2_xl": {"batch": 1, "tokens": 32},
    "llama_1b": {"batch": 1, "tokens": 32, "layers": 2},
    "llama_7b_layers": {"batch": 1, "tokens": 32, "layers": 1},
    "nmt": {"batch": 2, "tokens": 5},
}


@pytest.mark.parametrize("name", CASES)
def test_every_case_can_be_captured(name: str) -> None:
    trace = capture(setup_of(name, **SMALL[name]), machine="a100-80gb", steps=2)
    first, _ = trace.steps[-1]
    assert len(trace.steps) == 2
    assert any(save.saved_at >= first for save in trace.saves)
    assert {remark.kind for remark in trace.remarks} <= {"workspace_model", "not_compared"}


def test_traces_are_kept_outside_the_repository(tmp_path: Path) -> None:
    first = trace_of("unet3d", "a100-80gb", tmp_path, resolution=16, base=4)
    (path,) = tmp_path.iterdir()
    written = path.stat().st_mtime_ns
    again = trace_of("unet3d", "a100-80gb", tmp_path, resolution=16, base=4)

    assert again == first
    assert path.stat().st_mtime_ns == written
    with pytest.raises(SystemExit, match="in the repository"):
        trace_of("unet3d", "a100-80gb", Path(__file__).parent)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(SystemExit, match="resnet50: given tokens; allowed are depth, batch, resolution"):
        setup_of("resnet50", tokens=3)
