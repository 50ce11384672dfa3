"""torch.compile inside a room: what compiled regions save is swapped, and they are compiled as without it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import elbowroom as er
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Setup,
    Training,
    assert_equal,
    assert_swapped,
    captured,
    mean_square,
    needs,
    ordinary,
    train,
    train_within,
)
from tests.torch.test_recompute_runs import recomputed
from tests.torch.test_recompute_trust import Body, assert_same, training

pytestmark = [
    pytest.mark.timeout(300),
    # torch's own, when it looks at the gradients of what a region is given
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),  # its imports
]

EAGER = "aot_eager"
"""Autograd's part of the compiler, without code generation: fast, and the same saved tensors."""

Compile = Callable[[nn.Sequential], Any]


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """Tests that come later are of a process that never compiled anything."""
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(nn.functional.gelu(self.first(x)))


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def compiled_frames() -> int:
    """How often the compiler has compiled since this was asked last; each graph break and recompile adds one."""
    counters = torch._dynamo.utils.counters
    count = counters["frames"]["ok"]
    counters.clear()
    torch._dynamo.reset()
    return count


def blocks(rows: tuple[int, ...], compiled: Compile) -> Setup:
    def setup() -> Training:
        model = nn.Sequential(*[Block() for _ in range(6)])
        called = compiled(model)
        batches = [torch.randn(count, 64) for count in rows]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(i: int) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = mean_square(called(batches[i % len(batches)]))
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])

    return setup


def whole(model: nn.Sequential) -> Any:
    return torch.compile(model, backend=EAGER)


def by_block(model: nn.Sequential, backend: str = EAGER) -> Any:
    for block in model:
        block.compile(backend=backend)
    return model


def by_block_in_cpp(model: nn.Sequential) -> Any:
    return by_block(model, "inductor")


def dynamic(model: nn.Sequential) -> Any:
    for block in model:
        block.compile(backend=EAGER, dynamic=True)
    return model


def around_a_break(model: nn.Sequential) -> Any:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = model[:3](x)
            torch._dynamo.graph_break()
            return model[3:](x)

    broken: Any = Broken()
    return torch.compile(broken, backend=EAGER)


@pytest.mark.parametrize("compiled", [whole, by_block, by_block_in_cpp, dynamic, around_a_break])
def test_what_compiled_regions_save_is_swapped_and_nothing_else_changes(compiled: Compile) -> None:
    if compiled is by_block_in_cpp and shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("no C++ compiler: inductor needs one on the CPU")
    setup = blocks((256, 192) if compiled is dynamic else (256,), compiled)
    steps = 8 if compiled is dynamic else 5
    # given
    plain = train(setup, steps)
    alone = compiled_frames()
    # when
    inside, room = train_within(setup, steps)
    # then
    assert_equal(inside, plain)
    assert_swapped(room, steps)
    # `tight_budget` captured a training too: two trainings within, one without.
    together = torch._dynamo.utils.counters["frames"]["ok"]
    assert 0 < together <= 2 * alone


def test_a_module_first_compiled_in_the_middle_of_a_room_goes_on_as_before() -> None:
    # given
    def setup() -> Training:
        model = nn.Sequential(*[Block() for _ in range(6)])
        training = ordinary(model, torch.randn(256, 64))
        before = training.step

        def step(i: int) -> Tensor:
            if i == 4:
                by_block(model)
            return before(i)

        return Training(step, training.modules, training.optimizers)

    # when
    plain = train(setup, 9)
    inside, room = train_within(setup, 9)
    # then
    assert_equal(inside, plain)
    assert room.steps[-1].mode == "plan"
    assert room.steps[-1].swapped_out_bytes > 0


def test_a_compiled_optimizer_changes_weights_as_before() -> None:
    # given
    def setup() -> Training:
        training = ordinary(nn.Sequential(*[Block() for _ in range(6)]), torch.randn(256, 64))
        model, (optimizer,) = training.modules[0], training.optimizers
        stepped = torch.compile(optimizer.step, backend=EAGER)

        def step(_: int) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = mean_square(model(torch.ones(256, 64)))
            loss.backward()
            stepped()
            return loss.detach()

        return Training(step, [model], [optimizer])

    # when
    plain = train(setup)
    inside, room = train_within(setup)
    # then
    assert_equal(inside, plain)
    assert [step.mode for step in room.steps][-1] == "plan"


def test_what_the_process_compiled_elsewhere_keeps_no_training_from_recomputing() -> None:
    # given
    torch.compile(torch.sin, backend=EAGER)(torch.ones(4))
    assert compiled_frames() == 1
    # then
    assert_same(training(Body()))


def test_a_step_that_calls_a_compiled_function_is_not_recorded_for_recomputes() -> None:
    # given
    setup = training(Body(torch.compile(torch.tanh, backend=EAGER)))
    train(setup)
    alone = compiled_frames()
    # when it may only recompute
    with pytest.raises(er.Infeasible, match="The least that"):
        recomputed(setup)
    # then the capture that its budget comes from has compiled as often as plain training, the run nothing
    assert torch._dynamo.utils.counters["frames"]["ok"] == alone


def test_a_given_plan_with_recomputes_is_refused_where_the_training_runs_compiled_code() -> None:
    # given
    setup = training(Body(torch.compile(torch.tanh, backend=EAGER)))
    least, peak = needs(setup, allow=("recompute",))
    machine, budget = er.Machine.here(device="cpu"), (least + peak) // 2
    made = er.plan(captured(setup), machine, budget, "optimal", MIN_SIZE_BYTES, allow=("recompute",))
    assert made.recomputes
    # then
    with pytest.raises(er.InvalidPlan, match=r"torch\.compile has compiled, .*; plan again with"):
        train_within(setup, plan=made)


def test_the_compiler_warns_of_module_hooks_of_the_user_once_the_room_is_closed() -> None:
    # given
    model = nn.Sequential(*[Block() for _ in range(6)])
    setup = blocks((256,), whole)
    train_within(setup)
    called = torch.compile(model, backend=EAGER)
    handle = nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    # when
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            called(torch.randn(2, 64))
    finally:
        handle.remove()
    # then
    assert any("global hooks on modules" in str(each.message) for each in heard)
