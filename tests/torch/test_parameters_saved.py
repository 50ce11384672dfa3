"""A model that is away is saved, loaded, copied, averaged and evaluated between steps: the same bytes as ever."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Training,
    assert_equal,
    finish,
    mean_square,
    mlp,
    ordinary,
    seeded,
    train,
)

STEPS = 8
PARAMETERS: tuple[Means, ...] = ("swap", "state", "gradient", "parameter")


@pytest.fixture(autouse=True)
def _all_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans move everything, and not saved storages alone where these are enough."""
    monkeypatch.setattr(run_budget, "_ways", lambda request: [request])


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    yield
    assert torch.serialization._save.__module__ == "torch.serialization"  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    assert "nbytes" not in vars(torch.UntypedStorage)
    assert nn.Parameter.__deepcopy__.__module__ == "torch.nn.parameter"
    assert torch.optim.Optimizer.load_state_dict.__module__ == "torch.optim.optimizer"


class Case:
    """A model, its average and its optimizer."""

    def __init__(self) -> None:
        self.model = mlp(96, 4).double().float()
        self.average: Any = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.inputs = torch.randn(4, 96)
        self.files: list[bytes] = []
        self.away: list[tuple[int, int]] = []

    def now_away(self) -> int:
        """How many parameters have no bytes on the device."""
        return sum(RAW_STORAGE(p).nbytes() == 0 for p in self.model.parameters())

    def saved(self) -> bytes:
        file = io.BytesIO()
        found = {"model": self.model.state_dict(), "average": self.average, "optimizer": self.optimizer.state_dict()}
        torch.save({**found, "epoch": len(self.files)}, file)
        return file.getvalue()

    def save(self) -> None:
        before = self.now_away()
        self.files.append(self.saved())
        self.away.append((before, self.now_away()))

    def resume(self) -> None:
        """Train on from the last file, as another process would; its states are copied, as they are to a device."""
        found = torch.load(io.BytesIO(self.files[-1]), weights_only=False)
        self.model.load_state_dict(found["model"])
        for values in found["optimizer"]["state"].values():
            values.update({name: value.double() for name, value in values.items() if name != "step"})
        self.optimizer.load_state_dict(found["optimizer"])

    def update(self) -> None:
        with torch.no_grad():
            for its, mine in zip(self.average.parameters(), self.model.parameters(), strict=True):
                its.mul_(0.9).add_(mine, alpha=0.1)
                mine.data.clamp_(-1, 1)

    def evaluate(self) -> Tensor:
        self.model.eval()
        with torch.no_grad():
            found = mean_square(self.model(self.inputs)) + mean_square(self.average(self.inputs))
        self.model.train()
        return found

    def norms(self) -> Tensor:
        return torch.tensor([p.norm().item() for _, p in self.model.named_parameters()])


def save(case: Case, _: int) -> Any:
    case.save()


def save_and_resume(case: Case, number: int) -> Any:
    case.save()
    if number % 2:
        case.resume()


def average_and_evaluate(case: Case, _: int) -> Any:
    case.update()
    return case.evaluate()


def copies(case: Case, _: int) -> Any:
    case.average = copy.deepcopy(case.model).requires_grad_(False)
    return case.norms().sum() + case.evaluate()


def all_in_turn(case: Case, number: int) -> Any:
    for each in (save_and_resume, average_and_evaluate, save, copies, save):
        each(case, number)
    return case.norms().sum()


BETWEEN: dict[str, Callable[[Case, int], Any]] = {
    each.__name__: each for each in (save, save_and_resume, average_and_evaluate, copies, all_in_turn)
}


def training(between: Callable[[Case, int], Any], cases: list[Case]) -> Training:
    case = Case()
    cases.append(case)

    def step(number: int) -> Tensor:
        case.optimizer.zero_grad()
        loss = mean_square(case.model(case.inputs))
        loss.backward()
        case.optimizer.step()
        seen = between(case, number)
        return loss.detach() if seen is None else torch.stack([loss.detach(), seen.detach()])

    return Training(step, [case.model], [case.optimizer])


@pytest.mark.parametrize("name", BETWEEN)
def test_what_runs_between_steps_finds_and_leaves_the_right_bytes(name: str) -> None:
    cases: list[Case] = []
    plain = train(lambda: training(BETWEEN[name], cases), STEPS)
    gc.collect()
    # when
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=PARAMETERS) as room:
        inside = finish(seeded(lambda: training(BETWEEN[name], cases)), STEPS)
    # then numbers are equal, and so is each byte of each file
    assert_equal(inside, plain)
    assert cases[0].files == cases[1].files
    # and what was away before a save is away after it
    assert all(after >= before for before, after in cases[1].away)
    assert not cases[1].away or max(before for before, _ in cases[1].away) >= 3
    assert [step.mode for step in room.steps].count("plan") >= STEPS // 2


def as_safetensors_reads(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    """The bytes of tensors as `save_file` of safetensors gets them: by the addresses of storages and of tensors."""
    shared = {each.untyped_storage().data_ptr() for each in tensors.values()}
    assert len(shared) == len(tensors)
    found: dict[str, bytes] = {}
    for name, tensor in tensors.items():
        assert tensor.is_contiguous()
        size_bytes = tensor.nelement() * tensor.element_size()
        found[name] = ctypes.string_at(tensor.data_ptr(), size_bytes)
    return found


@pytest.mark.filterwarnings("ignore:elbowroom. a parameter of .* as code has its address:RuntimeWarning")
def test_code_that_reads_addresses_gets_the_bytes_of_parameters_that_are_away_and_training_goes_on() -> None:
    def training() -> Training:
        model = mlp(96, 4)
        return ordinary(model, torch.randn(4, 96), optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))

    def saves(run: Training) -> list[dict[str, bytes]]:
        found: list[dict[str, bytes]] = []
        for number in range(STEPS):
            run.step(number)
            if number in (3, STEPS - 1):
                found.append(as_safetensors_reads(run.modules[0].state_dict()))
        return found

    plain = saves(seeded(training))
    gc.collect()
    # when
    with er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=PARAMETERS):
        run = seeded(training)
        away = sum(RAW_STORAGE(p).nbytes() == 0 for p in run.modules[0].parameters())
        inside = saves(run)
    # then
    assert away >= 3
    assert inside == plain
