"""Changes in the middle of a training whose plan drops all that it can.

From step `FIRST` on something is another in each step, or stays another: a number, a setting, what is learnt.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.run import learner, step_planning
from elbowroom.run.recompute.call_recorder import Calls
from elbowroom.run.recompute.planning import Planned, following
from elbowroom.run.recompute.recompute_programs import matched, why_impossible
from elbowroom.run.room import Room
from elbowroom.run.step_question import Next, StepQuestion
from elbowroom.step.last_step import last_step
from tests.databases.forced import MIN_SIZE_BYTES, recomputing_all, same
from tests.torch.helpers import Setup, assert_equal, finish, seeded, train

FIRST = 7
"""The first step in which something changes: two are observed, one records its calls, two prove, two drop."""

STEPS = 20
"""Eight more than a change takes that stays: four steps are swapped, two observed, one records calls."""


def train_changing(setup: Setup, monkeypatch: pytest.MonkeyPatch, steps: int = STEPS) -> Room:
    """Train plain, and with every storage recomputed that has a recipe, in each kind of step; compare every bit."""

    def planned(question: StepQuestion, calls: Calls, *, is_needed: bool) -> Planned:
        assert is_needed
        found = matched(last_step(question.trace), calls)
        stay: set[int] = set()
        while True:
            made = recomputing_all(question.trace, question.machine, stay)
            cannot = [each for each in made.recomputes if why_impossible(found, each) is not None]
            if not cannot:
                return following(question, calls, made)
            stay.update(min(each.storages) for each in cannot)

    monkeypatch.setattr(learner, "first_plan", lambda _: Next.RECORD_CALLS)
    monkeypatch.setattr(step_planning, "planned", planned)
    plain = train(setup, steps)
    if not same(plain, train(setup, steps)):
        pytest.skip("plain training, run twice, gives two results")
    with er.within("1TiB", min_size=MIN_SIZE_BYTES) as room:
        inside = finish(seeded(setup), steps)
    assert_equal(inside, plain)
    return room


def telling_all(loss: Tensor, module: nn.Module) -> Tensor:
    """The loss and every gradient, as one tensor."""
    gradients = [each.grad.detach().flatten() for each in module.parameters() if each.grad is not None]
    return torch.cat([each.float() for each in (loss.detach().reshape(1), *gradients)])


def recomputed_bytes(room: Room) -> list[int]:
    """What each step has recomputed since storages are dropped without a copy."""
    return [step.recomputed_bytes for step in room.steps[FIRST - 1 :]]


def mismatches(room: Room) -> int:
    """Storages that were not what a plan expects, or not rebuilt with the same bits, in all steps."""
    return sum(step.mismatches for step in room.steps)
