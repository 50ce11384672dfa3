"""Optimizer states away in the trainings that people write: schedulers, scalers, clipping, groups that come later."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import elbowroom as er
from elbowroom.engine.entries import Entry, StateEntry
from elbowroom.engine.executor import Executor
from elbowroom.run.room import Room
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Outcome,
    Training,
    assert_equal,
    assert_follows,
    by_loss,
    finish,
    mean_square,
    mlp,
    moved_categories,
    needs,
    ordinary,
    seeded,
)
from tests.torch.helpers import train as plainly

STEPS = 10
WIDTH, DEPTH, SAMPLES, MANY = 48, 6, 8, 600
Setup = Callable[[], Training]


def both(setup: Setup, less: Callable[[int], int] | None = None, steps: int = STEPS) -> tuple[Outcome, Outcome, Room]:
    """What comes out plain, and with so much less memory than swaps of saves need."""
    plain = plainly(setup, steps)
    least, _ = needs(setup)
    weights = DEPTH * WIDTH * WIDTH * 4
    budget = less(least) if less else least - weights
    with er.within(budget, min_size=MIN_SIZE_BYTES, allow=("swap", "state")) as room:
        inside = finish(seeded(setup), steps)
    return plain, inside, room


def training(
    update: Callable[[int, nn.Module, Any, Tensor], None],
    make: Any = torch.optim.AdamW,
    samples: int = SAMPLES,
    model: nn.Module | None = None,
) -> Training:
    """Layers whose loss goes to `update`, which does backward and whatever follows."""
    model, inputs = model or mlp(WIDTH, DEPTH), torch.randn(samples, WIDTH)
    optimizer = make(model.parameters(), lr=1e-2)

    def step(number: int) -> Tensor:
        loss = mean_square(model(inputs))
        update(number, model, optimizer, loss)
        return loss.detach()

    return Training(step, [model], [optimizer])


def with_scheduler() -> Training:
    made: list[Any] = []

    def update(_: int, model: nn.Module, optimizer: Any, loss: Tensor) -> None:
        if not made:
            made.append(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1))
        loss.backward()
        optimizer.step()
        made[0].step()
        optimizer.zero_grad()

    return training(update)


def with_clipping() -> Training:
    def update(_: int, model: nn.Module, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()

    return training(update)


def halve(parameters: list[Tensor]) -> None:
    """Half of each gradient."""
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)


def with_hooks() -> Training:
    seen: list[str] = []

    def update(_: int, model: nn.Module, optimizer: Any, loss: Tensor) -> None:
        if not seen:
            optimizer.register_step_pre_hook(lambda o, _args, _kwargs: halve(o.param_groups[0]["params"]))
            optimizer.register_step_post_hook(lambda o, _a, _k: seen.append(str(len(o.param_groups[0]["params"]))))
        seen.append("step")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert seen[-2:] == ["step", str(2 * DEPTH)], "the hooks see one step, with all parameters"

    return training(update)


def with_accumulation() -> Training:
    model, inputs = mlp(WIDTH, DEPTH), torch.randn(4 * SAMPLES, WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(_: int) -> Tensor:
        total = torch.zeros(())
        for piece in inputs.chunk(4):
            loss = mean_square(model(piece)) / 4
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return Training(step, [model], [optimizer])


def with_two_optimizers() -> Training:
    model, inputs = mlp(WIDTH, DEPTH), torch.randn(SAMPLES, WIDTH)
    parameters = list(model.parameters())
    one = torch.optim.SGD(parameters[: len(parameters) // 2], lr=1e-2, momentum=0.9)
    other = torch.optim.Adam(parameters[len(parameters) // 2 :], lr=1e-3, amsgrad=True)

    def step(_: int) -> Tensor:
        one.zero_grad()
        other.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        one.step()
        other.step()
        return loss.detach()

    return Training(step, [model], [one, other])


def with_groups() -> Training:
    model, inputs = mlp(WIDTH, DEPTH), torch.randn(SAMPLES, WIDTH)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 1e-3}]
    return ordinary(model, inputs, optimizer=torch.optim.AdamW(groups, lr=1e-2))


def with_unused_parameters() -> Training:
    model, inputs = mlp(WIDTH, DEPTH), torch.randn(SAMPLES, WIDTH)
    unused = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.Adam([*unused.parameters(), *model.parameters()], lr=1e-2)
    return replace(ordinary(model, inputs, optimizer=optimizer), modules=[model, unused])


def with_sparse_gradients() -> Training:
    words, head = nn.Embedding(64, WIDTH, sparse=True), mlp(WIDTH, DEPTH)
    tokens = torch.randint(0, 64, (SAMPLES, 4))
    sparse = torch.optim.SparseAdam(words.parameters(), lr=1e-2)
    dense = torch.optim.Adam(head.parameters(), lr=1e-2)

    def step(_: int) -> Tensor:
        sparse.zero_grad()
        dense.zero_grad()
        loss = mean_square(head(words(tokens)))
        loss.backward()
        sparse.step()
        dense.step()
        return loss.detach()

    return Training(step, [words, head], [sparse, dense])


def with_closures() -> Training:
    """As Lightning does it: the last of two batches is in the closure of the optimizer's step, as clipping is."""
    model = mlp(WIDTH, DEPTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def backward() -> Tensor:
        loss = mean_square(model(torch.randn(SAMPLES, WIDTH)))
        loss.backward()
        return loss

    def closure() -> Tensor:
        loss = backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        backward()
        return torch.as_tensor(optimizer.step(closure)).detach()

    return Training(step, [model], [optimizer])


class Lion(torch.optim.Optimizer):
    """An optimizer that is nobody's table."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                parameter.add_((0.9 * momentum + 0.1 * parameter.grad).sign(), alpha=-group["lr"])
                momentum.mul_(0.99).add_(parameter.grad, alpha=0.01)


class Slower(torch.optim.Adam):
    """A subclass with a step of its own around torch's."""

    def step(self, closure: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = super().step(closure)
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(self.state[parameter]["exp_avg"], alpha=-1e-4)
        return found


def update(_: int, model: nn.Module, optimizer: Any, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def with_somebody_elses() -> Training:
    return training(update, Lion, MANY)


def with_a_subclass() -> Training:
    return training(update, Slower, MANY)


CASES: dict[str, Setup] = {
    "a scheduler": with_scheduler,
    "clipping": with_clipping,
    "hooks": with_hooks,
    "accumulation": with_accumulation,
    "two optimizers": with_two_optimizers,
    "parameter groups": with_groups,
    "unused parameters": with_unused_parameters,
    "sparse gradients": with_sparse_gradients,
    "closures": with_closures,
}


@pytest.mark.parametrize("case", CASES)
def test_states_move_and_no_number_changes(case: str) -> None:
    plain, inside, room = both(CASES[case])
    assert_equal(inside, plain)
    assert "optimizer_state" in moved_categories(room)
    assert sum(step.mismatches for step in room.steps) == 0


@pytest.mark.parametrize("setup", [with_somebody_elses, with_a_subclass])
def test_steps_that_are_not_known_run_whole_with_their_states_away_between(setup: Setup) -> None:
    # given a step that needs more in backward than at the optimizer, where all its states are on the device
    plain, inside, room = both(setup, lambda least: least - 4 * WIDTH * WIDTH)
    assert_equal(inside, plain)
    assert "optimizer_state" in moved_categories(room)
    assert room.trace is not None
    assert len(room.trace.parts) == 1


@pytest.mark.parametrize("setup", [with_closures, with_accumulation])
def test_a_step_with_a_closure_is_one_step_as_without(setup: Setup) -> None:
    _, _, room = both(setup)
    assert len(room.steps) == STEPS
    assert room.trace is not None
    assert len(room.trace.parts) > 1
    step = room.trace.steps[-1]
    phases = [op.phase for op in room.trace.ops[step.first_op : step.end_op]]
    assert phases.index("forward") < phases.index("backward") < phases.index("optimizer")


def test_a_group_that_comes_later_is_observed_and_planned_for() -> None:
    def setup() -> Training:
        model = nn.Sequential(mlp(WIDTH, DEPTH), nn.Linear(WIDTH, WIDTH))

        def late(number: int, model: Any, optimizer: Any, loss: Tensor) -> None:
            if number == 5:
                optimizer.add_param_group({"params": list(model[1].parameters()), "lr": 1e-3})
            update(number, model, optimizer, loss)

        return training(late, lambda _, lr: torch.optim.Adam(model[0].parameters(), lr=lr), model=model)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        plain, inside, room = both(setup)

    assert_equal(inside, plain)
    assert "optimizer_state" in moved_categories(room)
    assert [step.mismatches for step in room.steps] == [0] * 5 + [1] + [0] * 4
    assert [step.mode for step in room.steps][6] == "observe"
    assert any("other states than its plan expects" in str(each.message) for each in told)


def test_states_that_are_loaded_in_the_middle_are_used_and_leave_again() -> None:
    def setup() -> Training:
        kept: list[Any] = []

        def loading(number: int, model: nn.Module, optimizer: Any, loss: Tensor) -> None:
            if number == 4:
                kept.append(copy.deepcopy(optimizer.state_dict()))
            if number == 7:
                optimizer.load_state_dict(kept.pop())
            update(number, model, optimizer, loss)

        return training(loading, torch.optim.Adam)

    plain, inside, room = both(setup)
    assert_equal(inside, plain)
    assert "optimizer_state" in moved_categories(room)
    assert sum(step.mismatches for step in room.steps) == 0


def test_a_state_that_somebody_holds_stays_on_the_device_and_this_is_said() -> None:
    held: list[Tensor] = []

    def setup() -> Training:
        model, inputs = mlp(WIDTH, DEPTH), torch.randn(SAMPLES, WIDTH)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(inputs))
            loss.backward()
            optimizer.step()
            averages = [values["exp_avg"] for values in optimizer.state.values()] if number >= 4 else []
            if number == 4:  # which of them the plan moves depends on how long ops took
                held[:] = averages
            if number > 4:
                assert all(one.untyped_storage().nbytes() == one.nbytes for one in held)
                assert all(torch.equal(one, other) for one, other in zip(held, averages, strict=True))
            return loss.detach()

        return Training(step, [model], [optimizer])

    with pytest.warns(RuntimeWarning, match="code outside its optimizer refers to it"):
        plain, inside, _ = both(setup)
    assert_equal(inside, plain)


def test_an_exception_in_a_step_leaves_all_parameters_and_states_in_place() -> None:
    model, inputs = mlp(WIDTH, DEPTH), torch.randn(SAMPLES, WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    groups, parameters = optimizer.param_groups, list(model.parameters())

    # when a gradient is of a kind that the step refuses, in a part in the middle
    def train() -> None:
        mean_square(model(inputs)).backward()
        parameters[6].grad = parameters[6].detach().to_sparse()
        optimizer.step()

    with pytest.raises(RuntimeError, match="sparse"), er.within("1GiB", min_size=1024, allow=("swap", "state")):
        train()

    # then the optimizer has its groups and parameters, and states with bytes
    assert optimizer.param_groups is groups
    assert [id(p) for group in groups for p in group["params"]] == [id(p) for p in parameters]
    states = [v for values in optimizer.state.values() for v in values.values()]
    assert len(states) > 0
    assert all(v.untyped_storage().nbytes() >= v.numel() * v.element_size() for v in states)


def test_a_training_goes_on_after_the_room_as_if_there_had_been_none() -> None:
    def setup() -> Training:
        return with_groups()

    plain = plainly(setup, 2 * STEPS)
    needed, _ = needs(setup)
    inside = seeded(setup)
    with er.within(needed - 4 * DEPTH * WIDTH * WIDTH, min_size=MIN_SIZE_BYTES, allow=("swap", "state")) as room:
        first = finish(inside, STEPS)
    rest = finish(inside, 2 * STEPS, STEPS)
    assert "optimizer_state" in moved_categories(room)
    assert_equal(Outcome([*first.losses, *rest.losses], rest.state), plain)


def test_cross_entropy_of_a_language_model_moves_states() -> None:
    def setup() -> Training:
        words, head = nn.Embedding(100, WIDTH), mlp(WIDTH, DEPTH)
        tokens = torch.randint(0, WIDTH, (4, 8))
        return ordinary(
            nn.Sequential(words, head),
            tokens,
            loss=lambda scores: F.cross_entropy(scores.flatten(0, 1), tokens.flatten()),
        )

    plain, inside, room = both(setup)
    assert_equal(inside, plain)
    assert "optimizer_state" in moved_categories(room)


@pytest.mark.filterwarnings("ignore:elbowroom. saved storage:RuntimeWarning")
def test_a_gradient_scaler_that_skips_a_step_leaves_states_as_they_are() -> None:
    def setup() -> Training:
        model, inputs = mlp(WIDTH, DEPTH), torch.randn(SAMPLES, WIDTH)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(inputs))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if number == 6:
                next(model.parameters()).grad.fill_(float("inf"))  # pyright: ignore[reportOptionalMemberAccess]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return Training(step, [model], [optimizer])

    plain, inside, room = both(setup)
    assert_equal(inside, plain)
    assert "optimizer_state" in moved_categories(room)


def test_a_plan_of_one_run_is_followed_in_the_next() -> None:
    def made() -> er.Plan:
        _, _, room = both(with_groups)
        assert room.plan is not None
        return room.plan

    # given a plan, and nothing else that is left of the run it was made in
    given = made()
    gc.collect()

    # when
    with er.within(plan=given, min_size=MIN_SIZE_BYTES) as room:
        inside = finish(seeded(with_groups), STEPS)

    # then
    assert "optimizer_state" in moved_categories(room)
    assert_follows(room, given)
    assert_equal(inside, plainly(with_groups, STEPS))


def test_a_distributed_state_dict_taken_in_the_middle_is_whole() -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    taken: list[Any] = []

    def setup() -> Training:
        def update(number: int, model: nn.Module, optimizer: Any, loss: Tensor) -> None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number == 5:
                taken.append(copy.deepcopy(get_optimizer_state_dict(model, optimizer)))

        return training(update)

    def bare() -> Training:
        return training(lambda _number, _model, optimizer, loss: (loss.backward(), optimizer.step(), None)[2])

    plain = plainly(setup, STEPS)
    least, _ = needs(bare)
    with er.within(least - 4 * DEPTH * WIDTH * WIDTH, min_size=MIN_SIZE_BYTES) as room:
        inside = finish(seeded(setup), STEPS)

    assert_equal(inside, plain)
    assert "optimizer_state" in moved_categories(room)
    expected, found = (each["state"] for each in taken)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name]["exp_avg"], found[name]["exp_avg"]) for name in expected)


def test_states_that_leave_as_another_kind_of_step_begins_are_no_writes_of_that_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given steps of few samples, whose plan keeps all, and of many between them, whose plan has states away
    def setup() -> Training:
        model, inputs = mlp(WIDTH, DEPTH), torch.randn(MANY, WIDTH)
        optimizer = torch.optim.AdamW(model.parameters())
        model[0].register_forward_pre_hook(lambda *_: told.append("forward"))
        return by_loss(lambda number: mean_square(model(inputs[: (MANY, SAMPLES)[number % 2]])), model, optimizer)

    told: list[str] = []
    begin_step, swap_out = Executor.begin_step, Executor.swap_out
    monkeypatch.setattr(Executor, "begin_step", lambda self: (told.append("begin"), begin_step(self))[1])

    def leaves(self: Executor, entry: Entry, *to: Any) -> None:
        told.append("state" if isinstance(entry, StateEntry) else "save")
        swap_out(self, entry, *to)

    monkeypatch.setattr(Executor, "swap_out", leaves)

    # when the last step is one of many
    plain, inside, room = both(setup, steps=STEPS - 1)

    # then: what leaves once a step has begun and before its forward would be taken for the first write of its plan
    assert_equal(inside, plain)
    assert "optimizer_state" in moved_categories(room)
    begun = [told[at : told.index("forward", at)] for at, what in enumerate(told) if what == "begin"]
    assert [what for what in begun if "state" in what] == []
