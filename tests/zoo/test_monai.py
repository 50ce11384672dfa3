"""Networks of MONAI."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.zoo.zoo import Case, assert_same_at_half

nets: Any = pytest.importorskip("monai.networks.nets", reason="monai is not installed: it comes with the extra demo")


def first(found: Any) -> Tensor:
    """The first tensor of an output."""
    while not isinstance(found, Tensor):
        found = found[0] if isinstance(found, (tuple, list)) else next(iter(found.values()))
    return found


def case(name: str, shape: tuple[int, ...], **given: Any) -> Case:
    def loss(model: Any) -> Tensor:
        images = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).sin()
        return first(model(images)).square().mean()

    def model() -> Any:
        return getattr(nets, name)(**given)

    return Case(name, model, loss)


VOLUME = (1, 1, 32, 32, 32)
UNET: dict[str, Any] = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}

CASES = [
    case("UNet", VOLUME, **UNET, channels=(8, 16, 32), strides=(2, 2), num_res_units=2),
    case("BasicUNet", VOLUME, **UNET, features=(8, 8, 16, 32, 32, 8)),
    case(
        "BasicUNetPlusPlus",
        (1, 1, 64, 64),
        spatial_dims=2,
        in_channels=1,
        out_channels=2,
        features=(8, 8, 16, 32, 32, 8),
    ),
    case("AttentionUnet", VOLUME, **UNET, channels=(8, 16, 32), strides=(2, 2)),
    case(
        "UNETR",
        VOLUME,
        in_channels=1,
        out_channels=2,
        img_size=32,
        feature_size=8,
        hidden_size=48,
        mlp_dim=96,
        num_heads=4,
    ),
    case("SwinUNETR", (1, 1, 64, 64), in_channels=1, out_channels=2, feature_size=12, spatial_dims=2),
    case("SegResNet", VOLUME, **UNET, init_filters=8, blocks_down=(1, 2, 2), blocks_up=(1, 1)),
    case("SegResNetVAE", VOLUME, input_image_size=(32, 32, 32), in_channels=1, out_channels=2, init_filters=8),
    case(
        "DynUNet",
        VOLUME,
        **UNET,
        kernel_size=[3, 3, 3],
        strides=[1, 2, 2],
        upsample_kernel_size=[2, 2],
        filters=[8, 16, 32],
    ),
    case("VNet", (1, 1, 64, 64), spatial_dims=2, in_channels=1, out_channels=2),
    case("HighResNet", (1, 1, 12, 12, 12), **UNET),
    case("DenseNet121", (2, 1, 64, 64), spatial_dims=2, in_channels=1, out_channels=2, init_features=16, growth_rate=8),
    case("SEResNet50", (2, 1, 64, 64), spatial_dims=2, in_channels=1, num_classes=2),
    case(
        "ResNet",
        (8, 1, 64, 64),
        block="basic",
        layers=[1, 1, 1, 1],
        block_inplanes=[8, 16, 32, 64],
        spatial_dims=2,
        n_input_channels=1,
    ),
    case(
        "EfficientNetBN", (2, 1, 64, 64), model_name="efficientnet-b0", spatial_dims=2, in_channels=1, pretrained=False
    ),
    case(
        "ViT",
        (4, 1, 64, 64),
        in_channels=1,
        img_size=64,
        patch_size=8,
        spatial_dims=2,
        hidden_size=48,
        mlp_dim=96,
        num_heads=4,
        num_layers=4,
    ),
    case(
        "ViTAutoEnc",
        (2, 1, 64, 64),
        in_channels=1,
        img_size=64,
        patch_size=4,
        spatial_dims=2,
        hidden_size=48,
        mlp_dim=96,
        num_heads=4,
        num_layers=4,
    ),
    case("AutoEncoder", VOLUME, **UNET, channels=(8, 16, 32), strides=(2, 2, 2)),
    case(
        "VarAutoEncoder",
        VOLUME,
        spatial_dims=3,
        in_shape=(1, 32, 32, 32),
        out_channels=1,
        latent_size=2,
        channels=(8, 16),
        strides=(2, 2),
    ),
    case("RegUNet", VOLUME, spatial_dims=3, in_channels=1, num_channel_initial=8, depth=2, out_channels=3),
    case(
        "UNet",
        (2, 1, 96, 96),
        spatial_dims=2,
        in_channels=1,
        out_channels=2,
        channels=(8, 16, 32, 64),
        strides=(2, 2, 2),
        dropout=0.2,
    ),
]


@pytest.mark.parametrize("each", [pytest.param(each, id=f"{each.name}-{n}") for n, each in enumerate(CASES)])
def test_a_network_of_monai_trains_the_same_at_half_of_what_it_needs(each: Case) -> None:
    assert_same_at_half(each)
