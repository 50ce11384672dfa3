"""Steps of several kinds in one room: each is observed and planned for once, and the numbers stay the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from elbowroom import Infeasible, within
from elbowroom.capture.recording.recorder import live_ram_bytes
from elbowroom.engine.residence import RamResidence, SoFar
from elbowroom.run.met_kinds import OBSERVED_AT_FIRST
from elbowroom.run.room import Room, run_of
from tests.torch.helpers import (
    Setup,
    Training,
    assert_equal,
    by_loss,
    mean_square,
    mlp,
    needs,
    same_within,
    seeded,
    tight_budget,
    train,
    train_within,
)
from tests.torch.words import Words

pytestmark = pytest.mark.long


def batches(rows: Sequence[int], call: Callable[[nn.Module, Tensor], Tensor] = lambda model, x: model(x)) -> Setup:
    """A training whose n-th batch has the n-th number of rows, in turn."""

    def setup() -> Training:
        model = Masked()
        optimizer = torch.optim.AdamW(model.parameters())

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            count = rows[number % len(rows)]
            loss = mean_square(call(model, torch.linspace(-1, 1, count * 64).view(count, 64)))
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])

    return setup


class Masked(nn.Module):
    """Takes its input by position or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, x: Tensor, mask: Tensor | None = None, flip: bool = False) -> Tensor:
        found = self.layers(x)
        if mask is not None:
            found = found * mask
        return found.flip(0).sin() if flip else found


def both(setup: Setup, largest: Setup, steps: int) -> Room:
    """Plain and within a budget that is tight for the largest kind of step; the numbers must be the same."""
    plain = train(setup, steps)
    inside, room = train_within(setup, steps, budget=tight_budget(largest))
    assert_equal(inside, plain)
    assert len(room.steps) == steps
    return room


def modes(room: Room) -> list[str]:
    return [step.mode for step in room.steps]


def observed(room: Room) -> int:
    return modes(room).count("observe")


def test_two_shapes_in_turn_are_observed_once_each() -> None:
    # given one shape that must be swapped, and one that must not
    room = both(batches([256, 64]), batches([256]), steps=10)

    assert modes(room)[4:] == ["plan", "keep"] * 3
    assert sum(step.mismatches for step in room.steps) == 0


def test_a_smaller_last_batch_of_every_epoch_is_observed_once() -> None:
    room = both(batches([256, 256, 256, 192]), batches([256]), steps=12)

    assert "observe" not in modes(room)[5:]
    assert observed(room) <= 3
    assert sum(step.mismatches for step in room.steps) == 0


class Scale(nn.Module):
    """A transform of one sample, as a data loader calls it in the training's own process."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


def test_a_transform_that_is_a_module_hides_no_smaller_last_batch() -> None:
    # given a step whose first call of a module sees one row, whatever the size of the batch
    scale = Scale()
    rows = batches([256, 256, 256, 192], lambda model, x: model(torch.stack([scale(row) for row in x])))

    room = both(rows, batches([256]), steps=12)

    # then the two sizes are two kinds of step, known by what the model is called with
    assert observed(room) <= 3
    assert sum(step.mismatches for step in room.steps) == 0
    assert {kind.inputs for kind in run_of(room).kinds} == {"Masked(256x64)", "Masked(192x64)"}


class Unregistered(nn.Module):
    """Has weights in a list, where a module does not look for parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [torch.linspace(-1, 1, 64 * 64).view(64, 64).requires_grad_() for _ in range(4)]

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = (x @ weight).tanh()
        return x


def test_steps_of_a_module_without_parameters_that_is_trained_begin_with_what_it_saves() -> None:
    def setup() -> Training:
        model = Unregistered()

        def loss(_: int) -> Tensor:
            return mean_square(model(torch.linspace(-1, 1, 256 * 64).view(256, 64)))

        return by_loss(loss, model, torch.optim.AdamW(model.weights))

    plain = train(setup, 8)
    inside, room = train_within(setup, 8, budget=tight_budget(setup))

    assert_equal(inside, plain)
    assert len(room.steps) == 8
    assert room.steps[-1].swapped_back_bytes > 0


def test_a_shape_that_comes_late_is_observed_then() -> None:
    room = both(batches([200] * 6 + [256] * 4), batches([256]), steps=10)

    assert modes(room)[6] == "observe"
    assert modes(room)[7:] == ["plan"] * 3
    assert room.steps[-1].swapped_back_bytes > 0


# Steps of nearby sizes


@pytest.mark.parametrize("call", [lambda model, x: model(x), lambda model, x: model(x=x)], ids=["place", "name"])
def test_somewhat_smaller_steps_follow_the_plan_of_a_larger_one(call: Callable[[nn.Module, Tensor], Tensor]) -> None:
    # given 256 rows in the first three steps, and then never the same number: 205 are 0.8 of 256
    rows = [256, 256, 256, *range(255, 205, -7)]
    room = both(batches(rows, call), batches([256]), steps=len(rows))

    assert modes(room) == ["observe"] + ["plan"] * (len(rows) - 1)
    assert sum(step.mismatches for step in room.steps) == 0
    # then each moves what is its own: of 255 rows less than of 256, the same number of storages
    moved = [step.swapped_out_bytes for step in room.steps]
    assert moved[3:] == [moved[2] * count // 256 for count in rows[3:]]


def test_the_least_of_the_larger_ones_is_followed() -> None:
    # given 256 rows, of which half would be swapped, and 225, of which less would be; both may be followed with 210
    room = both(batches([256, 225, 256, 225, 210, 210]), batches([256]), steps=6)

    assert modes(room)[4:] == ["plan", "plan"]
    assert room.steps[4].swapped_out_bytes == room.steps[3].swapped_out_bytes * 210 // 225


def texts(lengths: Sequence[int]) -> Training:
    """A language model whose n-th batch has the n-th length."""
    model = Words(32, 32, 64, blocks=2, dropout=0.1, is_causal=True)

    def loss(number: int) -> Tensor:
        tokens = torch.arange(8 * lengths[number]).view(8, -1) % 32
        return nn.functional.cross_entropy(model(tokens), tokens.flatten())

    return by_loss(loss, model, torch.optim.AdamW(model.parameters()))


def test_texts_of_many_lengths_are_observed_a_few_times_only() -> None:
    # given 40 texts of 33 to 96 places
    lengths = [33 + 37 * number % 64 for number in range(40)]
    assert len(set(lengths)) == 40

    room = same_within(lambda: texts(lengths), 40, lambda _: tight_budget(lambda: texts([96] * 3)))

    # then two lengths show what a third one needs
    assert observed(room) <= 4
    assert sum(step.mismatches for step in room.steps) == 0
    assert run_of(room).over_bytes == 0


# Steps of new sizes


def test_batches_that_grow_are_planned_before_their_first_step() -> None:
    # given batches that are larger each time, so that no known kind is near
    rows = list(range(100, 340, 20))
    room = both(batches(rows), batches([rows[-1]]), steps=len(rows))

    assert modes(room)[2:] == ["keep" if mode == "keep" else "plan" for mode in modes(room)[2:]]
    assert modes(room)[-1] == "plan"
    assert sum(step.mismatches for step in room.steps) == 0
    run = run_of(room)
    assert run.kinds.measured_peak_bytes <= run.budget_bytes
    assert run.kinds.fit(run.budget_bytes)


def test_what_a_larger_batch_would_take_with_everything_kept_is_known_although_none_was_observed() -> None:
    rows = list(range(100, 340, 20))
    _, most_bytes = needs(batches([rows[-1]]))

    room = both(batches(rows), batches([rows[-1]]), steps=len(rows))

    assert most_bytes * 0.99 <= run_of(room).kinds.keep_all_bytes <= most_bytes * 1.5


def deepening(depths: Sequence[int]) -> Setup:
    """A training whose n-th step calls its layer the n-th number of times: no step is another one's, scaled."""

    def setup() -> Training:
        layer = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            found = torch.linspace(-1, 1, 64 * (64 + number)).view(-1, 64)
            for _ in range(depths[number]):
                found = layer(found)
            loss = mean_square(found)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(step, [layer], [optimizer])

    return setup


DEPTHS = [4 + 7 * number % 24 for number in range(24)]


def test_steps_of_new_forms_are_recorded_now_and_then_only_and_carried_out_frugally_otherwise() -> None:
    room = same_within(deepening(DEPTHS), 24, lambda _: tight_budget(deepening([30] * 3), 0.5))

    assert modes(room)[:OBSERVED_AT_FIRST] == ["observe"] * OBSERVED_AT_FIRST
    assert set(modes(room)[OBSERVED_AT_FIRST:20]) == {"frugal"}
    assert all(step.swapped_out_bytes for step in room.steps)
    assert sum(step.mismatches for step in room.steps) == 0
    # then nobody says that such a training fits: most steps have no plan
    assert "it fits" not in room.summary()
    # and the summary says why: 8 are recorded, 12 are not, and then one in four is
    frugal = modes(room).count("frugal")
    assert frugal >= 12
    assert f"{frugal} of the last 24 steps followed no plan: inputs had new sizes in most of them" in room.summary()


def test_steps_of_new_forms_are_not_swapped_if_there_is_plenty_of_room() -> None:
    room = same_within(deepening(DEPTHS), 24, lambda _: live_ram_bytes() + (1 << 30))

    frugal = [step for step in room.steps if step.mode == "frugal"]
    assert len(frugal) >= 12
    assert sum(step.swapped_out_bytes for step in frugal) == 0
    assert "had no plan" in room.summary()


def test_a_step_without_a_plan_that_comes_to_hold_more_than_the_budget_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given steps without a plan, of which the tenth has a batch of 8 MiB and leaves 1 MiB with each call
    monkeypatch.setattr("elbowroom.run.unrecorded.CODE_BYTES", 1 << 20)
    layer = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    left: list[Tensor] = []

    def step(number: int) -> None:
        found = torch.ones(64 + number, 64)
        for _ in range(2 + number):
            found = layer(found)
            left.extend([torch.ones(1 << 18)] * (number == 9))
        if number == 9:
            left.extend(torch.ones(1 << 18) for _ in range(16))
            found = layer(found)
        mean_square(found).backward()
        optimizer.step()

    def run() -> None:
        with within(live_ram_bytes() + (8 << 20)):
            for number in range(10):
                step(number)

    with pytest.raises(Infeasible, match="which is new, holds") as refused:
        run()

    assert len(left) == 27
    assert refused.value.least_feasible_bytes > refused.value.budget_bytes


def test_a_nearby_step_that_turns_out_otherwise_is_said_and_observed_when_it_comes_again() -> None:
    # given a smaller batch that saves more
    def call(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sin().exp() if len(x) == 240 else model(x)

    with said_once():
        room = both(batches([256, 256, 240, 240, 256, 240], call), batches([256]), steps=6)

    assert modes(room) == ["observe", "plan", "plan", "observe", "plan", "plan"]
    assert [step.mismatches for step in room.steps] == [0, 0, 1, 0, 0, 0]


def test_a_nearby_step_that_saves_less_is_observed_when_it_comes_again() -> None:
    setup = batches([256, 256, 240, 240, 240], lambda model, x: model(x, flip=len(x) == 256))
    room = both(setup, batches([256]), steps=5)

    assert modes(room)[2:] == ["plan", "observe", "plan"]


def test_a_nearby_step_that_holds_more_than_the_budget_is_said_and_observed_when_it_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a device that says it went 3 MiB beyond, in the second half of the first such step
    asked = iter([SoFar(0, 0), SoFar(0, 3 << 20)])
    monkeypatch.setattr(RamResidence, "so_far", lambda *_: next(asked))

    with pytest.warns(RuntimeWarning, match="held 3.0 MiB more than the budget allows"):
        room = both(batches([256, 256, 240, 240, 240]), batches([256]), steps=5)

    assert modes(room)[2:] == ["plan", "observe", "plan"]
    assert [step.mismatches for step in room.steps] == [0, 0, 1, 0, 0]


def test_a_plan_that_recomputes_is_not_followed_by_other_sizes() -> None:
    plain = batches([256] * 8 + [240] * 2)
    room = same_within(plain, 10, lambda setup: tight_budget(batches([256])), allow=["recompute"])

    assert room.steps[7].recomputed_bytes > 0
    assert modes(room)[8] == "observe"


@contextmanager
def said_once() -> Iterator[None]:
    """A step that is not what its plan expects is said by one warning, however often it happens."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    ours = [str(warning.message) for warning in said if "elbowroom: saved storage" in str(warning.message)]
    assert len(ours) <= 1, ours


def test_shapes_of_keyword_arguments_are_told_apart() -> None:
    room = both(batches([256, 128], lambda model, x: model(x=x)), batches([256]), steps=12)

    assert "observe" not in modes(room)[-4:]
    assert sum(step.mismatches for step in room.steps) == 0


def test_a_flag_that_changes_the_step_is_told_apart_as_the_step_runs() -> None:
    flags = iter([False, False, True] * 10)
    setup = batches([256], lambda model, x: model(x, flip=next(flags)))

    def fresh() -> Training:
        nonlocal flags
        flags = iter([False, False, True] * 10)
        return setup()

    with said_once():
        room = both(fresh, batches([256]), steps=12)

    assert "observe" not in modes(room)[-3:]
    assert [step.mismatches for step in room.steps[-3:]] == [0] * 3


def test_a_mask_by_keyword_that_grows_gives_the_same_numbers() -> None:
    # given an argument whose shape never comes twice
    widths = iter(range(1, 100))
    setup = batches([256], lambda model, x: model(x, mask=torch.ones(256, 64)[: next(widths) + 2].mean(0)))
    room = both(setup, batches([256]), steps=6)

    assert modes(room)[-1] == "plan"


def test_accumulation_over_a_changing_number_of_batches_gives_the_same_numbers() -> None:
    def setup() -> Training:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters())

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            losses = []
            for count in range(1 + number % 3):
                loss = mean_square(model(torch.full((192, 64), 0.1 * count + 0.1)))
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            return torch.stack(losses).sum()

        return Training(step, [model], [optimizer])

    plain = train(setup, 12)
    with said_once():
        inside, room = train_within(setup, 12)

    assert_equal(inside, plain)
    assert len(room.steps) == 12


def test_steps_whose_optimizer_is_skipped_now_and_then_give_the_same_numbers() -> None:
    # as a GradScaler does where a gradient overflowed
    def setup() -> Training:
        model, batch = mlp(), torch.randn(192, 64)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(batch))
            loss.backward()
            if number % 4 != 2:
                optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])

    plain = train(setup, 10)
    with said_once():
        inside, _ = train_within(setup, 10)

    assert_equal(inside, plain)


def test_training_and_a_validation_loss_with_gradients_give_the_same_numbers() -> None:
    # a validation that forgets no_grad: its graph is dropped without a backward pass
    def setup() -> Training:
        model, batch = nn.Sequential(mlp(), nn.Dropout(0.2), nn.Sigmoid()), torch.randn(192, 64)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(batch))
            loss.backward()
            optimizer.step()
            model.eval()
            seen = mean_square(model(batch[:100]))
            model.train()
            return torch.stack([loss.detach(), seen.detach()])

        return Training(step, [model], [optimizer])

    plain = train(setup, 6)
    inside, room = train_within(setup, 6)

    assert_equal(inside, plain)
    assert run_of(room)._executor.tier.held_bytes == 0


@pytest.mark.parametrize("late", [False, True], ids=["at the start", "after a step"])
def test_a_model_that_is_rebuilt_trains_to_the_same_numbers(late: bool) -> None:
    # given a model that grows by a layer
    def setup() -> Training:
        model, batch = mlp(), torch.randn(192, 64)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(number: int) -> Tensor:
            if number == int(late):
                model.append(nn.Linear(64, 64))
                optimizer.add_param_group({"params": model[-1].parameters()})
            optimizer.zero_grad()
            loss = mean_square(model(batch))
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])

    plain = train(setup, 6)
    with said_once():
        inside, room = train_within(setup, 6)

    assert_equal(inside, plain)
    assert [step.mismatches for step in room.steps[-2:]] == [0, 0]


def test_other_shapes_come_after_steps_for_which_no_plan_is_made_any_more() -> None:
    # given steps that had a plan, which does not hold them after all
    setup = batches([3000, 3000, 3000, 3000, 2800, 2900])
    plain = train(setup, 6)
    budget = tight_budget(batches([3000]))
    training = seeded(setup)
    with within(budget) as room:
        for number in range(4):
            training.step(number)
        run = run_of(room)
        with pytest.warns(RuntimeWarning, match="no plan that was simulated holds steps of Masked"):
            run._learner._goes_unplanned(run._key, "no plan holds steps")
        # when steps of other shapes come
        losses = [training.step(number) for number in (4, 5)]
    # then they are trained as ever
    assert [step.mode for step in room.steps][3:] == ["plan", "observe", "observe"]
    assert [loss.item() for loss in losses] == [loss.item() for loss in plain.losses[4:]]


@pytest.mark.parametrize(
    ("lacked", "helps"),
    [
        ((0, 0, 0), r"\. A larger budget makes it faster$"),
        # most in the second step: 7 MiB
        (
            (5, 7, 6),
            r"\. With a budget of at least 7\.0 MiB \(7340032 bytes\) a step may be observed, and then planned$",
        ),
    ],
)
def test_steps_in_each_of_which_memory_runs_out_while_they_are_observed_go_on_without_a_plan(
    lacked: tuple[int, ...], helps: str
) -> None:
    # given steps whose records are void, as an op that found no memory ran twice
    setup = batches([3000] * 6)
    plain = train(setup, 6)
    training = seeded(setup)
    with within(tight_budget(setup)) as room:
        run = run_of(room)

        def spoil(*_: object) -> None:
            run._void = run._recorder is not None
            run._lacked_bytes = dict(enumerate(lacked)).get(len(room.steps), 0) << 20

        training.modules[0].register_forward_hook(spoil)
        # when they go on
        with pytest.warns(RuntimeWarning, match=f"memory ran out within .* in each observed step of Masked.*{helps}"):
            losses = [training.step(number) for number in range(6)]
    # then that is said, and no further step is recorded
    assert [step.mode for step in room.steps] == ["observe"] * 3 + ["frugal"] * 3
    assert [loss.item() for loss in losses] == [loss.item() for loss in plain.losses]
