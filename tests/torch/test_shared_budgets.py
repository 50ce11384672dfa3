"""Ranks of one computer share its RAM and its disk: budgets that are made from these are divided."""

from __future__ import annotations

import pytest
import torch

import elbowroom as er
from elbowroom.hardware import ram
from elbowroom.run import open_room
from elbowroom.run.room import run_of
from elbowroom.run.run_figures import RunFigures

GIB = 2**30


@pytest.fixture(autouse=True)
def computer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each of the ranks the same look at a computer with 40 GiB of RAM, of which 30 GiB are free."""
    monkeypatch.setattr(ram, "free_bytes", lambda: 30 * GIB)
    monkeypatch.setattr(ram, "capacity_bytes", lambda: 40 * GIB)
    monkeypatch.setattr("elbowroom.machine.capacity_bytes", lambda: 40 * GIB)
    monkeypatch.setattr(ram, "hard_limits", lambda: ())
    monkeypatch.setattr(open_room, "live_ram_bytes", lambda: 0)


@pytest.fixture
def three_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)


def budget_of(given: str) -> int:
    with er.within(given, device="cpu") as room:
        return run_of(room).budget_bytes


# 30 GiB less a tenth are 27 GiB, of which a third is 9 GiB; 30 % of 40 GiB are 12 GiB
@pytest.mark.parametrize(("given", "alone", "of_three"), [("auto", 27, 9), ("30%", 12, 4), ("8GiB", 8, 8)])
def test_what_is_made_from_the_computer_is_divided_and_given_bytes_are_not(
    given: str, alone: int, of_three: int, request: pytest.FixtureRequest
) -> None:
    assert budget_of(given) == alone * GIB
    request.getfixturevalue("three_ranks")
    assert budget_of(given) == of_three * GIB


@pytest.mark.usefixtures("three_ranks")
def test_the_summary_names_what_was_divided() -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    said: list[str] = []
    for given in ("auto", "1GiB", "1GiB,disk=2GiB"):
        with er.within(given, device="cpu") as room:
            for _ in range(2):
                model(torch.randn(4, 8)).sum().backward()
                optimizer.step()
        said.append(room.summary())

    assert "divided among the 3 ranks of this computer: RAM, disk" in said[0]
    assert "divided among the 3 ranks of this computer: disk" in said[1]
    assert "divided" not in said[2]
    assert all(each.startswith("elbowroom: rank 1 of 6, budget ") for each in said)


@pytest.mark.parametrize(
    ("free", "held", "said"),
    [
        # on a GPU `auto` is nine tenths of what was free
        (30, 27, None),
        (30, 28, "1.00 GiB more than the budget were held, of the memory that `auto` leaves free"),
        (30, 31, "THE BUDGET WAS NOT HELD: 1.00 GiB more"),
        (0, 28, "THE BUDGET WAS NOT HELD: 1.00 GiB more"),
    ],
)
def test_the_summary_says_of_bytes_beyond_the_budget_whether_an_auto_budget_left_them_free(
    free: int, held: int, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    with er.within("27GiB", device="cpu") as room:
        for _ in range(2):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
    monkeypatch.setattr(run_of(room)._learner, "free_bytes", free * GIB)
    monkeypatch.setattr(RunFigures, "held_bytes", property(lambda _: held * GIB))
    found = [line for line in room.summary().splitlines() if "more than" in line]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
