"""capture(): what a trace says of real steps, checked against torch's own account and by hand."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import elbowroom as er
from elbowroom.trace import Op
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Setup,
    Training,
    assert_equal,
    finish,
    mlp,
    ordinary,
    seeded,
    train,
)

STEPS = 3


class Net(nn.Module):
    """A convolution, a norm with buffers, dropout, attention and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.mix = nn.Linear(16, 48)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        found = self.stem(images).flatten(2).transpose(1, 2)
        q, k, v = self.mix(found).chunk(3, 2)
        mixed = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return self.head(self.drop(found + mixed).mean(1))


def net() -> Training:
    labels = torch.arange(6) % 10
    return ordinary(Net(), torch.randn(6, 3, 12, 12), loss=lambda scores: F.cross_entropy(scores, labels))


def perceptron() -> Training:
    return ordinary(mlp(depth=3), torch.randn(128, 64))


def lstm() -> Training:
    model = nn.LSTM(16, 24, num_layers=2, batch_first=True)
    batch = torch.randn(8, 10, 16)
    training = ordinary(model, batch, loss=lambda _: torch.zeros(()))
    (optimizer,) = training.optimizers

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        loss = model(batch)[0].square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    training.step = step
    return training


def counted(setup: Setup, keep: list[Training] | None = None) -> Callable[[], Callable[[], Tensor]]:
    def begin() -> Callable[[], Tensor]:
        training = seeded(setup)
        if keep is not None:
            keep.append(training)
        numbers = iter(range(100))
        return lambda: training.step(next(numbers))

    return begin


def captured(setup: Setup, steps: int = STEPS) -> er.Trace:
    gc.collect()
    return er.capture(counted(setup), steps=steps, min_size=MIN_SIZE_BYTES)


def last_ops(trace: er.Trace) -> list[Op]:
    first, end = trace.steps[-1]
    return list(trace.ops[first:end])


@pytest.fixture(scope="module")
def net_trace() -> er.Trace:
    """The trace of `net`, captured once."""
    return captured(net)


def test_capturing_changes_no_number() -> None:
    plain = train(net, STEPS)
    kept: list[Training] = []
    losses: list[Tensor] = []

    def begin() -> Callable[[], None]:
        step = counted(net, kept)()
        return lambda: losses.append(step().clone())

    er.capture(begin, steps=STEPS, min_size=MIN_SIZE_BYTES)

    assert all(torch.equal(a, b) for a, b in zip(losses, plain.losses, strict=True))
    assert all(torch.equal(value, plain.state[name]) for name, value in kept[0].state().items())
    assert len(losses) == STEPS


def test_every_step_is_one_of_the_traces_steps(net_trace: er.Trace) -> None:
    first, second, third = net_trace.steps

    assert first.first_op == 0
    assert third.end_op == len(net_trace.ops)
    # from the second on nothing is made that stays, so the steps are the same ops
    names = [[op.name for op in net_trace.ops[step.first_op : step.end_op]] for step in (second, third)]
    assert names[0] == names[1]


def test_ops_come_with_the_phase_they_belong_to(net_trace: er.Trace) -> None:
    phases = [phase for phase, _ in groupby(op.phase for op in last_ops(net_trace))]

    # the loss is detached after the optimizer has stepped
    assert phases == ["forward", "backward", "optimizer", "other"]


def test_ops_come_with_the_path_of_the_module_that_called_them(net_trace: er.Trace) -> None:
    by_module: dict[tuple[str, str], set[str]] = {}
    for op in last_ops(net_trace):
        by_module.setdefault((op.module, op.phase), set()).add(op.name.removeprefix("aten.").split(".")[0])

    assert "convolution" in by_module["Net.stem.0", "forward"]
    assert "convolution_backward" in by_module["Net.stem.0", "backward"]
    assert "native_batch_norm" in by_module["Net.stem.1", "forward"]
    assert "native_batch_norm_backward" in by_module["Net.stem.1", "backward"]
    assert "relu" in by_module["Net.stem.2", "forward"]
    assert "threshold_backward" in by_module["Net.stem.2", "backward"]
    assert "mm" in by_module["Net.head", "backward"]
    assert {module for module, phase in by_module if phase == "optimizer"} == {""}


def test_categories_are_those_of_the_model_and_its_optimizer(net_trace: er.Trace) -> None:
    # given
    training = seeded(net)
    finish(training, STEPS)
    model, optimizer = training.modules[0], training.optimizers[0]
    live = {storage for op in last_ops(net_trace) for storage in (*op.reads, *op.writes)}
    found: dict[str, list[int]] = {}
    for storage in sorted(live):
        what = net_trace.storages[storage]
        found.setdefault(what.category, []).append(what.size_bytes)
    # then
    parameters = sorted(p.nbytes for p in model.parameters())
    assert sorted(found["parameter"]) == parameters
    assert sorted(found["gradient"]) == parameters
    assert sorted(found["buffer"]) == sorted(b.nbytes for b in model.buffers())
    states = [value.nbytes for values in optimizer.state.values() for value in values.values()]
    assert sorted(found["optimizer_state"]) == sorted(states)
    # 6 images of 3 x 12 x 12 floats; 6 labels of 8 bytes
    assert sorted(found["input"]) == [6 * 8, 6 * 3 * 12 * 12 * 4]


def test_saves_are_what_a_perceptron_must_save_in_order() -> None:
    # given
    trace = captured(perceptron)
    first, end = trace.steps[-1]
    saves = [save for save in trace.saves if save.saved_at >= first]
    # then: its input for the first weight's gradient, and the output of each ReLU, for its own and for the next layer's
    assert [trace.storages[save.storage].size_bytes for save in saves] == [128 * 64 * 4] * 4
    assert [trace.storages[save.storage].dtype for save in saves] == ["float32"] * 4
    assert [trace.storages[save.storage].category for save in saves] == ["input"] + ["activation"] * 3
    # the input is read once. Outputs are read by their own ReLU and by the layer after them, the last one by the loss
    assert [len(save.read_at) for save in saves] == [1, 2, 2, 2]
    assert all(first <= save.saved_at < min(save.read_at) <= max(save.read_at) < end for save in saves)
    # backward reads in the opposite order
    assert [save.read_at for save in saves] == sorted((save.read_at for save in saves), reverse=True)
    # the loop holds the batch; the loss is computed from the last output, which then only autograd holds
    assert saves[0].idle_from is None
    made_by = [trace.ops[save.saved_at - 1] for save in saves[1:3]]
    assert [op.module for op in made_by] == ["Sequential.1", "Sequential.3"]
    assert all(s.idle_from is not None and s.saved_at <= s.idle_from < s.read_at[0] for s in saves[1:3])


def test_storages_below_the_least_size_are_no_saves() -> None:
    trace = er.capture(counted(perceptron), steps=2, min_size=128 * 64 * 4 + 1)

    assert trace.saves == ()
    assert len(trace.steps) == 2


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="None has no count from Python 3.12 on")
def test_a_recorded_step_takes_no_reference_of_none_away() -> None:
    # given what is made once, and stays
    er.capture(counted(perceptron), steps=2)
    gc.collect()
    before = sys.getrefcount(None)
    # when: torch takes one at each look at a tensor without bytes, of which each of these steps has some
    er.capture(counted(perceptron), steps=20)
    gc.collect()
    # then: one for each step would be 20
    assert sys.getrefcount(None) > before - 20


def allocations(setup: Setup) -> list[int]:
    """The allocator's own account of the third plain step: bytes of allocs (> 0) and their frees (< 0)."""
    training = seeded(setup)
    finish(training, STEPS - 1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as session:
        training.step(STEPS - 1)
    found: list[tuple[int, int, int]] = []
    profiler: Any = session.profiler
    nodes = list(profiler.kineto_results.experimental_event_tree())
    while nodes:
        node = nodes.pop()
        nodes.extend(node.children)
        if node.tag.name == "Allocation":
            found.append((node.start_time_ns, node.extra_fields.ptr, node.extra_fields.alloc_size))
    live: set[int] = set()
    sizes: list[int] = []
    for _, address, size_bytes in sorted(found):
        if size_bytes > 0 or address in live:
            sizes.append(size_bytes)
            live.add(address) if size_bytes > 0 else live.remove(address)
    return sizes


def in_last_step(trace: er.Trace) -> list[int]:
    """The same of a trace's last step."""
    first, end = trace.steps[-1]
    events = [event for event in trace.events if first <= event.op < end]
    made = {event.storage for event in events if event.size_bytes > 0}
    return [event.size_bytes for event in events if event.storage in made]


def highest(changes: list[int]) -> int:
    return max(accumulate(changes), default=0)


SETUPS: dict[str, Setup] = {"net": net, "perceptron": perceptron, "lstm": lstm}


@pytest.mark.parametrize("name", SETUPS)
def test_the_trace_has_every_byte_that_the_allocator_gave_to_a_plain_step(name: str) -> None:
    # given
    expected = allocations(SETUPS[name])
    # when
    found = in_last_step(captured(SETUPS[name]))
    # then
    assert Counter(size for size in found if size > 0) == Counter(size for size in expected if size > 0)
    assert highest(found) == highest(expected)


@pytest.mark.parametrize("name", SETUPS)
def test_the_estimate_is_the_peak_of_the_traces_own_events(name: str) -> None:
    trace = captured(SETUPS[name])
    first, end = trace.steps[-1]
    levels = list(accumulate(event.size_bytes for event in trace.events if event.op < end))
    before = sum(event.op < first for event in trace.events)

    assert er.simulate(trace, er.Machine.here(device="cpu")).peak_allocated_bytes == max(levels[before - 1 :])


@pytest.mark.parametrize("name", SETUPS)
def test_floating_point_operations_are_those_of_torchs_own_counter(name: str) -> None:
    # given
    training = seeded(SETUPS[name])
    finish(training, STEPS - 1)
    with FlopCounterMode(display=False) as counter:
        training.step(STEPS - 1)
    # when
    trace = captured(SETUPS[name])
    # then: all but the attention of the CPU, which that counter does not know
    found = sum(op.flops for op in last_ops(trace) if "attention" not in op.name)
    assert found == counter.get_total_flops()


def test_floating_point_operations_of_attention_by_hand(net_trace: er.Trace) -> None:
    found = {op.phase: op.flops for op in last_ops(net_trace) if "attention" in op.name}

    # 6 images of 144 places with 16 numbers: scores and weighted values; backward makes the scores again, and four more
    one = 2 * 6 * 144 * 144 * 16
    assert found == {"forward": 2 * one, "backward": 5 * one}


def test_floating_point_operations_by_hand() -> None:
    trace = captured(perceptron)
    forward = [op.flops for op in last_ops(trace) if op.phase == "forward" and op.flops]
    backward = [op.flops for op in last_ops(trace) if op.phase == "backward" and op.flops]

    # 128 rows of 64 numbers times a matrix of 64 x 64, a multiplication and an addition each: 3 layers
    assert forward == [2 * 128 * 64 * 64] * 3
    # the gradients of the weight and of the input; the first layer's input wants none
    assert backward == [2 * 128 * 64 * 64] * 5


def test_durations_add_up_to_less_than_the_time_that_passed(net_trace: er.Trace) -> None:
    assert all(op.duration_ns >= 0 for op in net_trace.ops)
    assert 0 < sum(op.duration_ns for op in last_ops(net_trace)) < 5 * 10**9


def test_a_trace_is_the_same_after_its_file_was_written_and_read(net_trace: er.Trace, tmp_path: Path) -> None:
    # given
    net_trace.save(tmp_path / "trace.json")
    machine = er.Machine.here(device="cpu")
    # when
    found = er.Trace.load(tmp_path / "trace.json")
    # then
    assert found == net_trace
    assert found.id == net_trace.id
    peak = er.simulate(found, machine).peak_allocated_bytes
    budget = peak - 8 * MIN_SIZE_BYTES
    mine = er.plan(net_trace, machine, budget, min_size=MIN_SIZE_BYTES)
    assert mine == er.plan(found, machine, budget, min_size=MIN_SIZE_BYTES)
    assert mine.swaps or mine.recomputes, "which of them is quicker was measured"
    assert er.simulate(found, machine, mine).peak_allocated_bytes <= budget


def test_two_captures_of_one_training_agree() -> None:
    one, other = captured(perceptron), captured(perceptron)

    assert [op.name for op in last_ops(one)] == [op.name for op in last_ops(other)]
    assert [(op.reads, op.writes) for op in last_ops(one)] == [(op.reads, op.writes) for op in last_ops(other)]
    assert one.saves == other.saves


# Refusals


@pytest.mark.parametrize(
    ("given", "message"),
    [({"steps": 1}, "steps=1"), ({"steps": 2.0}, "steps=2.0"), ({"machine": "rtx40900"}, "rtx40900")],
)
def test_an_argument_that_is_not_allowed_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(er.UsageError, match=message):
        er.capture(counted(perceptron), **given)


def test_a_setup_that_returns_no_function_is_refused() -> None:
    with pytest.raises(er.UsageError, match="setup"):
        er.capture(lambda: 3)  # pyright: ignore[reportArgumentType, reportReturnType]


def test_steps_that_do_nothing_are_refused() -> None:
    with pytest.raises(er.CaptureError, match="no op was recorded"):
        er.capture(lambda: lambda: None)


def test_an_error_in_a_step_comes_out_and_nothing_goes_on_recording() -> None:
    # given
    def begin() -> Callable[[], None]:
        step = counted(perceptron)()

        def fail() -> None:
            step()
            raise ZeroDivisionError("the user's own")

        return fail

    # when
    with pytest.raises(ZeroDivisionError, match="the user's own"):
        er.capture(begin, min_size=MIN_SIZE_BYTES)
    # then
    assert_equal(train(perceptron), train(perceptron))
    assert len(captured(perceptron, 2).steps) == 2
