"""The table of scratch memory: figures that the CUDA build of torch 2.11.0 gave, and how they come about."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from elbowroom.capture.virtual import VirtualDevice
from elbowroom.capture.virtual.ops.sparse import SORTED
from elbowroom.capture.virtual.scratch_memory.reductions import Scratch, scratch
from elbowroom.capture.virtual.scratch_memory.sorting_scratch import SUM_TILE, pairs_bytes, scan_bytes, unique_tile
from elbowroom.machine import Machine, Tier

H100 = Machine(
    name="h100",
    tiers=(Tier(name="device", capacity_bytes=80 * 2**30),),
    links=(),
    compute_capability=90,
    multiprocessors=132,
)
WORKSPACE = 32 * 2**20
"""cuBLAS's on capability 9.0."""
aten: Any = torch.ops.aten


def made_by(work: Callable[..., Any], *arguments: Callable[[], torch.Tensor]) -> str:
    """Allocations and frees of one op as "a4 a2112 a4 f4 f2112"."""
    with VirtualDevice(H100, None, cublas_handles=1) as device:
        given = [make() for make in arguments]
        first = len(device.ledger.events)
        kept = work(*given)
        found = [f"{'a' if size > 0 else 'f'}{abs(size)}" for _, _, size in device.ledger.events[first:]]
        del kept
    return " ".join(found)


def on_device(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    return lambda: torch.empty(shape, device="cuda", dtype=dtype)


def test_a_sum_of_rows_is_split_over_blocks() -> None:
    # given 4096 rows of 768 floats, of which the rows vanish: a block is 32 * 4 threads of 4 columns each
    found = scratch((4096, 768), (768, 1), [0], 4, 132, 90)

    # then 4096 / 4 rows = 1024 values a thread, at least 16 each: 64 blocks; partials 4 * 768 * 64 * (32 * 4 threads);
    # counters 4 * ceil(768 / 4 / 32)
    assert found == Scratch(25_165_824, 24)


def test_a_sum_of_everything_fills_the_gpu() -> None:
    # given 8192 * 1024 floats in a row: blocks of 512 threads, 4 of them on each of 132 multiprocessors
    assert scratch((8192, 1024), (1024, 1), [], 4, 132, 90) == Scratch(4 * 528, 4)


@pytest.mark.parametrize(("shape", "dims"), [((64, 16), [1]), ((8192, 1024), [1]), ((0, 5), [0])])
def test_a_small_reduction_needs_no_scratch(shape: tuple[int, ...], dims: list[int]) -> None:
    assert scratch(shape, (shape[1], 1), dims, 4, 132, 90) == Scratch(0, 0)


@pytest.mark.parametrize(
    ("count", "bits", "expected"),
    [
        (351, 10, 1),  # one block
        (4096, 64, 83_455),  # 2 * 8 * 4096 + 8 passes * 2048 + 1 tile * 1024 + 511
        (4096, 10, 71_167),  # 2 passes
        (1_000_000, 10, 16_227_839),  # 218 tiles of 4608
        (2401, 8, 3_583),  # one pass needs no second buffers
    ],
)
def test_a_sort_of_pairs_needs_what_cub_asks_for(count: int, bits: int, expected: int) -> None:
    assert pairs_bytes(count, 8, bits) == expected


@pytest.mark.parametrize("capability", [80, 86])
@pytest.mark.parametrize(
    ("count", "key_bytes", "expected"),
    [
        # as seen in the CUDA build on 8.0 and 8.6: both copies, each a multiple of 256, passes, tiles and 511
        (5_000, 8, 99_327),  # 40192 + 40192 + 8 passes * 2048 + 2 tiles of 3840
        (1_000_000, 8, 16_284_159),  # 261 tiles
        (5_000, 4, 71_167),  # 20224 + 40192 + 4 passes * 2048 + 2 tiles of 3072
        (1_000_000, 4, 12_342_527),  # 326 tiles
    ],
)
def test_a_sort_before_capability_90_needs_what_was_seen_there(
    capability: int, count: int, key_bytes: int, expected: int
) -> None:
    assert pairs_bytes(count, key_bytes, 8 * key_bytes, capability) == expected


@pytest.mark.parametrize(("capability", "expected"), [(80, 72_191), (89, 72_191), (90, 71_167)])
def test_a_sort_has_smaller_tiles_before_capability_90(capability: int, expected: int) -> None:
    # given 4096 keys of 8 bytes and 10 bits: 2 * 8 * 4096 + 2 passes * 2048 + 511, and 1024 for each tile of 4608 keys
    # on 9.0 (one tile) or of 3840 before (two); the larger figure is in a trace of a real GPU of capability 8.x too
    assert pairs_bytes(4096, 8, 10, capability) == expected


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        (80, [1_279, 2_047, 5_631, 9_983]),  # tiles of 1792: 12, 56, 280, 559
        (86, [2_047, 6_143, 26_111, 51_199]),  # of 320: 63, 313, 1563, 3125
        (90, [1_279, 1_535, 2_815, 4_607]),  # of 4608: 5, 22, 109, 218
    ],
)
def test_unique_keys_need_state_for_each_tile_as_was_seen(capability: int, expected: list[int]) -> None:
    # given 16 bytes for each tile and for 32 more, to a multiple of 256, and 511
    counts = (20_000, 100_000, 500_000, 1_000_000)
    assert [scan_bytes(count, unique_tile(capability)) for count in counts] == expected

    # and of an exclusive sum on all three, tiles of 896: 23, 112, 559, 1117
    assert [scan_bytes(count, SUM_TILE) for count in counts] == [1_535, 2_815, 9_983, 18_943]


CASES: dict[str, tuple[Callable[..., Any], tuple[Callable[[], torch.Tensor], ...], str]] = {
    "sum of truth values": (
        lambda x: x.sum(),
        (on_device(4096, 768, dtype=torch.bool),),
        "a8 a25165824 a3072 a4 f4 f3072 f25165824",
    ),
    "rms norm": (lambda x: torch.rms_norm(x, (768,)), (on_device(4096, 768),), "a12582912 a16384 f16384"),
    "rms norm of a transposed matrix": (
        lambda x: torch.rms_norm(x.t(), (768,)),
        (on_device(768, 4096),),
        "a12582912 a12582912 a16384 f12582912 f16384",
    ),
    "sum": (lambda x: x.sum(), (on_device(8192, 1024),), "a4 a2112 a4 f4 f2112"),
    "norm": (lambda x: x.norm(), (on_device(8192, 1024),), "a4 a2112 a4 f4 f2112"),
    "std": (lambda x: x.std(), (on_device(8192, 1024),), "a4 a8448 a4 f4 f8448"),
    "argmax": (lambda x: x.argmax(1), (on_device(8192, 1024),), "a65536"),
    "sort": (lambda x: x.sort(), (on_device(4096),), "a16384 a32768 a32768 f32768"),
    "flash": (
        lambda x: aten._scaled_dot_product_flash_attention(x, x, x, 0.0, True)[0],
        (on_device(2, 8, 512, 64, dtype=torch.bfloat16),),
        "a1048576 a32768 a65536 a4194304 a16 a8 f65536 f4194304 f8 f16 f32768",
    ),
    "plain softmax": (
        lambda x: aten._safe_softmax(x, -1),
        (on_device(2, 8, 64, 64),),
        "a262144 a65536 a1024 a4 f4 f1024 f65536",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_op_allocates_and_frees_what_it_does_on_cuda(case: str) -> None:
    work, arguments, expected = CASES[case]

    assert made_by(work, *arguments) == expected


def test_the_backward_of_a_long_rms_norm_sums_parts() -> None:
    # given 100,352 rows of 96, as the rig ran them: parts of 32 rows, 3136 * 96 * 4 bytes, which are summed once more
    with VirtualDevice(H100, None) as device:
        weight = torch.ones(96, device="cuda", requires_grad=True)
        x = torch.empty(100_352, 96, device="cuda", requires_grad=True)
        made, grad = torch.rms_norm(x, (96,), weight), torch.empty(100_352, 96, device="cuda")
        first = len(device.ledger.events)
        made.backward(grad)
        found = [("a" if size > 0 else "f") + str(abs(size)) for _, _, size in device.ledger.events[first:]]

    # then: gradient, the weight's gradient, parts, their sum with its scratch, and the rows' factors go
    expected = "a38535168 a384 a1204224 a384 a614400 a8 f8 f614400 f384 f1204224 f401408"
    assert " ".join(found) == expected


def test_a_long_embedding_gradient_is_sorted_and_summed_in_segments() -> None:
    # given 4096 indices into 50,000 rows of 1024 floats
    found = made_by(
        lambda grad, index: aten.embedding_dense_backward(grad, index, 50_000, -1, False),
        on_device(4096, 1024),
        on_device(4096, dtype=torch.int64),
    )

    # then indices of 8 * 4096 = 32,768 bytes; 4096 / 10 + 4096 = 4505 pieces of 8 bytes, and of 1024 floats
    assert found == (
        "a32768 a32768 a32768 a83455 f83455 f32768 a204800000 a32768 a8 a32768 a1279 f1279 f32768 a32768 a32768 a1279 "
        "f1279 a8 a36040 a18452480 f18452480 f36040 f8 f32768 f32768 f8 f32768 f32768 f32768"
    )


@pytest.mark.parametrize("weights", [(1000,), (512, 1000), (1,)])
def test_weights_of_positive_targets_are_made_for_every_target_and_given_back(weights: tuple[int, ...]) -> None:
    # given 512 rows of 1000 logits: 512 * 1000 * 4 bytes, and the weights less one, 4 bytes each
    def work(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(x, y, pos_weight=weight, reduction="none")

    whole, less_one = 512 * 1000 * 4, 4 * math.prod(weights)

    # then log_sigmoid, weights of each target, the loss (rig)
    found = made_by(work, on_device(512, 1000), on_device(512, 1000), on_device(*weights))
    assert found == f"a{whole} a{less_one} a{whole} f{less_one} f{whole} a{whole} f{whole}"


def test_backward_of_a_weighted_loss_works_in_place_but_on_the_weights() -> None:
    def work(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> None:
        F.binary_cross_entropy_with_logits(x.requires_grad_(), y, pos_weight=weight, reduction="sum").backward()

    found = made_by(work, on_device(8, 1000), on_device(8, 1000), on_device(1000))

    # given 8 rows of 1000 logits, 32000 bytes: the loss is 4, its gradient 4; then the weighted targets, the same plus
    # one, which becomes the result, and a sigmoid (rig)
    assert found[found.index("a4 ") :] == "a4 f32000 f32000 a4 a32000 a32000 a32000 f32000 f32000 f4 f4"


def test_a_gru_cell_keeps_five_of_its_states_and_sums_the_gates_of_its_biases() -> None:
    # given 4096 rows, an input of 64 and a state of 128: gates are 4096 * 3 * 128 * 4 bytes, a state 4096 * 128 * 4
    def work(cell: nn.Module, x: torch.Tensor, state: torch.Tensor) -> None:
        made = cell(x, state)
        made.backward(torch.empty_like(made))

    gates, state, bias = 6_291_456, 2_097_152, 3 * 128 * 4
    made: Any = lambda: nn.GRUCell(64, 128).cuda()  # noqa: E731
    found = made_by(work, made, on_device(4096, 64), on_device(4096, 128)).split()

    # then forward: after the workspace of cuBLAS, two products, what is kept, the state
    first = found.index(f"a{gates}")
    assert [each for each in found[first : first + 6] if each != f"a{WORKSPACE}"] == [
        f"a{gates}",
        f"a{gates}",
        f"a{5 * state}",
        f"a{state}",
        f"a{state}",  # backward begins: the gradient
    ]
    # and backward: gates and state, then each bias by blocks of rows, whose partial sums are 4096 / 16 / 4 rows of
    # gates at twice the width of a warp (rig)
    second = found.index(f"a{gates}", first + 5)
    sums = f"a{bias} a12582912 a12 f12 f12582912"
    assert " ".join(found[second : second + 13]) == f"a{gates} a{gates} a{state} {sums} {sums}"


LOOKUPS, ROW = 32, 64 * 4
VALUES, PLACES = LOOKUPS * ROW, LOOKUPS * 8


def sparse_step(kind: type[nn.Module], optimizer: type[torch.optim.Optimizer]) -> tuple[str, VirtualDevice]:
    """The second step of a table of 1000 rows of 64 floats, of which 8 bags of 4 are looked up."""
    with VirtualDevice(H100, None) as device:
        made: Any = kind
        table = made(1000, 64, sparse=True).cuda()
        used = optimizer(table.parameters(), lr=0.1)  # pyright: ignore[reportCallIssue]
        first = 0
        for _ in range(2):
            first = len(device.ledger.events)
            used.zero_grad()
            table(torch.zeros(8, 4, dtype=torch.int64, device="cuda")).sum().backward()
            used.step()
        found = [f"{'a' if size > 0 else 'f'}{abs(size)}" for _, _, size in device.ledger.events[first:]]
    return " ".join(found), device


def test_sparse_gradients_are_the_rows_that_were_looked_up() -> None:
    # given two layers with sparse gradients under SGD: 32 rows of 256 bytes and their 32 places of 8
    plain, _ = sparse_step(nn.Embedding, torch.optim.SGD)
    bags, device = sparse_step(nn.EmbeddingBag, torch.optim.SGD)

    # then the CUDA build's events (rig): the last gradient goes, forward and loss, and the rows of an expanded gradient
    # are copied; of bags they are not, and the mean over a bag divides by its size
    assert (VALUES, PLACES) == (8192, 256)
    assert plain == "f8192 f256 a256 a8192 a4 f8192 a4 a8192 a256 f256 f4 f4"
    assert bags == ("f8192 f256 a256 a64 a64 a256 a2048 a4 f2048 a4 a8192 a32 a32 a128 f32 f32 f128 f64 f256 f64 f4 f4")
    assert not [kind for kind, _ in device.ledger.remarks if kind == "unsupported"]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.Adagrad])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_optimizers_work_on_rows_and_say_that_they_coalesce(
    kind: type[nn.Module], optimizer: type[torch.optim.Optimizer]
) -> None:
    found, device = sparse_step(kind, optimizer)

    # then nothing in the step is as large as the table, 1000 rows of 256 bytes, and coalescing is said once a step
    assert max(int(each[1:]) for each in found.split()) == VALUES
    told = {name: count for (what, name), count in device.ledger.remarks.items() if what == "unsupported"}
    assert told == {SORTED: 2}


def test_a_number_to_the_power_of_a_tensor_becomes_a_tensor_of_eight_bytes() -> None:
    x = on_device(300)
    assert made_by(lambda x: 10.0**x, x) == "a1200 a8 f8"
    assert made_by(lambda x: 2**x, x) == "a1200 a8 f8"
    assert made_by(lambda x: 1**x, x) == "a1200"


def test_plain_attention_in_half_holds_the_query_in_float_and_makes_its_weights_in_half_too() -> None:
    # given five dimensions, which no fused kernel takes
    x = on_device(2, 1, 3, 4, 8, dtype=torch.half)
    found = made_by(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), x, x, x)
    # then three are cast and two scaled; after the product and the softmax, the weights in half, the result in both
    cast_and_scaled = "a768 a768 a768 a768 a768"
    softmax = f"a384 a{WORKSPACE} f768 a384 a96 a24 a4 f4 f24 f96 f384"
    assert found == f"{cast_and_scaled} {softmax} a192 a768 a384 f768 f384 f768 f768 f768 f768 f192"


def test_a_batch_norm_of_torchs_own_in_channels_last_gathers_its_statistics_from_parts() -> None:
    def trained(x: torch.Tensor) -> Any:
        given = x.contiguous(memory_format=torch.channels_last)
        weight = torch.ones(64, device="cuda")
        return aten.native_batch_norm(given, weight, weight, None, None, True, 0.1, 1e-5)

    # given 8 * 28 * 28 rows, 16 * 16 to a block: 25 blocks, each with 4 floats a channel; 2 columns of blocks
    found = made_by(trained, on_device(8, 64, 28, 28, dtype=torch.bfloat16)).split()
    # then
    assert found[3:7] == ["a256", "a256", f"a{4 * 64 * 25 * 4}", "a8"]
    # given rows for fewer than 8 blocks
    found = made_by(trained, on_device(2, 64, 8, 8, dtype=torch.bfloat16)).split()
    # then
    assert not any(each.startswith("a8") for each in found)


def test_tensors_of_two_dtypes_are_put_together_under_autocast_without_casting_them_first() -> None:
    def together(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return torch.cat([x, y])

    assert made_by(together, on_device(30, dtype=torch.bfloat16), on_device(20)) == "a200"


@pytest.mark.parametrize(("kernel", "copies"), [("flash", 2), ("cudnn", 1)])
def test_attention_that_lies_by_heads_is_copied_in_backward(kernel: str, copies: int) -> None:
    # given 2 x 8 heads of 256 rows of 64 halves, head after head: 524,288 bytes
    op = getattr(aten, f"_scaled_dot_product_{kernel}_attention")
    middle = (None, True) if kernel == "cudnn" else ()
    with VirtualDevice(H100, None, cublas_handles=1) as device:
        heads = torch.zeros(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        made = op(heads, heads, heads, *middle, 0.0, True)[0]
        assert made.stride() == heads.stride()
        first = len(device.ledger.events)

        # when the gradient is one number for all
        made.sum().backward()
        sizes = [size for _, _, size in device.ledger.events[first:]]

    # then there are three gradients, added in place, and flash copies gradient and result, cuDNN the gradient (rig)
    assert sizes.count(2 * 8 * 256 * 64 * 2) == 3 + copies
