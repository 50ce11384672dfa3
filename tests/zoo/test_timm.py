"""Models of timm, with random weights: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.zoo.zoo import Case, assert_same_at_half

timm: Any = pytest.importorskip("timm", reason="timm is not installed: `make test-zoo ZOO=zoo,timm` does that")

NAMES = (
    "resnet10t", "mobilenetv3_small_050", "efficientnet_b0", "regnetx_002", "test_vit", "test_convnext",
    "test_efficientnet", "test_byobnet", "lcnet_035", "ghostnet_050", "hardcorenas_a", "tinynet_e",
)  # fmt: skip


def case(name: str) -> Case:
    def loss(model: Any) -> Tensor:
        images = torch.arange(8 * 3 * 160 * 160).reshape(8, 3, 160, 160).mul(0.37).sin()
        return model(images).square().mean()

    return Case(name, lambda: timm.create_model(name, pretrained=False, num_classes=10), loss)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_timm_trains_the_same_at_half_of_what_it_needs(name: str) -> None:
    assert_same_at_half(case(name))
