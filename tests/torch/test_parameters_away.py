"""Parameters are away whenever no op uses them: the same numbers, whatever reads them in between."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, parametrizations
from torch.utils.checkpoint import checkpoint

import elbowroom as er
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from elbowroom.run.room import Room
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Outcome,
    Setup,
    Training,
    assert_equal,
    by_loss,
    finish,
    mean_square,
    mlp,
    moved_as_planned,
    needs,
    ordinary,
    seeded,
    train,
)
from tests.torch.test_states_away import MAKES, layers

STEPS = 6
pytestmark = pytest.mark.filterwarnings("ignore:elbowroom. a parameter of:RuntimeWarning")
PARAMETERS: tuple[Means, ...] = ("swap", "state", "gradient", "parameter")


@pytest.fixture
def _all_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans move everything, and not saved storages alone where these are enough."""
    monkeypatch.setattr(run_budget, "_ways", lambda request: [request])


def all_away(setup: Setup, steps: int = STEPS, **options: Any) -> tuple[Outcome, Room]:
    """Every storage that may move is away until an op uses it."""
    options.setdefault("allow", PARAMETERS)
    gc.collect()
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", **options) as room:
        outcome = finish(seeded(setup), steps)
    return outcome, room


def least_of_run(setup: Setup, allow: tuple[Means, ...] = PARAMETERS) -> int:
    """The least budget, as a run names it that is given far too little."""
    gc.collect()
    with pytest.raises(er.Infeasible) as caught, er.within(1000, min_size=MIN_SIZE_BYTES, allow=allow):
        finish(seeded(setup), STEPS)
    return caught.value.least_feasible_bytes


@pytest.mark.parametrize("name", MAKES)
def test_steps_are_bit_equal_and_peak_where_simulated(name: str) -> None:
    def setup() -> Training:
        return layers(MAKES[name])

    plain = train(setup, STEPS)
    least, without = least_of_run(setup), least_of_run(setup, ("swap", "state", "gradient"))
    budget = int(1.03 * least)
    # eight layers of 36 KiB, of which two are there at once
    assert least < without - 6 * 96 * 96 * 4

    # when
    gc.collect()
    with er.within(budget, min_size=MIN_SIZE_BYTES, allow=PARAMETERS, measure=True) as room:
        inside = finish(seeded(setup), STEPS)

    # then
    assert_equal(inside, plain)
    assert moved_as_planned(room) >= {"optimizer_state", "gradient", "parameter"}
    assert room.measured is not None
    assert room.simulated is not None
    simulated, measured = room.simulated.peak_allocated_bytes, room.measured.peak_allocated_bytes
    assert measured <= budget
    assert abs(simulated - measured) <= 0.01 * measured


def test_parameters_alone_leave_where_the_optimizer_has_no_states() -> None:
    # given an optimizer whose parts have no states, and so many samples that backward is the peak
    def setup() -> Training:
        model = mlp(96, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, foreach=True)
        return ordinary(model, torch.randn(2048, 96), optimizer=optimizer)

    plain = train(setup, STEPS)
    all_there = needs(setup)[1]
    # when what leaves is parameters only, below that peak by three of their eight layers of 36 KiB
    with er.within(all_there - 3 * 96 * 96 * 4, min_size=MIN_SIZE_BYTES, allow=("state", "parameter")) as room:
        inside = finish(seeded(setup), STEPS)
    # then the plan is followed, by the operators of the optimizer's step too
    assert_equal(inside, plain)
    assert moved_as_planned(room) == {"parameter"}
    assert [(step.mode, step.mismatches) for step in room.steps[-2:]] == [("plan", 0)] * 2


def test_convolutions_whose_weights_are_away_are_recorded_with_their_operations() -> None:
    # given three convolutions, and a batch of another size once their weights are away
    def setup() -> Training:
        model = nn.Sequential(*(nn.Conv2d(24, 24, 3, padding=1) for _ in range(3)))
        batches = [torch.randn(1 if number < STEPS - 2 else 2, 24, 8, 8) for number in range(STEPS)]
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        return by_loss(lambda number: mean_square(model(batches[number])), model, optimizer)

    plain = train(setup, STEPS)
    # when its step is observed
    inside, room = all_away(setup)
    # then
    assert_equal(inside, plain)
    assert room.trace is not None
    counted = [op.flops for op in room.trace.ops if op.name == "aten.convolution_backward"]
    # two products of 2 x 24 x 8 x 8 results by 24 x 3 x 3, and one in the first layer, whose input needs no gradient
    once = 2 * (2 * 24 * 8 * 8) * (24 * 3 * 3)
    assert counted[-3:] == [2 * once, 2 * once, once]


class Block(nn.Module):
    """Attention and an MLP, without dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Language(nn.Module):
    """A language model whose embedding is its head too, used by a function and not by its module."""

    def __init__(self, width: int = 32, words: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.linear(x, self.embed.weight)


def language(make: Callable[[nn.Module], Any] | None = None) -> Training:
    model = Language()
    tokens = torch.randint(0, 64, (4, 9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(_: int) -> Tensor:
        found = model(tokens[:, :-1])
        return functional.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten())

    return by_loss(loss, model, optimizer)


class LowRank(nn.Module):
    """A frozen layer with a trained update of rank 4, as LoRA has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapters() -> Training:
    return ordinary(nn.Sequential(*(LowRank(96) for _ in range(6))), torch.randn(4, 96))


def frozen_encoder() -> Training:
    encoder, head = mlp(96, 6).requires_grad_(False), mlp(96, 2)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-2, momentum=0.9)
    inputs = torch.randn(4, 96)
    training = by_loss(lambda _: mean_square(head(encoder(inputs))), head, optimizer)
    return Training(training.step, [encoder, head], [optimizer])


def shared_modules() -> Training:
    one, other = nn.Linear(96, 96), nn.Linear(96, 96)
    return ordinary(nn.Sequential(one, nn.ReLU(), other, nn.ReLU(), one, nn.Tanh(), other), torch.randn(4, 96))


def accumulated() -> Training:
    """Three micro-batches to a step, and gradients clipped by their norm."""
    model, inputs = mlp(96, 6), torch.randn(3, 4, 96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(_: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        losses = [mean_square(model(micro)) / 3 for micro in inputs]
        for loss in losses:
            loss.backward()
        norm = clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        return torch.stack([*losses, norm]).detach()

    return Training(step, [model], [optimizer])


def checkpointed() -> Training:
    model, inputs = mlp(96, 6), torch.randn(4, 96, requires_grad=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)

    def loss(_: int) -> Tensor:
        x: Any = inputs
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=False)
        return mean_square(x)

    return by_loss(loss, model, optimizer)


def mixed_precision() -> Training:
    model, inputs = mlp(96, 6), torch.randn(4, 96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(_: int) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return mean_square(model(inputs))

    return by_loss(loss, model, optimizer)


def normed_weights() -> Training:
    first = parametrizations.weight_norm(nn.Linear(96, 96))
    second = parametrizations.spectral_norm(nn.Linear(96, 96))
    return ordinary(nn.Sequential(first, nn.ReLU(), second), torch.randn(4, 96))


def convolutions() -> Training:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 8 * 8, 32),
    )  # fmt: skip
    return ordinary(model, torch.randn(4, 3, 12, 12))


def recurrent() -> Training:
    model = nn.LSTM(32, 48, num_layers=2, batch_first=True)
    return ordinary(model, torch.randn(4, 7, 32), loss=lambda found: mean_square(found[0]))


def averaged() -> Training:
    """A moving average of the weights is updated between steps, and evaluated."""
    model, inputs = mlp(96, 4), torch.randn(4, 96)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        with torch.no_grad():
            aim = average(inputs)
        loss = mean_square(model(inputs) - aim - 1)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.1)
                mine.data.add_(1e-3)
            return torch.stack([loss.detach(), mean_square(average(inputs))])

    return Training(step, [model, average], [optimizer])


def two_optimizers() -> Training:
    first, second, inputs = mlp(96, 3), mlp(96, 3), torch.randn(4, 96)
    optimizers = [torch.optim.AdamW(first.parameters(), lr=1e-2), torch.optim.SGD(second.parameters(), lr=1e-2)]

    def step(_: int) -> Tensor:
        for each in optimizers:
            each.zero_grad()
        loss = mean_square(second(first(inputs)))
        loss.backward()
        for each in optimizers:
            each.step()
        return loss.detach()

    return Training(step, [first, second], optimizers)


def transformed() -> Training:
    """Gradients by torch.func, and a step in which each sample has its own."""
    model, inputs = mlp(96, 3), torch.randn(4, 96)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        loss = mean_square(model(inputs))
        loss.backward()
        weights: Any = dict(model.named_parameters())

        def of_one(given: Any, x: Tensor) -> Tensor:
            return mean_square(torch.func.functional_call(model, given, (x[None],)))

        each = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, 0))(weights, inputs)
        optimizer.step()
        return torch.stack([loss.detach(), *(value.detach().square().sum() for value in each.values())])

    return Training(step, [model], [optimizer])


ALL: dict[str, Setup] = {
    each.__name__: each
    for each in (
        language, adapters, frozen_encoder, shared_modules, accumulated, checkpointed, mixed_precision, normed_weights,
        convolutions, recurrent, averaged, two_optimizers, transformed,
    )
}  # fmt: skip


@pytest.mark.usefixtures("_all_away")
@pytest.mark.parametrize("name", ALL)
def test_every_parameter_may_be_away_whenever_it_idles(name: str) -> None:
    setup = ALL[name]
    plain = train(setup, STEPS)

    # when
    inside, room = all_away(setup)

    # then
    assert_equal(inside, plain)
    assert "parameter" in moved_as_planned(room)


def storages_without_bytes(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.detach().untyped_storage().nbytes() == 0]


READS: dict[str, Callable[[nn.Module], Any]] = {
    "sum": lambda model: torch.stack([p.detach().sum() for p in model.parameters()]),
    "norm": lambda model: torch._foreach_norm(list(model.parameters()))[0].detach(),  # pyright: ignore[reportPrivateImportUsage]
    "list": lambda model: torch.tensor([p.detach().flatten()[:8].tolist() for p in model.parameters()]),
    "whole list": lambda model: torch.tensor(model[0].weight.tolist()),  # pyright: ignore[reportIndexIssue]
    "numpy": lambda model: torch.tensor(model[2].weight.detach().numpy().copy()),  # pyright: ignore[reportIndexIssue]
    "storage": lambda model: torch.tensor([model[2].weight.untyped_storage()[i] for i in range(8)]),  # pyright: ignore[reportIndexIssue]
    "state dict": lambda model: torch.stack([v.clone().sum() for v in model.state_dict().values()]),
    "deep copy": lambda model: torch.stack([p.detach().sum() for p in copy.deepcopy(model).parameters()]),
    "saved": lambda model: torch.stack([v.sum() for v in loaded(model).values()]),
    "text": lambda model: torch.tensor([len(str(model[4].weight))]),  # pyright: ignore[reportIndexIssue]
    "vector": lambda model: nn.utils.parameters_to_vector(model.parameters()).detach(),
}


def loaded(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.usefixtures("_all_away")
@pytest.mark.parametrize("where", ["between steps", "before the optimizer"])
@pytest.mark.parametrize("name", READS)
def test_what_is_read_of_parameters_is_right(name: str, where: str) -> None:
    def setup() -> Training:
        model, inputs = mlp(96, 4), torch.randn(4, 96)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = mean_square(model(inputs))
            loss.backward()
            seen = READS[name](model) if where != "between steps" else None
            optimizer.step()
            seen = READS[name](model) if seen is None else seen
            return torch.cat([loss.detach().double().flatten(), seen.double().flatten()])

        return Training(step, [model], [optimizer])

    plain = train(setup, STEPS)
    gc.collect()
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=PARAMETERS) as room:
        inside = finish(seeded(setup), STEPS)
    assert_equal(inside, plain)
    assert room.steps[-1].mode == "plan"


@pytest.mark.usefixtures("_all_away")
def test_a_state_dict_that_is_kept_follows_the_parameters_as_ever() -> None:
    kept: list[dict[str, Tensor]] = []

    def setup() -> Training:
        training = layers(MAKES["Adam"])
        step = training.step

        def keeping(number: int) -> Tensor:
            found = step(number)
            if number == 2:
                kept[:] = [training.modules[0].state_dict()]
            return torch.stack([found, *([v.sum() for v in kept[0].values()] if number >= 2 else [])]).detach()

        return Training(keeping, training.modules, training.optimizers)

    plain = train(setup, STEPS)
    inside, _ = all_away(setup)
    assert_equal(inside, plain)


@pytest.mark.usefixtures("_all_away")
def test_frozen_parameters_are_written_once() -> None:
    inside, room = all_away(ALL["frozen_encoder"], allow=("swap", "parameter"))
    assert_equal(inside, train(ALL["frozen_encoder"], STEPS))
    assert "parameter" in moved_as_planned(room)
    # the two layers of the head leave three times, and the activations once; six frozen layers come back only
    assert room.steps[-1].swapped_out_bytes < 6 * 96 * 96 * 4 + 20_000
    assert room.steps[-1].swapped_back_bytes > 12 * 96 * 96 * 4


class Saved(torch.autograd.Function):
    """A product that saves its weight itself, after the operator that uses it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        found = x @ weight
        ctx.save_for_backward(x, weight)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight.t(), x.t() @ gradients[0]


@pytest.mark.usefixtures("_all_away")
def test_a_weight_that_is_saved_once_it_has_left_is_no_saved_storage() -> None:
    def setup() -> Training:
        model, inputs = mlp(96, 3), torch.randn(4, 96)
        weight = nn.Parameter(torch.randn(96, 96))
        model.register_parameter("own", weight)
        return ordinary(model, inputs, loss=lambda found: mean_square(Saved.apply(found, weight)))

    inside, room = all_away(setup)
    assert_equal(inside, train(setup, STEPS))
    assert "parameter" in moved_as_planned(room)


@pytest.mark.usefixtures("_all_away")
def test_parameters_are_away_between_steps_and_whole_after_the_run() -> None:
    setup = ALL["frozen_encoder"]
    gc.collect()
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=PARAMETERS):
        training = seeded(setup)
        for number in range(STEPS):
            training.step(number)
        sizes = [holder.nbytes() for holder in storages_of(training.modules[0])]
        assert sizes.count(0) == 6
    assert all(holder.nbytes() for holder in storages_of(training.modules[0]))
    assert "untyped_storage" not in vars(torch.Tensor)


def storages_of(model: nn.Module) -> list[torch.UntypedStorage]:
    """Their storages, without a word to the room."""
    from elbowroom.engine.storages import RAW_STORAGE

    return [RAW_STORAGE(p) for p in model.parameters()]


class Stop(Exception):
    pass


@pytest.mark.usefixtures("_all_away")
@pytest.mark.parametrize("where", ["forward", "backward", "optimizer"])
def test_an_exception_of_the_user_leaves_parameters_whole(where: str) -> None:
    def setup() -> Training:
        return layers(MAKES["SGD momentum"])

    plain = train(setup, 4)
    gc.collect()
    training = seeded(setup)
    model = training.modules[0]

    def stop(*_: Any) -> None:
        raise Stop

    def fail_in_the_last_step() -> None:
        with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=PARAMETERS):
            for number in range(4):
                training.step(number)
            if where == "forward":
                model[8].register_forward_pre_hook(stop)
            elif where == "backward":
                model[8].weight.register_hook(stop)
            else:
                training.optimizers[0].register_step_pre_hook(stop)
            training.step(4)

    # when
    with pytest.raises(Stop):
        fail_in_the_last_step()

    # then
    now = {f"0.{name}": value for name, value in model.state_dict().items()}
    assert all(torch.equal(value, plain.state[name]) for name, value in now.items())


@pytest.mark.usefixtures("_all_away")
@pytest.mark.filterwarnings("ignore:elbowroom. saved storage:RuntimeWarning")
def test_a_step_that_fails_and_is_skipped_changes_no_number() -> None:
    def setup() -> Training:
        model, inputs = mlp(96, 6), torch.randn(4, 96)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        fails: list[int] = []

        def stop(*_: Any) -> None:
            if fails:
                raise Stop

        model[6].register_forward_pre_hook(stop)

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            fails[:] = [1] if number == 4 else []
            try:
                loss = mean_square(model(inputs))
            except Stop:
                return torch.zeros(())
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(step, [model], [optimizer])

    plain = train(setup, 8)
    inside, _ = all_away(setup, 8)
    assert_equal(inside, plain)


@pytest.mark.usefixtures("_all_away")
def test_parameters_stay_by_default() -> None:
    inside, room = all_away(ALL["adapters"], allow=None)
    assert_equal(inside, train(ALL["adapters"], STEPS))
    assert "parameter" not in moved_as_planned(room)
    assert room.trace is not None
    assert not any(part.kind == "use" for part in room.trace.parts)


@pytest.mark.usefixtures("_all_away")
@pytest.mark.parametrize("when", ["before the run", "in its first step"])
@pytest.mark.parametrize("frozen", [False, True])
def test_an_array_of_numpy_goes_on_to_show_its_parameter(frozen: bool, when: str) -> None:
    training = seeded(ALL["frozen_encoder"])
    encoder, head = training.modules
    layer = (encoder if frozen else head)[0]
    arrays: list[Any] = []

    def look() -> None:
        arrays.append(layer.weight.numpy() if frozen else layer.weight.detach().numpy())

    gc.collect()
    if when == "before the run":
        look()
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=PARAMETERS) as room:
        for number in range(STEPS):
            training.step(number)
            if not arrays:
                look()
            # then it lies where the parameter lies, and has its bytes
            address = arrays[0].__array_interface__["data"][0]
            assert storages_of(layer)[0].data_ptr() == address
            assert (arrays[0] == layer.weight.detach().clone().numpy()).all()
    assert "parameter" in moved_as_planned(room)
