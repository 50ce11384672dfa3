"""The knobs of `within`: planner and options by name, the least size, and modules that are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import elbowroom as er
from tests.torch.helpers import (
    Training,
    assert_equal,
    assert_swapped,
    mean_square,
    mlp,
    needs,
    ordinary,
    tight_budget,
    train,
    train_within,
)


class Net(nn.Module):
    """Two parts that can be told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(depth=6), mlp(depth=6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(x))


def network() -> Training:
    return ordinary(Net(), torch.randn(128, 64))


def makers(room: Any) -> set[str]:
    """The parts whose storages the plan moves."""
    made_in = {e.storage: room.trace.ops[e.op].module for e in room.trace.events if e.size_bytes > 0 <= e.op}
    return {made_in[swap.storage].split(".")[1] for swap in room.plan.swaps}


@pytest.mark.parametrize(
    ("planner", "options"),
    [("threshold", {"size_bytes": "32KiB"}), ("tflms", {"swapin_ahead": 2}), ("lms", {}), ("swap_all", None)],
)
def test_the_planner_of_a_run_is_chosen_by_name(planner: str, options: dict[str, object] | None) -> None:
    plain = train(network)
    inside, room = train_within(network, planner=planner, options=options)
    assert_equal(inside, plain)
    assert_swapped(room)
    assert room.plan is not None
    assert room.plan.planner == planner


def test_a_limit_and_a_least_size_as_in_large_model_support() -> None:
    # given storages of 128 x 64 x 4 bytes = 32 KiB, and gradients and weights of 16 KiB
    plain = train(network)
    inside, room = train_within(network, planner="lms", min_size="32KiB")
    assert_equal(inside, plain)
    assert room.trace is not None
    assert room.plan is not None
    assert {room.trace.storages[swap.storage].size_bytes for swap in room.plan.swaps} == {2**15}
    # and above them nothing moves
    with pytest.raises(er.Infeasible):
        train_within(network, planner="lms", min_size="33KiB")


def test_only_what_is_included_moves() -> None:
    plain = train(network)
    least, peak = needs(network)
    inside, room = train_within(network, budget=(least + 3 * peak) // 4, include="encoder.*")
    assert_equal(inside, plain)
    assert makers(room) == {"encoder"}


def test_what_is_excluded_stays() -> None:
    plain = train(network)
    least, peak = needs(network)
    inside, room = train_within(network, budget=(least + 3 * peak) // 4, exclude=["Net.encoder"])
    assert_equal(inside, plain)
    assert makers(room) == {"decoder"}


def test_a_pattern_may_name_a_module_that_this_step_does_not_call() -> None:
    class Judge(nn.Module):
        """Alive beside the net, never called."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)

    judge = Judge()
    _, room = train_within(network, budget=2**40, exclude="Judge.head")
    assert room.steps[-1].mode == "keep"
    del judge


def test_a_pattern_that_matches_no_module_is_known_after_the_first_step() -> None:
    with pytest.raises(er.UsageError, match=r"include: given 'encodr', which no module matches; .* near are encoder"):
        train_within(network, budget=tight_budget(network), include="encodr")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"planner": "tensorflow"}, "planner: given 'tensorflow'; allowed is one of keep_all, swap_all"),
        ({"planner": "tflms", "options": {"ahead": 3}}, "options: given 'ahead' for planner 'tflms'; allowed are"),
        ({"planner": "lms", "options": {"size_bytes": "x"}}, "size: given 'x'"),
        ({"min_size": "big"}, "size: given 'big'"),
        ({"min_size": 0}, "given min_size=0; allowed is a size of 1 byte or more"),
        ({"include": 3}, "include: given 3; allowed is a glob"),
    ],
)
def test_knobs_that_are_not_allowed_are_refused_before_the_training(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(er.UsageError) as caught, er.within("1GiB", **knobs):
        pass
    assert message in str(caught.value)


def test_a_given_plan_leaves_nothing_to_choose(tmp_path: Path) -> None:
    made = er.Plan(trace_id="a", planner="by hand", budget_bytes=1)
    with (
        pytest.raises(er.UsageError, match="given plan and exclude; allowed is one of them"),
        er.within(plan=made, exclude="head", spill_dir=tmp_path),
    ):
        pass
    assert mean_square(torch.ones(2)) == 1


class WithOwnList(nn.Module):
    """Its `parameters` returns a list, and not the weights of its head, as in code for meta-learning."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(depth=6), nn.Linear(64, 1)

    def parameters(self, recurse: bool = True) -> list[nn.Parameter]:  # type: ignore[override]
        return [each for part in self.body for each in part.parameters(recurse)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def test_a_model_whose_parameters_are_a_list_trains_with_equal_numbers() -> None:
    def listed() -> Training:
        return ordinary(WithOwnList(), torch.randn(128, 64))

    plain = train(listed)
    inside, room = train_within(listed)
    assert_equal(inside, plain)
    assert_swapped(room)
    # the head's weight (64 x 1 numbers of 4 bytes) is a parameter all the same
    assert room.trace is not None
    sizes = [each.size_bytes for each in room.trace.storages if each.category == "parameter"]
    assert 256 in sizes
