"""Durations on a virtual device, by hand arithmetic; FLOPs as torch counts them; choices of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from elbowroom.capture import capture
from elbowroom.capture.durations.convolutions import choices
from elbowroom.capture.durations.costs import LAUNCH_NS, duration_ns
from elbowroom.capture.durations.op_line import OpLine
from elbowroom.capture.durations.products import MatrixProduct, filled, rate_of
from elbowroom.capture.flops import flops
from elbowroom.machine import Rate
from elbowroom.trace import Trace
from tests.torch.virtual_gpu import H100

# 100 multiprocessors, 1 T/s in float32, 8 in TF32, 16 in half precision, 100 GB/s: easy to divide by
GPU = replace(
    H100,
    name="gpu",
    multiprocessors=100,
    flops_per_s=10**12,
    memory_bytes_per_s=10**11,
    rates=(
        Rate(dtype="float32", flops_per_s=10**12),
        Rate(dtype="tf32", flops_per_s=8 * 10**12),
        Rate(dtype="float16", flops_per_s=16 * 10**12),
    ),
)


def line(name: str, *arguments: Any, dtype: str = "float32", moved_bytes: int = 1) -> OpLine:
    return OpLine(name, "", "forward", (), (), arguments, dtype, moved_bytes)


def test_a_gpu_of_unknown_rates_takes_no_time_for_arithmetic() -> None:
    # given attention, whose work has a rate of its own
    unknown = replace(GPU, flops_per_s=0, memory_bytes_per_s=0, rates=())
    heads = (1, 8, 1024, 64)
    attention = line("aten._scaled_dot_product_flash_attention", heads, heads, heads, 0.0, True, dtype="bfloat16")
    assert duration_ns(attention, 10**12, unknown) == LAUNCH_NS


def test_an_op_takes_no_less_than_its_launch_and_a_view_nothing() -> None:
    assert duration_ns(line("aten.relu", (4,), moved_bytes=32), 0, GPU) == LAUNCH_NS
    assert duration_ns(line("aten.view", moved_bytes=0), 0, GPU) == 0


def test_an_elementwise_op_takes_the_time_of_its_bytes() -> None:
    # 90 MB at 0.9 * 100 GB/s: 1 ms
    assert duration_ns(line("aten.relu", (1,), moved_bytes=90_000_000), 0, GPU) == 1_000_000


def test_a_batch_norm_reads_its_input_twice() -> None:
    # a float32 input of 15 M elements is 60 MB: read, written and read again, 180 MB at 90 GB/s
    norm = line("aten.cudnn_batch_norm", (15_000_000,), moved_bytes=120_000_000)
    assert duration_ns(norm, 0, GPU) == 2_000_000


def test_an_embedding_reads_only_the_rows_it_makes() -> None:
    # a table of 400 MB; 9 MB of rows are read and made: 18 MB at 90 GB/s
    gather = line("aten.embedding", (100_000_000,), (1,), moved_bytes=409_000_000)
    assert duration_ns(gather, 0, GPU) == 200_000


def test_a_product_that_fills_the_gpu_takes_its_share_of_the_peak() -> None:
    # 1280 x 1280 in tiles of 128 are 100 tiles, one for each multiprocessor; 2 * 1280 * 1280 * 900 FLOPs at 0.9 T/s
    work = 2 * 1280 * 1280 * 900
    product = line("aten.mm", (1280, 900), (900, 1280))
    assert duration_ns(product, work, GPU) == int(work / 0.9 / 1000)
    # with another column of tiles, 110 of them fill 200 places; smaller ones, of 64, are 20 * 22 in 500 places, at 75 %
    assert filled(MatrixProduct(batch=1, rows=1280, columns=1408, inner=100), 100) == pytest.approx(0.75 * 440 / 500)


def test_a_long_product_of_few_tiles_is_split() -> None:
    # one tile, 51,200 long: 100 pieces of 512
    assert filled(MatrixProduct(batch=1, rows=128, columns=128, inner=51_200), 100) == 1.0
    assert filled(MatrixProduct(batch=1, rows=128, columns=128, inner=512), 100) == pytest.approx(0.75 * 4 / 100)


def test_rates_are_those_of_the_type_or_of_the_next_wider_one() -> None:
    assert rate_of("float16", GPU) == 16 * 10**12
    assert rate_of("bfloat16", GPU) == 16 * 10**12
    assert rate_of("tf32", GPU) == 8 * 10**12
    assert rate_of("float16", replace(GPU, rates=GPU.rates[:1])) == 10**12
    assert rate_of("bfloat16", replace(GPU, compute_capability=70)) == 10**12


def test_causal_attention_is_half_the_work() -> None:
    shape = (1, 1, 1, 1)
    causal = line("aten._scaled_dot_product_flash_attention", shape, shape, shape, 0.0, True, dtype="float16")
    full = line("aten._scaled_dot_product_flash_attention", shape, shape, shape, 0.0, False, dtype="float16")
    # 10.4 T at 0.65 * 16 T/s: one second
    assert duration_ns(full, 10_400_000_000_000, GPU) == 10**9
    assert duration_ns(causal, 10_400_000_000_000, GPU) == 5 * 10**8


# FLOPs


def traced(setup: Callable[[], Callable[[], Any]]) -> Trace:
    return capture(setup, machine=GPU, steps=2)


def conv_net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, dilation=2),
        nn.ConvTranspose2d(16, 4, 3, stride=2, output_padding=1),
        nn.Flatten(),
        nn.Linear(4 * 26 * 26, 10),
    )
    return net, (torch.randn(2, 3, 32, 32),)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).view(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(2, 16, 32))


NETS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "convolutions": conv_net,
    "attention": lambda: (Attention(), (torch.randn(2, 16, 32),)),
}


@pytest.mark.parametrize("name", NETS)
def test_flops_are_those_of_torchs_own_counter(name: str) -> None:
    # given what torch counts on the CPU, with a gradient of the input
    net, inputs = NETS[name]()
    with FlopCounterMode(display=False) as counter:
        net(*(each.requires_grad_() for each in inputs)).sum().backward()

    # when a step is captured on a virtual GPU
    def setup() -> Callable[[], None]:
        net, inputs = NETS[name]()
        net.cuda()
        given = [each.detach().cuda().requires_grad_() for each in inputs]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step() -> None:
            net(*given).sum().backward()
            optimizer.step()

        return step

    trace = traced(setup)
    first, end = trace.steps[-1]

    # then it counts the same, and attention, which torch counts on cuda only, by torch's own formulas
    attention = torch.Size((2, 4, 16, 8))
    on_cuda = sdpa_flop_count(*3 * [attention]) + sdpa_backward_flop_count(*4 * [attention])
    wanted = counter.get_total_flops() + (on_cuda if name == "attention" else 0)
    assert sum(op.flops for op in trace.ops[first:end]) == wanted


def test_flops_of_a_recurrent_network_are_one_product_with_each_weight() -> None:
    # 5 steps of 3 rows, 2 layers in 2 directions with 4 gates of 16: 2 * 64 * (8 + 16) and 2 * 64 * (32 + 16) weights
    weights = [(64, 8), (64, 16), (64,), (64,)] * 2 + [(64, 32), (64, 16), (64,), (64,)] * 2
    forward = flops("aten._cudnn_rnn", ((5, 3, 8), weights, 4, None, (4, 3, 16)), [])
    assert forward == 2 * 15 * (2 * 64 * 24 + 2 * 64 * 48)
    assert flops("aten._cudnn_rnn_backward", ((5, 3, 8), weights, 4, None, (4, 3, 16)), []) == 2 * forward


# Convolution choices


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], groups: int = 1, stride: int = 1, dtype: str = "float32"
) -> OpLine:
    padding = [w[2] // 2] * 2
    arguments = (x, w, None, [stride] * 2, padding, [1, 1], False, [0, 0], groups)
    return line("aten.convolution", *arguments, dtype=dtype)


def test_a_convolution_offers_what_it_was_recorded_with_first() -> None:
    offered = choices(convolution((32, 64, 56, 56), (64, 64, 3, 3)), 12_345, GPU)

    assert (offered[0].name, offered[0].workspace_bytes) == ("implicit_precomp_gemm", 12_345)
    # then, by growing workspace, only such as are faster than all with less
    others = offered[1:]
    assert [c.workspace_bytes for c in others] == sorted(c.workspace_bytes for c in others)
    assert [c.duration_ns for c in others] == sorted((c.duration_ns for c in others), reverse=True)


def test_the_implicit_product_is_counted_by_hand() -> None:
    # 100 images of 16 x 64 points, 128 channels out: 102,400 x 128, 800 tiles on 100 multiprocessors; 9 * 64 deep
    (recorded, *_) = choices(convolution((100, 64, 16, 64), (128, 64, 3, 3)), 0, GPU)
    work = 2 * 102_400 * 128 * 9 * 64
    assert recorded.duration_ns == int(work * 10**9 / (0.9 * 10**12))


def test_winograd_keeps_its_transformed_weights_and_maps() -> None:
    # 32 images, 64 channels in and out, 56 x 56: 14 * 14 tiles of 4 x 4, 36 floats for each map and each window
    offered = {c.name: c for c in choices(convolution((32, 64, 56, 56), (64, 64, 3, 3)), 0, GPU)}
    assert offered["winograd"].workspace_bytes == 16 * 64 * 64 * 4
    assert "winograd_nonfused" not in offered or (
        offered["winograd_nonfused"].workspace_bytes == 36 * 4 * (32 * 128 * 14 * 14 + 64 * 64)
    )
    assert offered["winograd"].duration_ns < offered["implicit_precomp_gemm"].duration_ns


def test_algorithms_are_offered_only_where_they_apply() -> None:
    strided = choices(convolution((32, 64, 56, 56), (64, 64, 3, 3), stride=2), 0, GPU)
    grouped = choices(convolution((32, 64, 56, 56), (64, 1, 3, 3), groups=64), 0, GPU)
    pointwise = choices(convolution((32, 64, 56, 56), (64, 64, 1, 1)), 0, GPU)
    names = {c.name for c in (*strided, *grouped, *pointwise)}
    assert not {name for name in names if "winograd" in name or "fft" in name}
    assert choices(line("aten.mm", (4, 4), (4, 4)), 0, GPU) == ()


def test_copies_in_another_layout_can_be_had_without() -> None:
    # in half precision and the plain layout the recorded algorithm copies all three tensors; without, float32's rate
    offered = choices(convolution((32, 64, 56, 56), (64, 64, 3, 3), dtype="float16"), 50_000_000, GPU)
    plain = next(c for c in offered if c.name == "implicit_gemm")
    assert plain.workspace_bytes == 0
    assert plain.duration_ns > offered[0].duration_ns


def test_backward_offers_pairs_of_its_two_passes() -> None:
    x, w, y = (32, 64, 56, 56), (64, 64, 3, 3), (32, 64, 56, 56)
    settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    both = choices(line("aten.convolution_backward", y, x, w, None, *settings, [True, True, False]), 0, GPU)
    weight = choices(line("aten.convolution_backward", y, x, w, None, *settings, [False, True, False]), 0, GPU)
    assert both[0].name == "implicit_precomp_gemm+implicit_precomp_gemm"
    assert all(c.name.count("+") == 1 for c in both)
    assert both[0].duration_ns > weight[0].duration_ns > 0
    assert len({c.name for c in both}) == len(both)


def test_a_captured_convolution_has_choices_and_takes_the_time_of_the_first() -> None:
    def setup() -> Callable[[], None]:
        net = nn.Conv2d(3, 8, 3, padding=1).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.randn(4, 3, 32, 32, device="cuda")

        def step() -> None:
            net(x).sum().backward()
            optimizer.step()

        return step

    trace = traced(setup)
    found = [op for op in trace.ops if op.choices]
    assert {op.name for op in found} == {"aten.convolution", "aten.convolution_backward"}
    assert all(op.duration_ns == op.choices[0].duration_ns for op in found)
