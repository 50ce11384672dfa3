"""What ops of the virtual device read and write: views nothing, in-place ops what they change, declared or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn

from elbowroom.capture.durations.op_line import OpLine
from elbowroom.capture.virtual import VirtualDevice
from elbowroom.machine import Machine
from tests.torch.virtual_gpu import H100


def ops_of(work: Callable[[], Any]) -> tuple[list[OpLine], Any, Callable[[torch.Tensor], int | None]]:
    with VirtualDevice(H100, None) as device:
        made = work()
        numbers = {id(each): device.ledger.number_of(each) for each in made}
        lines = list(device.ledger.ops)
    return lines, made, lambda tensor: numbers[id(tensor)]


def test_a_view_reads_and_writes_nothing() -> None:
    def work() -> Any:
        x = torch.empty(4, 8, device="cuda")
        return x, x.t(), x.view(32), x.detach()

    lines, _, _ = ops_of(work)

    assert [(line.name, line.reads, line.writes) for line in lines[1:]] == [
        ("aten.t", (), ()),
        ("aten.view", (), ()),
        ("aten.detach", (), ()),
    ]


def test_an_op_in_place_writes_its_argument_and_reads_the_other() -> None:
    def work() -> Any:
        x, y = torch.empty(8, device="cuda"), torch.empty(8, device="cuda")
        x[:4].add_(y[:4])
        return x, y

    lines, (x, y), number = ops_of(work)

    added = next(line for line in lines if line.name == "aten.add_")
    assert (added.reads, added.writes) == ((number(x), number(y)), (number(x),))
    # and half of each is touched: 4 floats of x read, 4 of y read, 4 of x written
    assert added.moved_bytes == 3 * 4 * 4


def test_ops_on_lists_that_return_nothing_write_what_they_change() -> None:
    def work() -> Any:
        xs, ys = ([torch.empty(8, device="cuda") for _ in range(2)] for _ in range(2))
        torch.ops.aten._foreach_add_.List(xs, ys)
        return *xs, *ys

    lines, made, number = ops_of(work)

    assert lines[-1].name == "aten._foreach_add_"
    assert lines[-1].writes == (number(made[0]), number(made[1]))


def test_batch_norm_writes_its_running_statistics_in_training_only() -> None:
    norm = nn.BatchNorm2d(3)

    def work() -> Any:
        x = torch.empty(2, 3, 4, 4, device="cuda")
        norm.cuda()
        norm(x)
        norm.eval()(x)
        return norm.running_mean, norm.running_var

    lines, (mean, var), number = ops_of(work)

    training, evaluation = (line for line in lines if line.name == "aten.cudnn_batch_norm")
    assert {number(mean), number(var)} <= set(training.writes)
    assert not {number(mean), number(var)} & set(evaluation.writes)


def test_an_op_that_takes_only_the_form_of_its_argument_does_not_read_it() -> None:
    def work() -> Any:
        x = torch.empty(1024, device="cuda")
        return torch.empty_like(x), torch.zeros_like(x)

    lines, _, _ = ops_of(work)

    # and what stays unfilled takes no time: zeros_like writes 4 KiB, the others nothing
    assert [(line.name, line.reads, line.moved_bytes) for line in lines] == [
        ("aten.empty", (), 0),
        ("aten.empty_like", (), 0),
        ("aten.zeros_like", (), 4096),
    ]


def test_arguments_are_described_by_position() -> None:
    def work() -> Any:
        x, w = torch.empty(2, 3, 8, 8, device="cuda"), torch.empty(4, 3, 3, 3, device="cuda")
        return (nn.functional.conv2d(x, w, stride=2, padding=1),)

    lines, _, _ = ops_of(work)

    # input, weight, bias, stride, padding, dilation, transposed, output padding, groups
    shapes = ((2, 3, 8, 8), (4, 3, 3, 3))
    assert lines[-1].arguments == (*shapes, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
    assert lines[-1].dtype == "tf32"  # as torch.backends.cudnn.allow_tf32 is on, and the GPU has it


def test_a_gradient_that_is_sparse_can_be_stepped_with() -> None:
    # given an embedding whose gradient is sparse
    with VirtualDevice(Machine.of("a100-80gb"), 2) as device:
        table = torch.nn.Embedding(1000, 8, sparse=True).to("cuda")
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        while True:
            table(torch.zeros(4, dtype=torch.long, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    # then each step's is 4 rows of 8 floats and 4 places, and nothing about it is left out
    trace = device.trace()
    assert {each.size_bytes for each in trace.storages if each.category == "gradient"} == {4 * 8 * 4, 4 * 8}
    assert "unsupported" not in {each.kind for each in trace.remarks}


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reshaped": lambda tensor: tensor.view(32, 64),
    "transposed": lambda tensor: tensor.t(),
    "permuted": lambda tensor: tensor.view(8, 8, 32).permute(2, 0, 1),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_backward_through_a_view_changed_in_place_copies_as_the_cuda_build_does(kind: str) -> None:
    # given a view that an op in place changes, and a use of it
    with VirtualDevice(H100, None) as device:
        leaf = torch.empty(64, 32, device="cuda").requires_grad_()
        changed = VIEWS[kind](leaf * 2)
        added = torch.empty(changed.shape, device="cuda").requires_grad_()
        changed += added
        made = changed * 3
        gradient = torch.empty_like(made)
        first = len(device.ledger.events)
        made.backward(gradient)
        events = [(size > 0, number) for _, number, size in device.ledger.events[first:]]
    # then its allocations (+) and frees (-) are those seen with the CUDA build of torch 2.11, in that order:
    # gradient of * 3; its copy of the base's shape, after which it goes; two copies of CopySlices; gradients of both
    names: dict[int, str] = {}
    for _, number in events:
        names.setdefault(number, "abcdefgh"[len(names)])
    shown = " ".join(f"{'+' if is_alloc else '-'}{names[number]}" for is_alloc, number in events)
    assert shown == "+a +b -a +c +d -b +e -c"
