"""Algorithms of convolutions: measured, chosen for single calls of layers, and put back."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.backends import mkldnn

import elbowroom as er
from elbowroom.capture.layers import (
    BACKWARD,
    FORWARD,
    Chosen,
    Cost,
    LayerCall,
    LayerWatch,
    _cost,
    measure,
    switchable,
    with_offers,
)
from elbowroom.engine.conv_backends import offered, switched
from elbowroom.engine.memory_formats import other_format
from elbowroom.errors import InvalidPlan
from elbowroom.plan import Algorithm, Plan
from elbowroom.run import conv_algorithms as layer_choices
from elbowroom.run.conv_algorithms import Switching, chosen_of
from elbowroom.trace import Trace

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not mkldnn.is_available(), reason="this build of torch has no oneDNN to choose")


class Twice(nn.Module):
    """A convolution that is called twice in a step, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 4, 3, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.again(torch.relu(self.again(x)))))


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def built() -> tuple[Twice, Tensor]:
    torch.manual_seed(1)
    return Twice(), torch.randn(4, 8, 32, 32)


def recorded(model: nn.Module, x: Tensor) -> Trace:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        gradients(model, x)
        optimizer.step()

    return er.capture(lambda: step, steps=2)


def test_what_is_set_is_the_first_choice() -> None:
    assert offered(CPU) == ("onednn", "native")
    with switched(CPU, "native"):
        assert offered(CPU) == ("native", "onednn")
        assert not mkldnn.enabled
    assert mkldnn.enabled


def test_a_layer_whose_forward_is_more_than_the_convolution_offers_nothing() -> None:
    # "same" is worked out by the operator above the convolution, which pads by itself where it must
    assert list(switchable(Twice())) == ["Twice.again"]


def test_every_call_is_measured_with_every_choice() -> None:
    # given a layer that is called twice, first with an input that needs no gradient
    model, x = built()
    watch = LayerWatch(model)
    gradients(model, x)
    watch.close()
    gradients(model, x)
    # then there are two calls, that differ in this
    calls = watch.calls["Twice.again"]
    assert [call.needs_input_gradient for call in calls] == [False, True]
    costs = measure(calls[1])
    assert [cost.name for cost in costs] == ["onednn", "native", "onednn channels_last"]
    assert all(cost.forward_ns > 0 and cost.backward_ns > 0 for cost in costs)
    # and the native one unfolds the picture: 8 channels x 9 places x 32 x 32 float32, for one picture at least
    assert costs[1].forward_bytes >= 8 * 9 * 32 * 32 * 4
    # and another format holds copies of 4 pictures of 8 channels x 32 x 32 and of 8 x 8 weights of 3 x 3, float32: when
    # its result is brought back it holds that twice; backward, it has input and gradient beside the input's gradient
    picture, weight = 4 * 8 * 32 * 32 * 4, 8 * 8 * 3 * 3 * 4
    assert costs[2].forward_bytes >= picture
    assert costs[2].backward_bytes >= 2 * picture + weight


def test_what_a_call_frees_of_older_memory_is_not_taken_off_what_it_allocates() -> None:
    # given 4 MiB that were allocated while another call was measured: the profiler reports the free of such memory
    older: list[Tensor] = []

    def first() -> Tensor:
        if not older:
            older.append(torch.empty(2**20))
        return torch.empty(4)

    _cost(first, CPU)

    # and that happen to be freed before a call holds 1 MiB for a while, and returns 16 bytes
    def second() -> Tensor:
        older.clear()
        brief = torch.empty(2**18)
        del brief
        return torch.empty(4)

    # then
    assert _cost(second, CPU)[1] == 2**20 - 16


def test_the_convolutions_of_the_last_step_offer_what_was_measured() -> None:
    model, x = built()
    trace = recorded(model, x)
    watch = LayerWatch(model)
    gradients(model, x)
    watch.close()
    # when
    costs = {call: measure(call) for call in watch.calls["Twice.again"]}
    offering = with_offers(trace, watch.calls, costs, {})
    # then two forward and two backward ones have all choices, the first as long as it was
    first, end = trace.steps[-1]
    ops = [op for op in offering.ops[first:end] if op.choices]
    assert sorted(op.name for op in ops) == [FORWARD, FORWARD, BACKWARD, BACKWARD]
    names = ["onednn", "native", "onednn channels_last"]
    assert all([choice.name for choice in op.choices] == names for op in ops)
    assert all(op.choices[0].duration_ns == op.duration_ns for op in ops)
    assert not any(op.choices for op in offering.ops[:first])


def test_a_choice_gives_the_numbers_of_the_switch_set_by_hand() -> None:
    # given the second call of a layer, native in forward, and the first in backward
    model, x = built()
    switching = Switching(model, {"Twice.again": [Chosen(None, "native"), Chosen("native", None)]})
    chosen = gradients(model, x)
    switching.close()

    # when the same is done by hand
    model.zero_grad()
    one = model.again(x)
    node = one.grad_fn
    assert node is not None
    scope = ExitStack()

    def before(_gradients: object) -> None:
        scope.enter_context(switched(CPU, "native"))

    def after(_inputs: object, _outputs: object) -> None:
        scope.close()

    node.register_prehook(before)
    node.register_hook(after)
    two_in = torch.relu(one)
    with switched(CPU, "native"):
        two = model.again(two_in)
    model.last(torch.relu(two)).square().sum().backward()

    # then every bit is equal, and differs from what torch takes by itself
    by_hand = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(chosen, by_hand, strict=True))
    assert not all(torch.equal(mine, theirs) for mine, theirs in zip(chosen, gradients(model, x), strict=True))
    assert mkldnn.enabled


LAST = torch.channels_last


USUAL = torch.contiguous_format


@pytest.mark.parametrize(
    ("outside", "inside", "name", "autocast"),
    [
        (USUAL, LAST, "onednn channels_last", False),
        (USUAL, LAST, "onednn channels_last", True),
        (LAST, USUAL, "onednn contiguous", False),
    ],
)
def test_a_format_gives_the_numbers_of_that_format_set_around_the_layer_by_hand(
    outside: torch.memory_format, inside: torch.memory_format, name: str, autocast: bool
) -> None:
    # given a training whose own format is one of the two, and a layer that is to run in the other
    model, x = built()
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=outside)
    x = x.contiguous(memory_format=outside)

    def trained() -> list[Tensor]:
        with torch.autocast("cpu", enabled=autocast):
            return gradients(model, x)

    switching = Switching(model, {"Twice.again": [Chosen(name, name)] * 2})
    chosen = trained()
    switching.close()
    # when its input is brought to that format by hand, and its output back; torch takes channels_last where either is,
    # so that to leave it takes the weight too
    convolve: Any = model.again._conv_forward

    def by_hand(given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        weight = weight if inside is LAST else weight.contiguous()
        return convolve(given.contiguous(memory_format=inside), weight, bias).contiguous(memory_format=outside)

    vars(model.again)["_conv_forward"] = by_hand
    expected = trained()
    del vars(model.again)["_conv_forward"]
    # then every bit is equal, and all is as it was after that
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(chosen, expected, strict=True))
    assert [each.stride() for each in chosen] == [each.stride() for each in trained()]


def test_a_format_changes_nothing_that_is_saved_and_nothing_outside_the_layer() -> None:
    # given one call in the other format and one as the training has set it
    model, x = built()

    def saves() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

        def note(tensor: Tensor) -> Tensor:
            found.append((tuple(tensor.shape), tensor.stride()))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            gradients(model, x)
        return found

    plain = saves()
    switching = Switching(model, {"Twice.again": [Chosen("onednn channels_last", "onednn channels_last")]})
    # then what autograd saves lies as before
    assert saves() == plain
    switching.close()


def test_a_format_is_offered_where_tensors_can_lie_in_it() -> None:
    # given pictures, volumes and signals, by (shape, stride) of input and weight
    picture, weight = ((2, 4, 8, 8), (256, 64, 8, 1)), ((4, 4, 3, 3), (36, 9, 3, 1))
    picture_in_last = ((2, 4, 8, 8), (256, 1, 32, 4))
    volume, kernel = ((1, 2, 4, 4, 4), (128, 64, 16, 4, 1)), ((2, 2, 3, 3, 3), (54, 27, 9, 3, 1))
    signal, filters = ((2, 4, 8), (32, 8, 1)), ((4, 4, 3), (12, 3, 1))
    # then each offers the one it is not in, and signals none
    assert other_format(picture, weight) == "channels_last"
    assert other_format(picture_in_last, weight) == "contiguous"
    assert other_format(volume, kernel) == "channels_last"
    assert other_format(signal, filters) is None
    assert offered(CPU, None) == ("onednn", "native")
    assert offered(CPU, "contiguous") == ("onednn", "native", "onednn contiguous")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_in_the_layer_leaves_the_switches_as_they_were(where: str) -> None:
    model, x = built()
    switching = Switching(model, {"Twice.again": [Chosen("native", "native")] * 2})

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    if where == "forward":
        model.again.register_forward_hook(fail)
    else:
        model.again.register_full_backward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        gradients(model, x)
    switching.close()
    assert mkldnn.enabled


def test_a_plan_says_what_each_call_runs_with() -> None:
    # given a trace with two calls of one layer, and a plan for the first forward and the last backward op
    model, x = built()
    trace = recorded(model, x)
    first, end = trace.steps[-1]
    forward = [i for i in range(first, end) if (trace.ops[i].name, trace.ops[i].module) == (FORWARD, "Twice.again")]
    backward = [i for i in range(first, end) if (trace.ops[i].name, trace.ops[i].module) == (BACKWARD, "Twice.again")]

    def plan(name: str) -> Plan:
        made = (Algorithm(op=forward[0], choice=name), Algorithm(op=backward[1], choice=name))
        return Plan(trace_id=trace.id, planner="by hand", budget_bytes=2**40, algorithms=made)

    # then both are of the first call: its backward comes last
    assert chosen_of(trace, plan("native")) == {"Twice.again": [Chosen("native", "native"), Chosen(None, None)]}
    with pytest.raises(InvalidPlan, match=r"with 'winograd'; a run chooses among onednn, native"):
        chosen_of(trace, plan("winograd"))


@pytest.mark.parametrize("name", ["native", "onednn channels_last"])
def test_a_run_that_may_choose_has_the_numbers_of_the_switches_set_by_hand(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # given measurements after which another choice takes a tenth of the time
    def measured(_: LayerCall) -> tuple[Cost, ...]:
        return Cost("onednn", 1000, 0, 1000, 0), Cost(name, 100, 0, 100, 0)

    monkeypatch.setattr(layer_choices, "measure", measured)

    def training(by_hand_from: int | None = None) -> tuple[list[Tensor], list[Tensor]]:
        model, x = built()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        losses: list[Tensor] = []
        switching: Switching | None = None
        for i in range(6):
            if i == by_hand_from:
                switching = Switching(model, {"Twice.again": [Chosen(name, name)] * 2})
            if switching is not None:
                switching.begin_step()
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        if switching is not None:
            switching.close()
        return losses, [parameter.detach() for parameter in model.parameters()]

    # when it is run, with room for everything
    with er.within(2**40, allow=["swap", "algorithm"], min_size=1024) as room:
        inside = training()

    # then the plan of the last step chose it for both calls, forward and backward
    assert room.plan is not None
    assert [algorithm.choice for algorithm in room.plan.algorithms] == [name] * 4
    # and from the step on that it begins with, every bit is that of the switches set by hand
    found = [_same(inside, training(first)) for first in range(6)]
    assert found == [i == found.index(True) for i in range(6)]
    assert found.index(True) <= 3
    assert mkldnn.enabled
    # and given to another run, which has another trace, the plan is run there
    assert not room.plan.swaps
    with er.within(plan=replace(room.plan, trace_id="of another run"), min_size=1024) as again:
        training()
    assert again.plan is not None
    assert again.plan.algorithms == room.plan.algorithms


def _same(one: tuple[list[Tensor], list[Tensor]], other: tuple[list[Tensor], list[Tensor]]) -> bool:
    return all(torch.equal(a, b) for a, b in zip((*one[0], *one[1]), (*other[0], *other[1]), strict=True))


def test_nothing_is_chosen_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_choices, "measure", lambda _: pytest.fail("measured"))
    model, x = built()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with er.within(2**40, min_size=1024) as room:
        for _ in range(4):
            gradients(model, x)
            optimizer.step()
    assert room.plan is not None
    assert room.plan.algorithms == ()
