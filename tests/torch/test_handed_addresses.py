"""Addresses of parameters that code was given: right bytes for as long as they are used, and no stay beyond that."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from elbowroom.run.room import Room
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Outcome,
    Training,
    assert_equal,
    mlp,
    moved_as_planned,
    ordinary,
    seeded,
    train,
)

STEPS, WIDTH, DEPTH = 8, 96, 4
EVERYTHING: tuple[Means, ...] = ("swap", "state", "gradient", "parameter")
READER = """
def address(tensor):
    return tensor.data_ptr()

def storage(tensor):
    return tensor.untyped_storage()

def holding(address, tensor, begun, ends):
    found = address(tensor)
    begun.set()
    ends.wait()
    return found
"""


def functions_of(module: str) -> dict[str, Callable[..., Any]]:
    """These functions, as if they stood in another module."""
    found: dict[str, Any] = {"__name__": module}
    exec(READER, found)
    return found


SAFETENSORS, OTHERS = functions_of("safetensors.torch"), functions_of("of.mine")


@pytest.fixture(autouse=True)
def _all_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans move everything, and not saved storages alone where these are enough."""
    monkeypatch.setattr(run_budget, "_ways", lambda asked: [asked])


def training() -> Training:
    model: Any = mlp(WIDTH, DEPTH)
    model[6].weight = model[4].weight
    return ordinary(model, torch.randn(4, WIDTH))


def weights(run: Training) -> list[nn.Parameter]:
    return [each for each in run.modules[0].parameters() if each.nbytes >= MIN_SIZE_BYTES]


def are_away(run: Training) -> list[bool]:
    """Whether each weight has no bytes in memory, once an operator has used the second one and all writes ended."""
    weights(run)[1].sum()
    return [RAW_STORAGE(each).nbytes() == 0 for each in weights(run)]


def with_looks(look: Callable[[Training, int], object]) -> tuple[Outcome, Room]:
    """A training in which something looks at its parameters after each step."""
    run = seeded(training)
    gc.collect()
    losses: list[Tensor] = []
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=EVERYTHING) as room:
        for number in range(STEPS):
            losses.append(run.step(number).detach().clone())
            look(run, number)
    return Outcome(losses, run.state()), room


def bytes_at(address: int, parameter: Tensor) -> bytes:
    return ctypes.string_at(address, parameter.nbytes)


def test_a_module_that_writes_files_reads_parameters_that_stay_away() -> None:
    plain, states = train(training, STEPS), list[list[bool]]()
    files: list[list[bytes]] = []

    def save(run: Training, _: int) -> None:
        before = are_away(run)
        found = dict(run.modules[0].state_dict())
        addresses = {name: SAFETENSORS["address"](value) for name, value in found.items()}
        storages = [SAFETENSORS["storage"](value) for value in found.values()]
        # then each has an address of its own, but for the tied weight
        assert len(set(addresses.values())) == len(found) - 1
        assert [each.data_ptr() for each in storages] == list(addresses.values())
        assert [each.nbytes() for each in storages] == [value.nbytes for value in found.values()]
        files.append([bytes_at(addresses[name], value) for name, value in found.items()])
        states.append(before)
        assert are_away(run) == before
        # and so they are by torch's own operators
        assert files[-1] == [value.clone().numpy().tobytes() for value in found.values()]

    outcome, room = with_looks(save)

    assert_equal(outcome, plain)
    assert "parameter" in moved_as_planned(room)
    assert states[2:] == [[True, False, True]] * 6
    assert files[0] != files[1]


def test_a_module_that_writes_files_sees_what_was_changed_since_it_looked() -> None:
    def change(run: Training, number: int) -> None:
        parameter = weights(run)[0]
        row = parameter.detach()[1]
        for _ in range(2):
            before = bytes_at(SAFETENSORS["address"](parameter), parameter)
            with torch.no_grad():
                parameter.add_(number + 1)
            weights(run)[1].sum()  # another one, for which the first leaves
            found = bytes_at(SAFETENSORS["address"](parameter), parameter)
            assert found != before
            assert bytes_at(SAFETENSORS["address"](row), row) == found[row.nbytes : 2 * row.nbytes]
            assert found == parameter.detach().clone().numpy().tobytes()

    with_looks(change)


def test_a_parameter_that_is_in_memory_stays_there_until_the_step_begins() -> None:
    seen: list[bool] = []

    def look(run: Training, _: int) -> None:
        first, second = weights(run)[:2]
        first.sum()
        address = SAFETENSORS["address"](first)
        bits = first.detach().clone().numpy().tobytes()
        second.sum()
        assert bytes_at(address, first) == bits
        assert address == RAW_STORAGE(first).data_ptr()
        seen.append(RAW_STORAGE(second).nbytes() > 0)

    plain = train(training, STEPS)
    outcome, room = with_looks(look)
    assert_equal(outcome, plain)
    assert "parameter" in moved_as_planned(room)
    assert all(seen)


@pytest.mark.filterwarnings("ignore:elbowroom. a parameter of:RuntimeWarning")
def test_a_parameter_stays_while_a_thread_is_in_a_module_that_writes_files() -> None:
    begun, ends = threading.Event(), threading.Event()
    held: list[tuple[int, nn.Parameter]] = []
    threads: list[threading.Thread] = []

    def look(run: Training, number: int) -> None:
        first = weights(run)[0]
        if number == 3:
            first.sum()
            held.append((SAFETENSORS["address"](first), first))
            words = SAFETENSORS["address"], first, begun, ends
            threads.append(threading.Thread(target=SAFETENSORS["holding"], args=words))
            threads[0].start()
            begun.wait()
        for address, parameter in held if number < 6 else ():
            assert RAW_STORAGE(parameter).data_ptr() == address  # it did not leave in the step
        if number == 5:
            ends.set()
            threads[0].join()
        if number == 7:
            assert are_away(run)[0]

    plain = train(training, STEPS)
    outcome, _ = with_looks(look)
    assert_equal(outcome, plain)


def test_a_parameter_leaves_again_once_no_array_lies_on_it() -> None:
    away: list[bool] = []

    def log(run: Training, _: int) -> None:
        away.append(are_away(run)[0])
        first = weights(run)[0]
        assert (first.detach().numpy() == first.detach().clone().numpy()).all()

    plain = train(training, STEPS)
    outcome, room = with_looks(log)
    assert_equal(outcome, plain)
    assert "parameter" in moved_as_planned(room)
    assert away[-3:] == [True] * 3


@pytest.mark.filterwarnings("ignore:elbowroom. a parameter of:RuntimeWarning")
def test_an_array_shows_its_parameter_for_as_long_as_it_lives() -> None:
    arrays: list[Any] = []

    def look(run: Training, number: int) -> None:
        first = weights(run)[0]
        if number == 2:
            arrays.append(first.detach().numpy()[:3])
        for array in arrays:
            assert array.__array_interface__["data"][0] == RAW_STORAGE(first).data_ptr()
            assert (array == first.detach()[:3].clone().numpy()).all()
        if number == 5:
            arrays.clear()
        if number == 7:
            assert are_away(run)[0]

    plain = train(training, STEPS)
    outcome, _ = with_looks(look)
    assert_equal(outcome, plain)


@pytest.mark.filterwarnings("ignore:elbowroom. a parameter of:RuntimeWarning")
def test_a_parameter_whose_address_other_code_took_stays_for_good() -> None:
    taken: list[int] = []

    def look(run: Training, number: int) -> None:
        first = weights(run)[0]
        if number == 3:
            taken.append(OTHERS["address"](first))
        for address in taken:
            assert RAW_STORAGE(first).data_ptr() == address
            assert bytes_at(address, first) == first.detach().clone().numpy().tobytes()

    plain = train(training, STEPS)
    outcome, _ = with_looks(look)
    assert_equal(outcome, plain)
