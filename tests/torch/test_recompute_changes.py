"""What changes while storages are dropped: recipes follow it, or a step is observed anew where it stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elbowroom.run import learner
from elbowroom.run.recompute.call_recorder import CallRecorder
from tests.databases import test_changing_trainings as changing
from tests.databases.changes import FIRST, mismatches, recomputed_bytes, train_changing
from tests.databases.test_changing_trainings import Net, training


def everything(net: Net, x: Tensor) -> Tensor:
    """Rates, numbers, noise, windows, seeds and statistics, each another in each step."""
    x = changing.drop_path(net, changing.every_number(net, x))
    x = changing.seeded_draw(net, changing.cut(net, changing.noisy(net, x)))
    x = net.extra(x)
    return F.dropout(torch.tanh(x), changing.lowered(net))


@pytest.mark.filterwarnings("ignore")
def test_arguments_that_change_in_each_step_are_those_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # given batch norm, whose momentum changes too
    momentum = changing.sets(momentum=lambda net: 0.1 * changing.grown(net))
    setup = lambda: training(everything, lambda: nn.BatchNorm1d(changing.WIDTH), momentum)  # noqa: E731
    # when
    room = train_changing(setup, monkeypatch, FIRST + 8)
    # then no storage stays
    again = recomputed_bytes(room)
    assert mismatches(room) == 0
    assert again == [again[0]] * len(again)
    assert again[0] > 0


def test_a_step_is_observed_anew_where_a_change_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    # given another function of the same shapes from a step on
    room = train_changing(lambda: training(changing.another), monkeypatch)
    # then the steps that call it are swapped in part, until one of them is observed and its calls are recorded
    modes = [step.mode for step in room.steps[FIRST:]]
    again = recomputed_bytes(room)
    assert modes == ["plan"] * learner.STAYS + ["observe"] * 2 + ["plan"] * (len(modes) - learner.STAYS - 2)
    assert all(step.mismatches for step in room.steps[FIRST : FIRST + learner.STAYS])
    assert again[1] < again[0]
    assert again[-1] == again[0]


def test_what_is_refused_again_and_again_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # given shapes inside that change in each step, where a step is observed anew at once
    monkeypatch.setattr(learner, "STAYS", 1)
    room = train_changing(lambda: training(changing.cut_and_pasted), monkeypatch, 30)
    # then in the end nothing is refused, and what does not depend on them is dropped
    assert [step.mismatches for step in room.steps[-4:]] == [0] * 4
    assert 0 < recomputed_bytes(room)[-1] < recomputed_bytes(room)[0]
    assert [step.mode for step in room.steps].count("observe") == 3 + 2 * learner.MOST_ANEW


def test_a_loss_that_shrinks_its_result_is_in_no_recipe() -> None:
    # given a mean in a storage as large as what it is the mean of, of which no call writes the rest
    recorder = CallRecorder(torch.device("cpu"))
    x = torch.randn(64, 64)
    recorder.start()
    try:
        found: list[Any] = [F.mse_loss(x, x + 1), F.mse_loss(x, x + 1, reduction="none"), x[3:].clone()[1:]]
    finally:
        calls = recorder.stop()
    # then
    made = [source for group in calls.groups for call in group.calls for source in call.results.values()]
    used = {source.maker.name: (source.used_bytes, source.size_bytes) for source in made if source.maker is not None}
    assert [each.untyped_storage().nbytes() for each in found[:2]] == [64 * 64 * 4] * 2
    assert used["aten.clone"] == (61 * 64 * 4, 61 * 64 * 4)
    losses = [source.used_bytes for source in made if source.maker is not None and "mse" in source.maker.name]
    assert losses == [4, 64 * 64 * 4]
