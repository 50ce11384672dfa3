"""Programs of JAX without JAX: where their values lie, in which order, and what XLA's block of buffers has besides."""

from __future__ import annotations

from dataclasses import replace

import pytest

import elbowroom as er
from elbowroom.frameworks.jax.array_shards import ShardedShape, exchanged_elements, result_pieces, whole
from elbowroom.frameworks.jax.flat_step import (
    Buffers,
    Change,
    FlatInput,
    FlatLine,
    FlatStep,
    FlatValue,
    LineKind,
    buffers_of,
    output_by_output,
    recomputed_late,
    without_dead,
)
from elbowroom.frameworks.jax.flat_trace import traced, with_phases
from elbowroom.frameworks.jax.heap_gaps import BufferLife, gap_bytes, height_of, stack_bytes
from elbowroom.trace import Phase

KIB = 1024


def line(
    reads: tuple[int, ...],
    makes: tuple[int, ...],
    kind: LineKind = "other",
    phase: Phase = "forward",
    scratch_bytes: int = 0,
    again: bool = False,
) -> FlatLine:
    return FlatLine(
        name="op",
        module="",
        phase=phase,
        reads=reads,
        makes=makes,
        kind=kind,
        scratch_bytes=scratch_bytes,
        again=again,
    )


def step_of(
    sizes: list[int], lines: list[FlatLine], inputs: list[FlatInput], outputs: tuple[int, ...], **more: object
) -> FlatStep:
    values = tuple(FlatValue(size_bytes=size, dtype="float32") for size in sizes)
    return replace(FlatStep(values=values, lines=tuple(lines), inputs=tuple(inputs), outputs=outputs), **more)


def test_an_elementwise_line_writes_over_a_value_that_nothing_needs_any_more() -> None:
    # given x -> a -> b -> y, all of 1 KiB
    lines = [line((0,), (1,)), line((1,), (2,), "elementwise"), line((2,), (3,))]
    step = step_of([KIB] * 4, lines, [FlatInput(value=0, path="x")], (3,))

    found = buffers_of(step)

    assert found.of[2] == found.of[1]
    assert found.peak_bytes == 3 * KIB  # x, a with b over it, y


def test_a_line_that_is_not_elementwise_has_its_operand_and_its_result_at_once() -> None:
    lines = [line((0,), (1,)), line((1,), (2,)), line((2,), (3,))]
    step = step_of([KIB] * 4, lines, [FlatInput(value=0, path="x")], (3,))

    assert buffers_of(step).peak_bytes == 4 * KIB  # x, a, b, and y, which is there from the beginning


def test_nothing_writes_over_a_saved_value() -> None:
    lines = [line((0,), (1,)), line((1,), (2,), "elementwise"), line((2,), (3,))]
    step = step_of([KIB] * 4, lines, [FlatInput(value=0, path="x")], (3,))

    found = buffers_of(step, frozenset({1}))

    assert found.of[2] != found.of[1]


@pytest.mark.parametrize(("donated", "peak_kib"), [(True, 2), (False, 3)])
def test_a_donated_argument_is_written_over_by_the_output_that_takes_its_place(donated: bool, peak_kib: int) -> None:
    # given p, g -> p - g
    inputs = [FlatInput(value=0, path="p", becomes=2, written_over=donated), FlatInput(value=1, path="g")]
    step = step_of([KIB] * 3, [line((0, 1), (2,), "elementwise")], inputs, (2,))

    assert buffers_of(step).peak_bytes == peak_kib * KIB


def test_a_broadcast_takes_memory_only_where_a_product_reads_it() -> None:
    values = [FlatValue(size_bytes=KIB, dtype="f"), FlatValue(size_bytes=4 * KIB, dtype="f", spread_of=(0,))]
    values += [FlatValue(size_bytes=4 * KIB, dtype="f")]
    inputs = (FlatInput(value=0, path="x"),)

    def peak(kind: LineKind) -> int:
        lines = (line((1,), (2,), kind),)
        return buffers_of(FlatStep(values=tuple(values), lines=lines, inputs=inputs, outputs=(2,))).peak_bytes

    assert peak("elementwise") == 5 * KIB  # x and the result
    assert peak("other") == 9 * KIB  # and the broadcast


def test_a_line_that_nothing_needs_is_left_out() -> None:
    step = step_of([KIB] * 3, [line((0,), (1,)), line((0,), (2,))], [FlatInput(value=0, path="x")], (2,))

    assert [each.makes for each in without_dead(step).lines] == [(2,)]


def test_the_lines_of_the_optimizer_come_output_by_output() -> None:
    # given the program of two parameters: 0, 1 -> 2, 3 -> 4, 5
    lines = [line((0,), (2,)), line((1,), (3,)), line((2,), (4,)), line((3,), (5,))]
    step = step_of([KIB] * 6, lines, [], (4, 5))

    assert [each.makes[0] for each in output_by_output(step, 0).lines] == [2, 4, 3, 5]


def test_what_a_checkpoint_computes_again_comes_right_before_it_is_needed() -> None:
    # given two layers that are computed again, 1 and 2, then gradients 3 of 2 and 4 of 1
    lines = [
        line((0,), (1,), phase="backward", again=True),
        line((1,), (2,), phase="backward", again=True),
        line((5, 2), (3,), phase="backward", again=True),
        line((3, 0), (4,), phase="backward", again=True),
        line((4, 1), (6,), phase="backward", again=True),
    ]
    values = [FlatValue(size_bytes=KIB, dtype="f") for _ in range(7)]
    step = FlatStep(values=tuple(values), lines=tuple(lines), inputs=(), outputs=(6,), seeds=frozenset({5}))

    assert [each.makes[0] for each in recomputed_late(step).lines] == [1, 2, 3, 4, 6]
    # a value that only the last gradient needs is computed before it
    late = replace(step, lines=(line((0,), (1,), phase="backward", again=True), *lines[3:]), seeds=frozenset({3}))
    assert [each.makes[0] for each in recomputed_late(late).lines] == [4, 1, 6]


def test_buffers_that_lie_apart_in_time_share_a_place_and_gaps_are_counted() -> None:
    # given 4 and 2 side by side; when both end, 3 lives with a second 2, which is in the place of the first 2
    lives = [BufferLife(4, 0, 1), BufferLife(2, 0, 3), BufferLife(3, 2, 5), BufferLife(3, 4, 5)]

    assert height_of(lives[:2]) == 6
    # 4 at 0; 3 at 0 (after 4); 3 at 3 (beside 3); 2 at 4: beside 4, and it ends as the second 3 begins
    assert height_of(lives) == 6


def test_a_gap_too_small_for_a_buffer_makes_the_block_higher() -> None:
    changes = [
        Change(0, 1, 4096),
        Change(0, 2, 2048),
        Change(1, 1, -4096),
        Change(2, 3, 3072),
        Change(2, 4, 3072),
        Change(3, 2, -2048),
        Change(3, 3, -3072),
        Change(3, 4, -3072),
    ]

    # most live: 2048 + 2 * 3072 = 8192. Placed: 4096 at 0, 3072 at 0, 3072 at 3072, 2048 above both, at 6144: 8192
    assert gap_bytes(changes, frozenset()) == 0
    # outside the block nothing has a gap
    assert gap_bytes(changes, frozenset({1, 2, 3, 4})) == 0


def test_a_stack_is_there_from_its_first_to_its_last_slice() -> None:
    # given slices of 1 KiB that are used one after the other
    changes = (Change(0, 1, KIB), Change(1, 1, -KIB), Change(2, 2, KIB), Change(3, 2, -KIB))
    buffers = Buffers(of={1: 1, 2: 2}, sizes={1: KIB, 2: KIB}, changes=changes)

    assert buffers.peak_bytes == KIB
    assert stack_bytes(buffers, [(1, 2)]) == KIB  # both at once


def training() -> FlatStep:
    """x, w -> h -> loss; gradient g of h -> w - g: h is saved, and named."""
    lines = [
        line((0, 1), (2,)),
        line((2,), (3,)),
        line((3, 2), (4,), phase="backward"),
        line((1, 4), (5,), "elementwise", phase="other"),
    ]
    inputs = [FlatInput(value=0, path="x"), FlatInput(value=1, path="['params']", becomes=5, written_over=True)]
    step = step_of([KIB] * 6, lines, inputs, (5,), keys={2: "name h", 3: "op of float32[256]"})
    return with_phases(step)


def test_a_flat_step_becomes_a_trace_whose_saves_are_what_backward_reads_of_forward() -> None:
    found = traced(training(), [10, 10, 10, 10], "cuda:0", "jax 1")

    assert [op.phase for op in found.trace.ops] == ["forward", "forward", "backward", "optimizer"]
    assert sorted(found.keys.values()) == ["name h", "op of float32[256]"]
    assert [save.read_at for save in found.trace.saves] == [(2,), (2,)]
    held = dict(er.simulate(found.trace, er.Machine.of("t4")).breakdown())
    # x, w, h and the loss, the gradient, and one more buffer for XLA's order
    assert held == {
        "input": KIB, "parameter": KIB, "activation": 2 * KIB, "gradient": KIB, "workspace": KIB,
    }  # fmt: skip


def test_an_estimate_of_such_a_trace_has_no_caching_allocator_and_says_that_it_is_a_bound() -> None:
    found = er.estimate(traced(training(), [10] * 4, "cuda:0", "jax 1").trace, er.Machine.of("t4"))

    assert found.peak_reserved_bytes == found.peak_allocated_bytes == 6 * KIB
    names = [remark.name for remark in traced(training(), [10] * 4, "cuda:0", "jax 1").trace.remarks]
    assert "fusion by XLA: the memory is an upper bound" in names


def test_a_product_of_rows_that_are_cut_is_cut_and_one_over_them_is_summed() -> None:
    rows, weight = ShardedShape((64, 8), (4, 1)), whole((8, 16))
    numbers = {"dimension_numbers": (((1,), (0,)), ((), ()))}
    assert result_pieces("dot_general", [rows, weight], (64, 16), numbers) == (4, 1)

    # the gradient of the weight sums over the rows: each device has 8 x 16 partial sums
    over_rows = {"dimension_numbers": (((0,), (0,)), ((), ()))}
    gradients = ShardedShape((64, 16), (4, 1))
    assert result_pieces("dot_general", [rows, gradients], (8, 16), over_rows) == (1, 1)
    assert exchanged_elements("dot_general", [rows, gradients], whole((8, 16)), over_rows) == (0, 0, 128)


def test_a_weight_that_is_cut_along_the_summed_dimension_is_gathered() -> None:
    rows, weight = whole((64, 8)), ShardedShape((8, 16), (4, 1))
    numbers = {"dimension_numbers": (((1,), (0,)), ((), ()))}

    assert exchanged_elements("dot_general", [rows, weight], whole((64, 16)), numbers) == (0, 128, 0)


def test_a_reshape_keeps_how_the_dimensions_before_those_that_change_are_cut() -> None:
    assert result_pieces("reshape", [ShardedShape((8, 6, 4), (2, 1, 1))], (8, 24), {}) == (2, 1)
    assert result_pieces("reshape", [ShardedShape((48, 4), (2, 1))], (8, 6, 4), {}) == (2, 1, 1)


def test_without_jax_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elbowroom.frameworks.jax.find_spec", lambda _name: None)

    with pytest.raises(er.UsageError, match=r"pip install 'elbowroom\[jax\]'"):
        er.capture_jax(lambda: None)
