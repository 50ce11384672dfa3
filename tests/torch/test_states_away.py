"""Optimizer states are away while no part of a step needs them: the same numbers, in budgets that saves cannot meet."""

from __future__ import annotations

import copy
import errno
import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.engine.executor import Executor
from elbowroom.engine.residence import RamResidence
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.run.room import Room, run_of
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Outcome,
    Training,
    assert_equal,
    finish,
    mlp,
    moved_as_planned,
    needs,
    ordinary,
    seeded,
    train,
)

STEPS = 10
Make = Callable[[Any], torch.optim.Optimizer]


def layers(make: Make, width: int = 96, depth: int = 8) -> Training:
    """Few samples and many weights: nearly all that a step holds are parameters, gradients and states."""
    model = mlp(width, depth)
    return ordinary(model, torch.randn(4, width), optimizer=make(model.parameters()))


def within_states(setup: Callable[[], Training], share: float, steps: int = STEPS, **options: Any) -> tuple[Any, Room]:
    """Run in a share of what the training needs with all saves swapped."""
    least, _ = needs(setup)
    with er.within(int(share * least), min_size=MIN_SIZE_BYTES, allow=("swap", "state"), **options) as room:
        outcome: Outcome = finish(seeded(setup), steps)
    return outcome, room


MAKES: dict[str, Make] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    "AdamW foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    "Adam amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, amsgrad=True, weight_decay=0.1),
    "SGD momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, nesterov=True),
    "RMSprop centered": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, centered=True, momentum=0.5),
}


@pytest.mark.parametrize("name", MAKES)
def test_ten_steps_are_bit_equal_and_peak_where_simulated(name: str) -> None:
    def setup() -> Training:
        return layers(MAKES[name])

    # given a training whose states weigh more than what autograd saves
    plain = train(setup, STEPS)

    # when
    inside, room = within_states(setup, 0.9, measure=True)

    # then
    assert_equal(inside, plain)
    assert "optimizer_state" in moved_as_planned(room)
    assert room.measured is not None
    assert room.simulated is not None
    simulated, measured = room.simulated.peak_allocated_bytes, room.measured.peak_allocated_bytes
    assert measured <= run_of(room).budget_bytes
    assert abs(simulated - measured) <= 0.01 * measured
    assert room.trace is not None
    moved = {span.storage for span in room.measured.spans if span.kind == "swap_back"}
    assert any(room.trace.storages[storage].category == "optimizer_state" for storage in moved if storage is not None)


def test_a_budget_that_saves_cannot_meet_is_met_by_states() -> None:
    def setup() -> Training:
        return layers(MAKES["Adam"])

    least, _ = needs(setup)

    # when only saves may move
    with pytest.raises(er.Infeasible), er.within(int(0.9 * least), min_size=MIN_SIZE_BYTES, allow=("swap",)):
        finish(seeded(setup), 4)

    # then states make the room
    _, room = within_states(setup, 0.9, 4)
    assert "optimizer_state" in moved_as_planned(room)


def saved(optimizer: torch.optim.Optimizer) -> Any:
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file)


LOOKS: dict[str, Callable[[torch.optim.Optimizer], list[Tensor]]] = {
    "one tensor": lambda o: [o.state[o.param_groups[0]["params"][0]]["exp_avg"].clone()],
    "values": lambda o: [values["exp_avg_sq"].clone() for values in o.state.values()],
    "state dict": lambda o: [values["exp_avg"].clone() for values in o.state_dict()["state"].values()],
    "file": lambda o: [values["exp_avg"] for values in saved(o)["state"].values()],
    "copy": lambda o: [values["exp_avg"] for values in copy.deepcopy(o).state.values()],
}


@pytest.mark.parametrize("look", LOOKS)
def test_whoever_looks_at_states_between_steps_finds_them_whole(look: str) -> None:
    def setup() -> Training:
        training = layers(MAKES["Adam"])
        inner = training.step

        def step(number: int) -> Tensor:
            loss = inner(number)
            if number in (1, 4, 5):
                seen.extend(tensor.detach() for tensor in LOOKS[look](training.optimizers[0]))
            return loss

        return Training(step, training.modules, training.optimizers)

    seen: list[Tensor] = []
    plain = train(setup, STEPS)
    expected = list(seen)

    # when
    needed, _ = needs(lambda: layers(MAKES["Adam"]))
    seen.clear()
    with er.within(int(0.9 * needed), min_size=MIN_SIZE_BYTES, allow=("swap", "state")) as room:
        inside = finish(seeded(setup), STEPS)

    # then
    assert_equal(inside, plain)
    assert "optimizer_state" in moved_as_planned(room)
    assert len(seen) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))


def test_nothing_of_torch_is_changed_once_the_room_is_closed() -> None:
    layers(MAKES["Adam"])  # the first optimizer of a class has torch wrap its step
    before = torch.optim.Adam.step, torch.optim.Adam.step.__closure__
    contents = [cell.cell_contents for cell in before[1] or ()]

    # when
    _, room = within_states(lambda: layers(MAKES["Adam"]), 0.9, 4)

    # then
    assert "optimizer_state" in moved_as_planned(room)
    assert not hasattr(torch.optim.Optimizer, "state")
    assert torch.optim.Adam.step is before[0]
    assert [cell.cell_contents for cell in torch.optim.Adam.step.__closure__ or ()] == contents


@pytest.mark.parametrize("process_ends", [False, True])
def test_states_that_there_is_no_room_for_at_the_end_are_no_states_any_more(
    process_ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a training with states away, at whose end there is no memory for them, nor for a mapping of the file
    def setup() -> Training:
        return layers(MAKES["Adam"])

    refused = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 36864 bytes"

    def arrive(*_: object) -> None:
        raise RuntimeError(refused)

    def no_mapping(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    least, _ = needs(setup)
    training = seeded(setup)

    def run() -> None:
        with er.within(int(0.8 * least), min_size=MIN_SIZE_BYTES, allow=("swap", "state")) as room:
            run_of(room).ends_process = process_ends
            for i in range(6):
                training.step(i)
            monkeypatch.setattr(RamResidence, "asked_bytes", lambda *_: 36864)
            monkeypatch.setattr(Executor, "arrive", arrive)
            monkeypatch.setattr(SpillFile, "lend", no_mapping)

    # when
    ends = nullcontext() if process_ends else pytest.raises(RuntimeError, match="you tried to allocate 36864 bytes")
    with ends, pytest.warns(RuntimeWarning, match=r"elbowroom: \d+ optimizer states did not come back"):
        run()

    # then the parameters are as they should be, and no state is left that has no bytes
    monkeypatch.undo()
    expected, optimizer = train(setup, 6), training.optimizers[0]
    states = [state for each in optimizer.state.values() for state in each.values() if isinstance(state, Tensor)]
    assert all(state.untyped_storage().nbytes() >= state.numel() * state.element_size() for state in states)
    assert len(states) < 3 * len(optimizer.param_groups[0]["params"])
    for name, value in training.state().items():
        if not name.startswith("optimizer"):
            assert torch.equal(value, expected.state[name])
