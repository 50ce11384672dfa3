"""What RAM has no room for is mapped from the spill file: as a run ends, and for a state dict."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.engine.residence import RamResidence
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.engine.tiers.disk import DiskTier
from elbowroom.engine.tiers.spillfile import SpillFile
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from tests.torch.helpers import MIN_SIZE_BYTES, Training, assert_equal, finish, mlp, ordinary, seeded, train

STEPS = 4
EVERYTHING: tuple[Means, ...] = ("swap", "state", "gradient", "parameter")


@pytest.fixture(autouse=True)
def _all_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_budget, "_ways", lambda asked: [asked])


def adam() -> Training:
    model = mlp(96, 6)
    return ordinary(model, torch.randn(4, 96), optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))


def plenty(**options: Any) -> Any:
    gc.collect()
    return er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=EVERYTHING, **options)


def no_room(*_: object) -> int:
    return 0


def refused(*_: object) -> None:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 36864 bytes")


def _left_no_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RamResidence, "room_at_end", no_room)


def _refuses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RamResidence, "asked_bytes", lambda *_: 36864)
    patch.setattr(DiskTier, "resize", lambda _, storage, size_bytes, home: size_bytes and refused())


def _interrupted(losses: list[Tensor], at_end: Callable[[], None]) -> Training:
    """A training whose room ends after some steps."""
    with plenty():
        training = seeded(adam)
        losses += [training.step(i).detach().clone() for i in range(STEPS)]
        at_end()
    return training


@pytest.mark.parametrize("ends", [_left_no_room, _refuses])
def test_a_model_that_ram_has_no_room_for_at_the_end_trains_on_from_a_file(
    ends: Callable[[pytest.MonkeyPatch], None],
) -> None:
    plain = train(adam, 2 * STEPS)
    # when the room ends in the middle of the training, and nothing can come back
    losses: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch, pytest.warns(RuntimeWarning, match="elbowroom: ") as warned:
        training = _interrupted(losses, lambda: ends(patch))
    # then states are mapped too, gradients that were used are none, and every number is that of plain training
    told = [str(each.message) for each in warned]
    assert any("of parameters are mapped from a file now" in each for each in told)
    assert any("of optimizer states are mapped from a file now" in each for each in told)
    assert any("gradients of the last step are None now" in each for each in told)
    (model,) = training.modules
    assert all(RAW_STORAGE(p).nbytes() == p.nelement() * 4 for p in model.parameters())
    inside = finish(training, 2 * STEPS, STEPS)
    inside.losses[:0] = losses
    assert_equal(inside, plain)


def test_a_state_dict_maps_states_that_are_away_and_shows_those_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    files: list[SpillFile] = []
    lend = SpillFile.lend
    monkeypatch.setattr(SpillFile, "lend", lambda self, slot: files.append(self) or lend(self, slot))
    plain = train(adam, STEPS)
    # when a state dict is kept for a step, as states are away
    with plenty():
        training = seeded(adam)
        (optimizer,) = training.optimizers
        losses = [training.step(i).detach().clone() for i in range(STEPS - 1)]
        kept = optimizer.state_dict()
        mapped = _moments(kept)
        left = [RAW_STORAGE(each).nbytes() for state in vars(optimizer)["state"].values() for each in _large(state)]
        losses.append(training.step(STEPS - 1).detach().clone())
        shown = [each.clone() for each in mapped]
        del mapped, kept
        gc.collect()
        # then it shows what the last step has made of them
        assert_equal_lists(shown, _moments(optimizer.state_dict()))
    assert len(files) >= 2 * 6  # two moments of six layers
    assert left == [0] * 12
    inside = finish(training, STEPS, STEPS)
    inside.losses[:0] = losses
    assert_equal(inside, plain)


def test_a_slot_that_was_mapped_is_free_once_nothing_refers_to_it(tmp_path: Any) -> None:
    tier = DiskTier(str(tmp_path))
    try:
        slot = tier.reserve(5000)
        numbers = torch.arange(5000).to(torch.uint8)
        tier.write(numbers.untyped_storage(), slot).wait()
        lent = tier.lend(slot, from_disk=True)
        assert lent is not None
        memory = lent.memory
        # when it is read, while other slots come
        assert bytes(memory.tolist()) == bytes(i % 256 for i in range(5000))
        other = tier.reserve(5000)
        assert other.offset != slot.offset
        assert tier.held_bytes == 5000
        # then its place is free once the memory is gone
        tier.release(lent)
        del lent, memory
        gc.collect()
        assert tier.reserve(5000).offset == slot.offset
    finally:
        tier.close()


def _large(state: dict[str, Tensor]) -> list[Tensor]:
    return [value for value in state.values() if value.dim() == 2]


def _moments(packed: dict[str, Any]) -> list[Tensor]:
    return [state[name] for state in packed["state"].values() for name in ("exp_avg", "exp_avg_sq")]


def assert_equal_lists(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
