"""What a room promises besides equal numbers: it declines, never moves what is not its own, and can be followed."""

from __future__ import annotations

import copy
import gc
import importlib
import io
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.engine.tiers.disk import DiskTier
from elbowroom.run import account
from elbowroom.run.kind_totals import Kinds
from elbowroom.run.room import run_of
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Setup,
    Training,
    assert_equal,
    assert_same_within,
    assert_swapped,
    finish,
    mean_square,
    mlp,
    ordinary,
    seeded,
    tight_budget,
    train,
    train_within,
)


def perceptron() -> Training:
    return ordinary(mlp(), torch.randn(128, 64))


Written = list[weakref.ref[torch.UntypedStorage]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    """Every storage that is written to the disk from here on."""
    seen: Written = []
    write = DiskTier.write

    def spy(tier: DiskTier, storage: torch.UntypedStorage, *rest: Any) -> Any:
        seen.append(weakref.ref(storage))
        return write(tier, storage, *rest)

    monkeypatch.setattr(DiskTier, "write", spy)
    return seen


def test_a_job_that_fits_is_left_alone() -> None:
    plain = train(perceptron)
    inside, room = train_within(perceptron, budget=2**40)

    assert_equal(inside, plain)
    assert [step.mode for step in room.steps] == ["observe"] + ["keep"] * 4
    assert [(step.swapped_out_bytes, step.swapped_back_bytes, step.stall_ns) for step in room.steps[1:]] == [
        (0, 0, 0)
    ] * 4
    assert room.plan is not None
    assert room.plan.swaps == ()
    assert "it fits, nothing is moved" in room.summary()


def test_a_run_that_found_no_plan_so_far_claims_no_planned_peak() -> None:
    # given steps that swap, of a kind that explores: its plan was made for no budget
    _, room = train_within(perceptron, budget=tight_budget(perceptron))
    run = run_of(room)
    known = run._last
    assert known is not None
    # when
    lines = account.summary("budget 1.0 MiB", Kinds(), known, room.steps, len(room.steps))
    # then
    assert lines[0] == "budget 1.0 MiB, no plan meets it so far, all that may leaves early (5 steps, 0 mismatches)"


def was_written(tensors: Sequence[Tensor], written: Written) -> bool:
    """Whether the very storage of one of the tensors, which still exist, was."""
    return any(tensor.untyped_storage() is storage() for tensor in tensors for storage in written)


class Holder(nn.Module):
    """Uses a large buffer, frozen weights, a parameter outside of any layer, and weights that autograd saves."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(128, 64))
        self.register_buffer("table", torch.randn(128, 64))

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.layers(x) * self.scale * self.table)


def test_parameters_and_buffers_and_gradients_are_never_written_to_the_disk(written: Written) -> None:
    # given
    def setup() -> Training:
        return ordinary(Holder(), torch.randn(128, 64))

    budget = tight_budget(setup)
    written.clear()
    # when
    with er.within(budget, min_size=MIN_SIZE_BYTES) as room:
        training = seeded(setup)
        finish(training, 5)
    # then
    assert_swapped(room)
    model = training.modules[0]
    own = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    assert written
    assert not was_written(own, written)


def test_inputs_are_never_written_to_the_disk_once_a_plan_is_followed(written: Written) -> None:
    # given inputs that the first layer saves, and the loop holds
    inputs = torch.randn(5, 128, 64)

    def setup() -> Training:
        training = ordinary(model := mlp(), inputs[0])
        (optimizer,) = training.optimizers

        def step(number: int) -> Tensor:
            if number == 2:
                written.clear()
            optimizer.zero_grad()
            loss = mean_square(model(inputs[number]))
            loss.backward()
            optimizer.step()
            return loss.detach()

        training.step = step
        return training

    # when
    _, room = train_within(setup)
    # then
    assert_swapped(room)
    assert written
    assert not was_written([inputs], written)


def test_a_room_after_a_room_gives_the_same_numbers() -> None:
    # given
    plain = train(perceptron, 8)
    budget = tight_budget(perceptron)
    # when
    training = seeded(perceptron)
    with er.within(budget, min_size=MIN_SIZE_BYTES) as first:
        losses = finish(training, 4).losses
    with er.within(budget, min_size=MIN_SIZE_BYTES) as second:
        rest = finish(training, 8, first=4)
    # then
    rest.losses[:0] = losses
    assert_equal(rest, plain)
    assert_swapped(first, 4)
    assert_swapped(second, 4)


def test_after_a_room_training_goes_on_as_if_there_had_been_none() -> None:
    # given
    def hooks() -> tuple[int, ...]:
        modules: Any = importlib.import_module("torch.nn.modules.module")
        optimizers: Any = importlib.import_module("torch.optim.optimizer")
        tables = (modules._global_forward_pre_hooks, modules._global_forward_hooks)
        tables += (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
        return tuple(len(table) for table in tables)

    before = hooks()
    # when
    train_within(perceptron)
    # then
    assert hooks() == before
    assert_equal(train(perceptron), train(perceptron))


def test_a_room_inside_a_room_is_refused() -> None:
    with er.within(2**30), pytest.raises(er.UsageError, match="within"), er.within(2**30):
        pass


def test_a_room_for_another_thread_is_entered_there() -> None:
    # given
    plain = train(perceptron)
    budget = tight_budget(perceptron)
    found: list[Any] = []
    # when
    thread = threading.Thread(target=lambda: found.append(train_within(perceptron, budget=budget)))
    thread.start()
    thread.join()
    # then
    ((inside, room),) = found
    assert_equal(inside, plain)
    assert_swapped(room)


def test_a_model_can_be_copied_and_stored_inside_the_loop() -> None:
    # given
    def setup() -> Training:
        training = ordinary(mlp(), torch.randn(512, 64))
        (model,), (optimizer,), bare = training.modules, training.optimizers, training.step

        def step(number: int) -> Tensor:
            loss = bare(number)
            twin = copy.deepcopy(model)
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.seek(0)
            model.load_state_dict(torch.load(file)["model"])
            return loss + twin[0].weight.detach().sum()

        training.step = step
        return training

    assert_same_within(setup)


def test_results_of_a_forward_pass_can_be_kept_and_stored_while_they_are_swapped() -> None:
    # given a loop that keeps a hidden tensor, with its graph, over the end of its step
    def setup() -> Training:
        model, batch = nn.Sequential(mlp(), nn.Sigmoid()), torch.randn(128, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept: list[Tensor] = []

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            hidden = model(batch)
            mean_square(hidden).backward(retain_graph=True)
            kept.append(hidden)
            optimizer.step()
            file = io.BytesIO()
            torch.save(hidden.detach(), file)
            file.seek(0)
            return torch.stack([each.detach().sum() for each in kept[-2:]]).sum() + torch.load(file).mean()

        return Training(step, [model], [optimizer])

    # when
    plain = train(setup)
    inside, _ = train_within(setup)
    # then
    assert_equal(inside, plain)


# Plans that were made before


def captured(setup: Setup) -> tuple[er.Trace, er.Machine, int]:
    """A trace of a training, this machine, and a tight budget."""

    def counted() -> Any:
        training = seeded(setup)
        numbers = iter(range(3))
        return lambda: training.step(next(numbers))

    budget = tight_budget(setup)
    return er.capture(counted, steps=3, min_size=MIN_SIZE_BYTES), er.Machine.here(device="cpu"), budget


def test_a_plan_from_a_captured_trace_is_followed(tmp_path: Path) -> None:
    # given
    plain = train(perceptron)
    trace, machine, budget = captured(perceptron)
    er.plan(trace, machine, budget, min_size=MIN_SIZE_BYTES, allow=("swap",)).save(tmp_path / "plan.json")
    plan = er.Plan.load(tmp_path / "plan.json")
    # when
    inside, room = train_within(perceptron, budget=budget, plan=plan)
    # then
    assert_equal(inside, plain)
    assert_swapped(room)
    expected_bytes = sum(trace.storages[swap.storage].size_bytes for swap in plan.swaps)
    assert room.steps[-1].swapped_out_bytes == expected_bytes


def test_the_budget_of_a_plan_is_the_rooms_where_none_is_given() -> None:
    trace, machine, budget = captured(perceptron)
    plan = er.plan(trace, machine, budget, min_size=MIN_SIZE_BYTES, allow=("swap",))

    with er.within(plan=plan, min_size=MIN_SIZE_BYTES) as room:
        finish(seeded(perceptron), 4)

    assert run_of(room).budget_bytes == budget
    assert_swapped(room, 4)


def test_a_plan_for_another_training_is_refused() -> None:
    # given
    trace, machine, budget = captured(perceptron)
    plan = er.plan(trace, machine, budget, min_size=MIN_SIZE_BYTES, allow=("swap",))

    def other() -> Training:
        return ordinary(nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 64)), torch.randn(128, 64))

    # when / then
    with pytest.raises(er.InvalidPlan):
        train_within(other, budget=budget, plan=plan)


def test_what_a_room_made_can_be_saved_and_read(tmp_path: Path) -> None:
    _, room = train_within(perceptron, measure=True)
    records = {"trace": room.trace, "plan": room.plan, "machine": room.machine, "measured": room.measured}
    kinds: dict[str, Any] = {"trace": er.Trace, "plan": er.Plan, "machine": er.Machine, "measured": er.Timeline}

    for name, record in records.items():
        assert record is not None
        record.save(tmp_path / name)
        assert kinds[name].load(tmp_path / name) == record
    assert room.plan is not None
    assert room.trace is not None
    assert room.plan.trace_id == room.trace.id


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_size": 0}, "min_size=0; allowed is a size of 1 byte or more"),
        ({"min_size": True}, "size: given True; allowed is"),
        ({"plan": "plan.json"}, "Plan.load"),
        ({"budget": "eight"}, "eight"),
    ],
)
def test_an_argument_that_is_not_allowed_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(er.UsageError, match=re.escape(message)), er.within(**given):
        pass


@pytest.fixture(autouse=True)
def no_room_stays_open() -> Iterator[None]:
    """Whatever a test does, autograd's default hooks are gone after it."""
    yield
    functions: Any = torch._C
    assert functions._autograd._top_saved_tensors_default_hooks(True) is None


@pytest.mark.parametrize("allow", [("swap",), ("swap", "state"), ("swap", "recompute")])
def test_a_training_that_is_refused_leaves_nothing_alive(allow: tuple[Any, ...]) -> None:
    # given a script that catches the error, to try again with a smaller batch
    models: list[weakref.ref[nn.Module]] = []

    def refused() -> None:
        training = perceptron()
        models.append(weakref.ref(training.modules[0]))
        try:
            with er.within(100_000, allow=allow, min_size=MIN_SIZE_BYTES):
                finish(training, 6)
        except er.Infeasible:
            return
        pytest.fail("a budget of 100 kB was met")

    refused()  # what torch makes once in a process is made
    # when the garbage collector does not help
    gc.collect()
    gc.disable()
    try:
        refused()
        alive = models[-1]() is not None
    finally:
        gc.enable()
    # then its weights are gone, and with them the memory that the next try needs
    assert not alive
