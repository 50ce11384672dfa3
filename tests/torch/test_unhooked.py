"""Steps without hooks: a job that fits is looked at now and then, and nothing that a user does in between is harmed."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

import elbowroom as er
from elbowroom.engine.residence import RamResidence, SoFar
from elbowroom.run.hook_sampling import SURE
from elbowroom.run.room import run_of
from elbowroom.run.step_kinds import LEAST_UNCHECKED, details
from elbowroom.torch_compat.core import top_hooks
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Setup,
    Training,
    assert_equal,
    by_loss,
    finish,
    mean_square,
    mlp,
    needs,
    ordinary,
    seeded,
    train_within,
)
from tests.torch.plenty import INPUT, PLENTY, checked, in_plenty, of_rows, with_forward

SEEN = 1 + SURE
"""The observed step, and the checked ones after it."""


@pytest.fixture(autouse=True)
def no_hooks_stay() -> Iterator[None]:
    assert top_hooks() is None
    yield
    assert top_hooks() is None


def test_after_a_few_steps_that_were_alike_one_of_many_is_checked() -> None:
    room = in_plenty(lambda: ordinary(mlp(), INPUT), steps=SEEN + 3 * LEAST_UNCHECKED + 3)

    # then: one observed and three checked steps, and one more after 15 others, and after 30 others
    assert checked(room) == [True] * 4 + [False] * 15 + [True] + [False] * 30 + [True, False]
    assert {step.mode for step in room.steps[1:]} == {"keep"}
    assert sum(step.mismatches for step in room.steps) == 0


def test_a_job_of_which_something_moves_is_always_checked() -> None:
    _, room = train_within(lambda: ordinary(mlp(), INPUT), steps=SEEN + 3)

    assert checked(room) == [True] * 7


def test_hooks_of_the_user_around_the_forward_pass_stay_in_force() -> None:
    packed: list[int] = []

    def forward(model: nn.Module, x: Tensor, number: int) -> Tensor:
        with saved_tensors_hooks(lambda tensor: packed.append(number) or tensor, lambda tensor: tensor):
            return model(x)

    room = in_plenty(with_forward(forward), steps=SEEN + 3)

    # then: ours lie below theirs, where they cannot be taken out, and each step is seen by theirs, plain or within
    assert checked(room) == [True] * 7
    assert packed[: len(packed) // 2] == packed[len(packed) // 2 :]
    assert set(packed) == set(range(7))


def test_hooks_of_the_user_inside_the_model_are_called_in_steps_without_ours() -> None:
    class OnCpu(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp()

        def forward(self, x: Tensor) -> Tensor:
            with save_on_cpu():
                return self.layers(x)

    room = in_plenty(lambda: ordinary(OnCpu(), INPUT), steps=SEEN + 3)

    assert checked(room)[SEEN:] == [False] * 3


def test_hooks_that_the_user_enters_in_one_step_and_leaves_in_a_later_one_are_theirs_to_leave() -> None:
    open_now: list[saved_tensors_hooks] = []
    left: list[object] = []

    def forward(model: nn.Module, x: Tensor, number: int) -> Tensor:
        found = model(x)
        if number == SEEN:  # the first one without hooks: theirs lie where ours were
            open_now.append(saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor))
            open_now[-1].__enter__()
        if number == SEEN + 2:
            open_now.pop().__exit__()
        if number >= SEEN + 2:
            left.append(top_hooks())
        return found

    room = in_plenty(with_forward(forward), steps=SEEN + 4)

    # then: ours were not put above theirs, so that leaving them leaves none, and are back in the step after that
    assert left[:3] == [None, None, None]
    assert [each is None for each in left] == [True, True, True, False]
    assert sum(step.mismatches for step in room.steps) == 0


def test_hooks_that_the_user_forbids_within_a_step_without_ours_are_put_back_later() -> None:
    def forward(model: nn.Module, x: Tensor, number: int) -> Tensor:
        found = model(x)
        if number == SEEN:
            with disable_saved_tensors_hooks("none here"):
                return found.sin()
        return found.sin()

    room = in_plenty(with_forward(forward), steps=SEEN + 3)

    assert checked(room)[SEEN:] == [False] * 3


def test_graphs_are_kept_over_steps_with_and_without_hooks_and_read_twice() -> None:
    kept: list[tuple[Tensor, Tensor]] = []

    def forward(model: nn.Module, x: Tensor, number: int) -> Tensor:
        found = model(x)
        mean_square(found).backward(retain_graph=True)
        leaf = (x + number).requires_grad_()
        kept.append((leaf, leaf.sin().exp().sum()))
        for _ in range(2):  # of a step back, made with hooks at first, and without them then
            leaf, total = kept[max(0, number - 1)]
            found = found + torch.autograd.grad(total, leaf, retain_graph=True)[0]
        return found

    def setup() -> Training:
        kept.clear()
        return with_forward(forward)()

    room = in_plenty(setup, steps=SEEN + 6)

    assert checked(room)[SEEN:] == [False] * 6


def test_a_forward_pass_that_raises_in_a_step_without_hooks_is_tried_again() -> None:
    def forward(model: nn.Module, x: Tensor, number: int) -> Tensor:
        if number == SEEN + 1:
            with pytest.raises(ValueError, match="no such batch"):
                raising(model, x)
        return model(x)

    def raising(model: nn.Module, x: Tensor) -> None:
        model(x)
        raise ValueError("no such batch")

    room = in_plenty(with_forward(forward), steps=SEEN + 8)

    # then: the step with two forward passes was not as those before it, and those after it are checked
    assert checked(room)[SEEN : SEEN + 2] == [False, False]
    assert checked(room)[SEEN + 2 : SEEN + 2 + SURE] == [True] * SURE
    assert checked(room)[SEEN + 2 + SURE :] == [False] * 3


def test_an_error_that_leaves_the_room_in_a_step_without_hooks_leaves_none_behind() -> None:
    training = ordinary(mlp(), INPUT)
    inside: list[object] = []

    def interrupted() -> None:
        with er.within(PLENTY, min_size=MIN_SIZE_BYTES):
            for number in range(SEEN + 1):
                training.step(number)
            training.modules[0](INPUT)
            inside.append(top_hooks())
            raise ValueError("mid-step")

    with pytest.raises(ValueError, match="mid-step"):
        interrupted()

    assert inside == [None]
    training.step(0)


def test_shapes_of_keyword_arguments_are_told_before_a_step_runs_without_hooks() -> None:
    rows = [64] * (SEEN + 2) + [32] + [64] * 4

    room = in_plenty(of_rows(rows, keyword=True), steps=len(rows))

    assert checked(room)[SEEN : SEEN + 3] == [False, False, True]
    assert room.steps[SEEN + 2].mode == "observe"
    assert sum(step.mismatches for step in room.steps) == 0


def test_a_step_that_differs_in_nothing_that_can_be_told_before_is_seen_when_it_ends() -> None:
    def forward(model: nn.Module, x: Tensor, number: int) -> Tensor:
        found = model(x)
        return found.sin().cos() if number > SEEN else found

    with pytest.warns(RuntimeWarning, match="saved storage"):
        room = in_plenty(with_forward(forward), steps=SEEN + 12)

    # then: one with hooks, one without that turns out to be another, and what comes is checked and observed
    assert checked(room)[SEEN : SEEN + 3] == [False, False, True]
    assert room.steps[SEEN + 2].mismatches > 0
    assert "observe" in [step.mode for step in room.steps[SEEN:]]


def evaluated_with_gradients(last: int) -> Setup:
    """Before its last step a training runs its module four times, with gradients and without a backward."""
    rows = torch.linspace(-1, 1, 512 * 256).view(512, 256)

    def setup() -> Training:
        model = mlp(256)
        optimizer = torch.optim.SGD(model.parameters())

        def loss(number: int) -> Tensor:
            shown = mean_square(model(rows))
            for _ in range(4 if number == last else 0):
                shown = mean_square(model(rows))
            return shown

        return by_loss(loss, model, optimizer)

    return setup


@pytest.mark.parametrize("last", [3, SEEN + 2])
def test_an_evaluation_with_gradients_is_swapped_where_two_forwards_do_not_fit(last: int) -> None:
    # given: 4 outputs of 512 KiB are saved; keeping them fits, and keeping those of two forwards does not
    outcome = finish(seeded(evaluated_with_gradients(last)), last + 1)
    _, keeping_bytes = needs(evaluated_with_gradients(-1))
    budget_bytes = keeping_bytes + 3 * (512 << 10)
    # when: the last step is checked, or one without hooks
    with pytest.warns(RuntimeWarning, match="the rest of the step is swapped whole"):
        within, room = train_within(evaluated_with_gradients(last), last + 1, budget_bytes)
    # then: its first forward was kept, and each of the others has left
    assert_equal(within, outcome)
    assert {step.mode for step in room.steps[1:]} == {"keep"}
    assert [step.mismatches for step in room.steps] == [0] * last + [1]
    assert room.steps[-1].swapped_out_bytes >= 4 * 4 * (512 << 10)
    assert run_of(room).over_bytes == 0


@pytest.mark.parametrize("calls", [1, 3])
def test_a_training_that_nearly_fills_its_budget_runs_without_hooks(calls: int) -> None:
    def setup() -> Training:
        model = mlp(256)
        optimizer = torch.optim.SGD(model.parameters())
        return by_loss(lambda _: torch.stack([mean_square(model(each)) for each in rows]).sum(), model, optimizer)

    rows = torch.linspace(-1, 1, calls * 512 * 256).view(calls, 512, 256)
    _, keeping_bytes = needs(setup)

    _, room = train_within(setup, SEEN + 5, keeping_bytes + (1 << 20))

    # then: a second step was recorded, as it is near to the budget; its module is called as often as in those before
    assert checked(room) == [True] * (SEEN + 1) + [False] * 4
    assert sum(step.mismatches for step in room.steps) == 0


def test_what_is_saved_before_the_first_call_of_a_module_is_checked() -> None:
    def forward(model: nn.Module, x: Tensor, _: int) -> Tensor:
        scale = torch.ones_like(x, requires_grad=True)
        return model(x * scale.exp())

    room = in_plenty(with_forward(forward), steps=SEEN + 4)

    assert checked(room) == [True] * (SEEN + 4)


def test_a_module_that_another_thread_calls_is_no_step_and_leaves_the_hooks_of_this_one_alone() -> None:
    training = ordinary(mlp(), INPUT)
    with er.within(PLENTY, min_size=MIN_SIZE_BYTES) as room:
        for number in range(SEEN):
            training.step(number)
        other = threading.Thread(target=lambda: mean_square(training.modules[0](INPUT)).backward())
        other.start()
        other.join()
        ours = top_hooks()
        training.step(SEEN)

    assert ours is not None
    assert checked(room) == [True] * SEEN + [False]


def test_a_step_without_hooks_that_asks_the_allocator_for_other_bytes_is_followed_by_checked_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given an allocator that was asked for 100 bytes in each step, and once for 130: counted from when torch started
    per_step = [100] * (SEEN + 1) + [130] + [100] * 8
    asked_bytes = iter([told for each in per_step[1:] for told in (7, 7 + each)])
    monkeypatch.setattr(RamResidence, "so_far", lambda *_: SoFar(next(asked_bytes), 0))

    room = in_plenty(lambda: ordinary(mlp(), INPUT), steps=len(per_step))

    # then the one after it, and two more, are checked
    assert checked(room) == [True] * SEEN + [False] * 2 + [True] * SURE + [False] * 5
    assert sum(step.mismatches for step in room.steps) == 0


def test_a_step_without_hooks_that_goes_above_the_budget_is_said_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # given 3 MiB above the budget in the second step without hooks; later ones do not go higher
    beyond_bytes = iter([0] * 2 * SEEN + [0, 3 << 20] + [3 << 20] * 8)
    monkeypatch.setattr(RamResidence, "so_far", lambda *_: SoFar(0, next(beyond_bytes)))

    with pytest.warns(RuntimeWarning, match=r"held 3\.0 MiB more than the budget allows"):
        room = in_plenty(lambda: ordinary(mlp(), INPUT), steps=SEEN + 4)

    assert [step.mismatches for step in room.steps] == [0] * (SEEN + 1) + [1, 0, 0]


def test_resident_memory_that_grows_by_code_is_no_steps_excess() -> None:
    mib = 1 << 20
    # given a process that was 15 MiB beyond before the step, as its libraries were loaded after it was measured
    before = SoFar(0, 15 * mib, 350 * mib)
    assert SoFar(0, 18 * mib, 353 * mib).excess_since(before) == 0
    # then what a step adds to that is its own
    assert SoFar(0, 115 * mib, 450 * mib).excess_since(before) == 100 * mib
    # and where bytes are counted, each counts
    assert SoFar(0, mib).excess_since(SoFar(0, 0)) == mib


def test_what_resident_memory_is_beyond_a_budget_counts_neither_libraries_nor_freed_blocks_that_stay() -> None:
    residence = RamResidence()
    outside_bytes = residence.measure(lambda: 0)
    most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # 8/8 of a budget and 1/8 for freed blocks is 9/8 of it
    held_bytes = most_bytes - outside_bytes
    assert residence.so_far(held_bytes).beyond_bytes == 0
    assert residence.so_far(0).beyond_bytes >= held_bytes
    assert residence.so_far(8 << 20).beyond_bytes >= held_bytes - (9 << 20)


@pytest.mark.parametrize("given", [(object(),), ([object()],), ({"x": object()},)])
def test_an_argument_that_may_be_anything_leaves_a_step_untold(given: Any) -> None:
    assert details(given, {}) is None
    assert details((), {"x": given}) is None
    assert details((), None) is None


def test_details_are_of_shapes_and_plain_values_but_not_of_floats() -> None:
    one = details((INPUT, [INPUT, 3]), {"scale": 0.5, "mode": "sum", "mask": None})

    assert one == details((INPUT * 2, [INPUT, 3]), {"scale": 0.25, "mode": "sum", "mask": None})
    for other in (
        details((INPUT[:2], [INPUT, 3]), {"scale": 0.5, "mode": "sum", "mask": None}),
        details((INPUT, [INPUT, 4]), {"scale": 0.5, "mode": "sum", "mask": None}),
        details((INPUT, [INPUT, 3]), {"scale": 0.5, "mode": "mean", "mask": None}),
        details((INPUT, [INPUT, 3]), {"scale": 0.5, "mode": "sum", "mask": INPUT}),
    ):
        assert one != other
    with torch.autocast("cpu"):
        assert one != details((INPUT, [INPUT, 3]), {"scale": 0.5, "mode": "sum", "mask": None})
