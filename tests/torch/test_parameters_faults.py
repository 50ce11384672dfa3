"""Faults while parameters are away: a full disk in a part of the optimizer, an exception, Ctrl-C, a failing disk.

The error is clear, no parameter is left without bytes, and a training that goes on has the numbers of plain training or
has been told that bytes are lost.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.engine import optimizer_parts
from elbowroom.engine.storages import RAW_STORAGE
from elbowroom.errors import TierFailed, TierFull
from elbowroom.planners import Means
from elbowroom.planners.budget import run_budget
from tests.torch.helpers import MIN_SIZE_BYTES, Training, assert_equal, finish, mlp, ordinary, seeded, train

STEPS = 5
EVERYTHING: tuple[Means, ...] = ("swap", "state", "gradient", "parameter")


@pytest.fixture(autouse=True)
def _all_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_budget, "_ways", lambda asked: [asked])


def setup() -> Training:
    model = mlp(96, 6)
    return ordinary(model, torch.randn(4, 96), optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))


def plenty(spill_dir: Path) -> Any:
    gc.collect()
    return er.within("100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=EVERYTHING, spill_dir=spill_dir)


def all_there(training: Training) -> bool:
    (model,) = training.modules
    states = training.optimizers[0].state.values()
    tensors: list[Tensor] = [*model.parameters(), *(v for values in states for v in values.values())]
    tensors += [each.grad for each in model.parameters() if each.grad is not None]
    return all(RAW_STORAGE(each).nbytes() >= each.nelement() * each.element_size() for each in tensors)


class Broken(Exception):
    """An error of the user's own code."""


def at_part(monkeypatch: pytest.MonkeyPatch, number: int, fault: Callable[[], None]) -> None:
    """Have a fault in the middle of an optimizer's step, once the bytes of one of its parts are there."""
    only, seen = optimizer_parts.only, [0]

    def faulty(*args: Any) -> Any:
        seen[0] += 1
        if seen[0] == number:
            fault()
        return only(*args)

    monkeypatch.setattr(optimizer_parts, "only", faulty)


def raises_broken() -> None:
    raise Broken


def interrupts() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("fault", "error"), [(raises_broken, Broken), (interrupts, KeyboardInterrupt)])
@pytest.mark.parametrize("part", [1, 4])
def test_an_error_in_a_part_leaves_every_parameter_with_the_bytes_of_the_parts_before(
    fault: Callable[[], None], error: type[BaseException], part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the parameters before the last step and after it
    before, after = train(setup, STEPS - 1).state, train(setup, STEPS).state
    training = seeded(setup)

    def run() -> None:
        with plenty(tmp_path):
            for number in range(STEPS - 1):
                training.step(number)
            at_part(monkeypatch, part, fault)
            training.step(STEPS - 1)

    # when
    with pytest.raises(error):
        run()
    monkeypatch.undo()
    # then each parameter is whole: as before the step, or as after it
    assert all_there(training)
    now = training.modules[0].state_dict()
    updated = [torch.equal(value, after[f"0.{name}"]) for name, value in now.items()]
    kept = [torch.equal(value, before[f"0.{name}"]) for name, value in now.items()]
    assert all(one or other for one, other in zip(updated, kept, strict=True))
    assert sum(updated) == 0 if part == 1 else 0 < sum(updated) < len(updated)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("raised", [Broken, KeyboardInterrupt])
def test_an_error_between_forward_and_backward_loses_nothing(raised: type[BaseException], tmp_path: Path) -> None:
    plain = train(setup, STEPS)
    training = seeded(setup)

    def run() -> None:
        with plenty(tmp_path):
            losses.extend(training.step(number).detach().clone() for number in range(STEPS - 1))
            training.modules[0](torch.randn(4, 96))
            raise raised

    losses: list[Tensor] = []
    with pytest.raises(raised):
        run()
    # then it trains on without elbowroom, with the numbers of plain training
    assert all_there(training)
    inside = finish(training, STEPS, STEPS - 1)
    inside.losses[:0] = losses
    assert_equal(inside, plain)


def test_a_disk_that_is_full_in_a_part_of_the_optimizer_is_said_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, threads = seeded(setup), threading.active_count()

    def is_full() -> None:
        def allocate(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def write(*_: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", allocate)
        monkeypatch.setattr(os, "pwrite", write)

    def run() -> None:
        with plenty(tmp_path):
            for number in range(STEPS - 1):
                training.step(number)
            at_part(monkeypatch, 3, is_full)
            finish(training, STEPS)

    # when
    with pytest.raises((TierFull, TierFailed), match=r"disk tier: .*spill_dir="):
        run()
    monkeypatch.undo()
    # then what could not be written was still in memory
    assert all_there(training)
    assert all(torch.isfinite(each).all() for each in training.modules[0].parameters())
    assert threading.active_count() <= threads
    finish(training, 1)


KILLED = """
import os, signal, sys
import torch
import elbowroom as er
from elbowroom.engine import optimizer_parts
from elbowroom.planners.budget import run_budget
from tests.torch.helpers import MIN_SIZE_BYTES, seeded
from tests.torch.test_parameters_faults import EVERYTHING, setup
run_budget._ways = lambda asked: [asked]
training = seeded(setup)
with er.within(
    "100GiB", min_size=MIN_SIZE_BYTES, planner="on_demand", allow=EVERYTHING, spill_dir=sys.argv[1]
):
    for number in range(4):
        training.step(number)
        torch.save(training.modules[0].state_dict(), sys.argv[2] + ".new")
        os.replace(sys.argv[2] + ".new", sys.argv[2])
    only, seen = optimizer_parts.only, []
    def faulty(*args):
        seen.append(1)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return only(*args)
    optimizer_parts.only = faulty
    training.step(4)
"""


def test_a_process_that_is_killed_in_a_part_leaves_whole_checkpoints_and_no_file(tmp_path: Path) -> None:
    spill, saved = tmp_path / "spill", tmp_path / "model.pt"
    spill.mkdir()
    # when
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", KILLED, str(spill), str(saved)], check=False)
    # then
    assert done.returncode == -signal.SIGKILL
    assert not list(spill.iterdir())
    expected = train(setup, 4).state
    found: dict[str, Tensor] = torch.load(saved)
    assert all(torch.equal(value, expected[f"0.{name}"]) for name, value in found.items())
    assert isinstance(mlp(96, 6).load_state_dict(found), nn.modules.module._IncompatibleKeys)
