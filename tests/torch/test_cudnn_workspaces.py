"""The model of cuDNN's workspaces, by hand arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.capture.virtual import ConvolutionCall
from elbowroom.capture.virtual.scratch_memory.cudnn_workspaces import MOST_BYTES, usual_workspace, winograd_bytes

# The first convolution of FCN's head on ResNet-50: 2 images of 512 x 1024, an eighth of them in size.
HEAD = ConvolutionCall(
    input_shape=(2, 2048, 64, 128),
    weight_shape=(512, 2048, 3, 3),
    output_shape=(2, 512, 64, 128),
    item_bytes=4,
    pass_="forward",
    compute_capability=70,
)


def test_transforms_of_many_channels_are_likely_in_float32_without_tensor_cores() -> None:
    # 2 * 16 * 32 tiles of 4 x 4; 36 numbers of 4 bytes for each tile and channel, and for each pair of channels
    expected = 36 * 4 * (1024 * (2048 + 512) + 2048 * 512)

    assert winograd_bytes(HEAD) == expected
    assert usual_workspace(HEAD).likely_bytes == expected
    assert usual_workspace(HEAD).least_bytes == 0
    # tiles of 2 x 2 are four times as many, with 16 numbers each
    assert winograd_bytes(HEAD, 2) == 16 * 4 * (4096 * (2048 + 512) + 2048 * 512)


@pytest.mark.parametrize(
    "change",
    [
        {"stride": (2, 2)},
        {"dilation": (2, 2)},
        {"groups": 2},
        {"weight_shape": (512, 2048, 5, 5)},
        {"compute_capability": 37},
        {"item_bytes": 8},
        {"weight_shape": (512, 2048, 3, 3, 3)},
    ],
    ids=["stride", "dilation", "groups", "window", "Kepler", "float64", "three dimensions"],
)
def test_where_transforms_do_not_apply_indices_are_likely(change: dict[str, object]) -> None:
    call = replace(HEAD, **change)  # type: ignore[arg-type]

    assert winograd_bytes(call) == 0
    assert 0 < usual_workspace(call).likely_bytes < 2**20


def test_few_channels_are_transformed_on_turing_alone() -> None:
    volta = replace(HEAD, weight_shape=(64, 64, 3, 3), input_shape=(2, 64, 64, 128), output_shape=(2, 64, 64, 128))
    turing = replace(volta, compute_capability=75)

    assert usual_workspace(turing).likely_bytes == winograd_bytes(turing) > 2**20
    assert usual_workspace(volta).likely_bytes < 2**20
    assert usual_workspace(volta).most_bytes >= winograd_bytes(volta)


def test_a_workspace_of_two_gib_or_more_is_not_likely() -> None:
    many = replace(HEAD, input_shape=(16, 2048, 64, 128), output_shape=(16, 512, 64, 128))

    assert winograd_bytes(many) > MOST_BYTES
    assert usual_workspace(many).likely_bytes < 2**20
    assert usual_workspace(many).most_bytes < 2 * MOST_BYTES
    assert usual_workspace(many).tried_bytes >= winograd_bytes(many)


def test_on_tensor_cores_tensors_in_the_plain_layout_are_copied() -> None:
    plain = replace(HEAD, tensor_cores=True, item_bytes=2, compute_capability=80)
    last = replace(plain, channels_last=True)

    # half precision
    tensors = 2 * 2048 * 64 * 128 + 512 * 2048 * 9 + 2 * 512 * 64 * 128
    assert usual_workspace(plain)[:3] == (2 * tensors, 0, 4 * tensors)
    assert usual_workspace(last).likely_bytes < 2**20
    assert usual_workspace(last).most_bytes == 4 * 2 * 512 * 64 * 128  # partial sums of the output


@pytest.mark.parametrize("pass_", ["forward", "input", "weight"])
@pytest.mark.parametrize("tensor_cores", [False, True])
def test_bounds_are_in_order(pass_: str, tensor_cores: bool) -> None:
    wanted = usual_workspace(replace(HEAD, pass_=pass_, tensor_cores=tensor_cores))

    assert 0 <= wanted.least_bytes <= wanted.likely_bytes <= wanted.most_bytes <= wanted.tried_bytes


def test_float32_on_tensor_cores_may_be_transformed_as_well() -> None:
    call = replace(HEAD, tensor_cores=True, compute_capability=86)

    copies = 4 * (2 * 2048 * 64 * 128 + 512 * 2048 * 9 + 2 * 512 * 64 * 128)
    assert usual_workspace(call).likely_bytes == copies
    assert usual_workspace(call).most_bytes == max(2 * copies, winograd_bytes(call), winograd_bytes(call, 2))
