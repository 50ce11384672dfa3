"""Trained weights that lie on a file leave, and nothing that shares their bytes sees old ones."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Outcome,
    Training,
    assert_equal,
    finish,
    mlp,
    moved_as_planned,
    ordinary,
    seeded,
    train,
)

STEPS, WIDTH, DEPTH = 5, 96, 6
BYTES = WIDTH * WIDTH * 4
EVERYTHING: tuple[Means, ...] = ("swap", "state", "gradient", "parameter")
Weights = dict[str, Tensor]
kept = pytest.mark.filterwarnings("ignore:elbowroom. a parameter of .* lies on a file:RuntimeWarning")


@pytest.fixture(autouse=True)
def _all_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans move everything, and not saved storages alone where these are enough."""
    monkeypatch.setattr(run_budget, "_ways", lambda asked: [asked])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the weights of a perceptron, one after the other."""
    torch.manual_seed(3)
    with (tmp_path / "weights").open("wb") as file:
        for value in mlp(WIDTH, DEPTH).state_dict().values():
            file.write(value.numpy().tobytes())
    return tmp_path / "weights"


def spans() -> Iterator[tuple[str, Tensor, int]]:
    """The names and shapes of the perceptron's parameters, and where each begins in the file."""
    with torch.device("meta"):
        shapes = mlp(WIDTH, DEPTH).state_dict()
    begin = 0
    for name, value in shapes.items():
        yield name, value, begin
        begin += value.nbytes


def whole_file(path: Path, *, shared: bool = False) -> Any:
    return torch.UntypedStorage.from_file(str(path), shared, path.stat().st_size)


def on_storage(storage: Any, shape: Tensor, first: int = 0) -> Tensor:
    return torch.empty(0).set_(storage, first // 4, shape.shape, shape.stride())


def sliced(path: Path) -> Weights:
    """As safetensors does it: each tensor has a slice of one storage, over the whole file."""
    whole = whole_file(path)
    return {name: on_storage(whole[begin : begin + shape.nbytes], shape) for name, shape, begin in spans()}


def on_one_storage(path: Path) -> Weights:
    whole = whole_file(path)
    return {name: on_storage(whole, shape, begin) for name, shape, begin in spans()}


def loaded(path: Path) -> Weights:
    saved = path.with_suffix(".pt")
    torch.save({name: value.clone() for name, value in sliced(path).items()}, saved)
    return torch.load(saved, mmap=True)


def model_on(weights: Weights) -> nn.Module:
    with torch.device("meta"):
        model = mlp(WIDTH, DEPTH)
    model.load_state_dict(weights, assign=True)
    return model


def training(read: Callable[[Path], Weights], path: Path) -> Training:
    return ordinary(model_on(read(path)), torch.randn(4, WIDTH))


def inside(run: Training) -> tuple[Outcome, Any]:
    """A training that was made before the room."""
    gc.collect()
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=EVERYTHING) as room:
        outcome = finish(run, STEPS)
    return outcome, room


def large(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.nbytes >= MIN_SIZE_BYTES]


@pytest.mark.parametrize("read", [sliced, on_one_storage, loaded])
def test_trained_weights_of_a_file_are_away_whenever_they_idle(read: Callable[[Path], Weights], path: Path) -> None:
    plain = train(partial(training, read, path), STEPS)
    run = seeded(partial(training, read, path))
    (model,) = run.modules
    before = list(model.parameters())
    # when
    found, room = inside(run)
    # then
    assert_equal(found, plain)
    assert "parameter" in moved_as_planned(room)
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
    # and each of the six layers had a storage to itself, from the first step on
    assert room.trace is not None
    sizes = [each.size_bytes for each in room.trace.storages if each.category == "parameter"]
    assert sizes.count(BYTES) == DEPTH
    assert max(sizes) == BYTES
    assert all(RAW_STORAGE(each).nbytes() == BYTES for each in large(model))


def test_all_leave_before_the_first_step_where_they_are_placed(path: Path) -> None:
    model = model_on(sliced(path))
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, allow=EVERYTHING) as room:
        room.place(model)
        assert [RAW_STORAGE(each).nbytes() for each in large(model)] == [0] * DEPTH
    weights = sliced(path)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_the_first_step_holds_no_more_than_one_operator_and_one_part_need(path: Path) -> None:
    """A file of 216 KiB of weights: with gradients and two states a plain step holds 864 KiB."""
    run = seeded(partial(training, sliced, path))
    gc.collect()
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=EVERYTHING) as room:
        run.step(0)
        away = [RAW_STORAGE(each).nbytes() for each in large(run.modules[0])]
    # the operator of the last part is the last that used any
    assert away.count(0) == DEPTH - 1
    assert len(room.steps) == 1


def test_tied_weights_and_such_that_share_bytes_stay_so(path: Path) -> None:
    def tied() -> Training:
        model: Any = model_on(sliced(path))
        model[2].weight = model[0].weight  # one parameter in two places
        model[6].weight = nn.Parameter(model[4].weight.data)  # two on the same bytes
        model[10].weight = nn.Parameter(model[8].weight.data.t())  # and one turned round
        return ordinary(model, torch.randn(4, WIDTH))

    plain = train(tied, STEPS)
    run = seeded(tied)
    found, room = inside(run)
    assert_equal(found, plain)
    assert "parameter" in moved_as_planned(room)
    model: Any = run.modules[0]
    assert model[2].weight is model[0].weight
    assert model[4].weight.data_ptr() == model[6].weight.data_ptr()
    assert torch.equal(model[8].weight, model[10].weight.t())
    assert all(RAW_STORAGE(each).resizable() for each in large(model))


def test_parameters_that_overlap_leave_together(path: Path) -> None:
    class Overlapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = on_one_storage(path)["0.weight"].flatten()
            self.first, self.second = nn.Parameter(whole[:6144]), nn.Parameter(whole[3072:])

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.first.view(96, 64) @ self.second.view(64, 96)

    def setup() -> Training:
        return ordinary(Overlapping(), torch.randn(4, WIDTH))

    plain = train(setup, STEPS)
    run = seeded(setup)
    found, _ = inside(run)
    assert_equal(found, plain)
    model: Any = run.modules[0]
    assert RAW_STORAGE(model.first).resizable()
    assert model.first.data_ptr() + 3072 * 4 == model.second.data_ptr()


def test_frozen_weights_stay_on_their_file(path: Path) -> None:
    def adapters() -> Training:
        model: Any = model_on(sliced(path))
        for layer in model[:8]:
            layer.requires_grad_(False)
        return ordinary(model, torch.randn(4, WIDTH))

    plain = train(adapters, STEPS)
    run = seeded(adapters)
    found, _ = inside(run)
    assert_equal(found, plain)
    assert [RAW_STORAGE(each).resizable() for each in large(run.modules[0])] == [False] * 4 + [True] * 2


def with_view(weights: Weights) -> object:
    return weights["0.weight"][:4]


def with_storage(weights: Weights) -> object:
    return RAW_STORAGE(weights["0.weight"])


@kept
@pytest.mark.parametrize("other", [with_view, with_storage])
def test_a_parameter_whose_bytes_code_has_stays_and_shows_them(other: Callable[[Weights], object], path: Path) -> None:
    plain = train(partial(training, sliced, path), STEPS)
    weights = sliced(path)
    held: Any = other(weights)
    torch.manual_seed(20)
    run = ordinary(model_on(weights), torch.randn(4, WIDTH))
    del weights
    found, _ = inside(run)
    assert_equal(found, plain)
    (first, *rest) = large(run.modules[0])
    shown = held if isinstance(held, Tensor) else torch.empty(0).set_(held)[: 4 * WIDTH].view(4, WIDTH)
    assert torch.equal(shown, first.detach()[:4])
    assert all(RAW_STORAGE(each).resizable() for each in rest)


@kept
def test_parameters_stay_while_code_has_the_storage_of_the_whole_file(path: Path) -> None:
    """As a file of safetensors that is left open has: it reads the bytes that training has written."""
    whole = whole_file(path)

    def setup() -> Training:
        weights = {name: on_storage(whole[begin : begin + shape.nbytes], shape) for name, shape, begin in spans()}
        return ordinary(model_on(weights), torch.randn(4, WIDTH))

    run = seeded(setup)
    inside(run)
    model: Any = run.modules[0]
    assert torch.equal(on_storage(whole, model[0].weight), model[0].weight)
    assert not any(RAW_STORAGE(each).resizable() for each in large(model))


@kept
def test_two_slices_of_the_same_bytes_go_on_to_share_them(path: Path) -> None:
    def setup() -> Training:
        whole = whole_file(path)
        weights = {name: on_storage(whole[begin : begin + shape.nbytes], shape) for name, shape, begin in spans()}
        weights["2.weight"] = on_storage(whole[:BYTES], weights["0.weight"])
        return ordinary(model_on(weights), torch.randn(4, WIDTH))

    plain = train(setup, STEPS)
    run = seeded(setup)
    found, _ = inside(run)
    assert_equal(found, plain)
    assert [RAW_STORAGE(each).resizable() for each in large(run.modules[0])] == [False] * 2 + [True] * 4


@kept
def test_what_is_written_to_a_shared_mapping_reaches_the_file(path: Path) -> None:
    def shared(path: Path) -> Weights:
        whole = whole_file(path, shared=True)
        return {name: on_storage(whole, shape, begin) for name, shape, begin in spans()}

    run = seeded(partial(training, shared, path))
    inside(run)
    again = shared(path)
    assert all(torch.equal(value, again[name]) for name, value in run.modules[0].state_dict().items())


@kept
def test_an_array_of_numpy_on_a_mapped_file_goes_on_to_show_its_parameter(path: Path) -> None:
    rows = numpy.memmap(path, dtype="float32", mode="c")

    def mapped(_: Path) -> Weights:
        flat = torch.from_numpy(rows)
        return {name: flat[b // 4 : b // 4 + shape.numel()].view(shape.shape) for name, shape, b in spans()}

    run = seeded(partial(training, mapped, path))
    inside(run)
    model: Any = run.modules[0]
    assert (rows[: WIDTH * WIDTH].reshape(WIDTH, WIDTH) == model[0].weight.detach().numpy()).all()


def test_without_parameters_among_allow_weights_stay_on_their_file(path: Path) -> None:
    plain = train(partial(training, sliced, path), STEPS)
    run = seeded(partial(training, sliced, path))
    gc.collect()
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, allow=("swap", "state")):
        found = finish(run, STEPS)
    assert_equal(found, plain)
    assert not any(RAW_STORAGE(each).resizable() for each in large(run.modules[0]))
