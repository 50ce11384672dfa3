"""Which storages a plan may move, by the modules that made them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.errors import Infeasible, UsageError
from elbowroom.planners import PLANNERS, plan
from elbowroom.step.module_selection import Selection
from elbowroom.trace import Trace
from tests.core.build import chain, machine

MODULES = ("Net.stem", "Net.layer1.0.conv", "Net.layer1.1.conv", "Net.head")


def net() -> Trace:
    """Four layers of 100 bytes, one module each; the backward reads them in reverse."""
    trace = chain([100] * 4, ns=1000)
    ops = [replace(op, module=MODULES[i] if i < 4 else "") for i, op in enumerate(trace.ops)]
    return replace(trace, ops=tuple(ops))


@pytest.mark.parametrize(
    ("pattern", "which"),
    [
        ("stem", [0]),
        ("Net.stem", [0]),
        ("layer1", [1, 2]),
        ("layer1.*", [1, 2]),
        ("layer1.?.conv", [1, 2]),
        ("*.conv", [1, 2]),
        ("layer1.0", [1]),
        ("Net", [0, 1, 2, 3]),
        ("*", [0, 1, 2, 3]),
    ],
)
def test_a_pattern_takes_the_modules_it_matches_and_what_is_inside(pattern: str, which: list[int]) -> None:
    chosen = Selection(include=(pattern,))
    assert [i for i, path in enumerate(MODULES) if chosen.allows(path)] == which
    others = Selection(exclude=(pattern,))
    assert [i for i, path in enumerate(MODULES) if not others.allows(path)] == which


@pytest.mark.parametrize("planner", ["swap_all", "swap_greedy", "optimal", "threshold", "tflms", "lms", "capuchin"])
def test_no_planner_moves_what_is_not_selected(planner: str) -> None:
    # given a budget that one storage of four must leave for, two for planners that wait for room
    options = {"size_bytes": 1} if planner in ("threshold", "lms") else {}
    made = plan(net(), machine(), 300, planner, 1, options, include=["layer1"])
    moved = {swap.storage for swap in made.swaps} | {s for each in made.recomputes for s in each.storages}
    assert moved
    assert moved <= {1, 2}
    # and the same by what is left out
    made = plan(net(), machine(), 300, planner, 1, options, exclude=("stem", "head"))
    assert {swap.storage for swap in made.swaps} <= {1, 2}
    assert planner in PLANNERS


def test_a_budget_that_needs_more_than_is_selected_cannot_be_met() -> None:
    with pytest.raises(Infeasible) as caught:
        plan(net(), machine(), 200, "swap_greedy", 1, include="layer1.0")
    # of 400 bytes only 100 may go, and they are back before the second layer's backward frees its own
    assert caught.value.least_feasible_bytes == 300


@pytest.mark.parametrize("knob", ["include", "exclude"])
def test_a_pattern_that_matches_nothing_names_what_is_near(knob: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(net(), machine(), 300, "swap_greedy", 1, **{knob: "layr1.0"})  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == (
        f"{knob}: given 'layr1.0', which no module matches; allowed are globs on paths of modules, such as "
        "'layer1.*'; near are layer1.0, layer1.1, layer1"
    )


def test_modules_that_the_step_does_not_call_are_known_where_they_are_named() -> None:
    Selection(include=("judge",), known=frozenset({"Judge", "GAN.judge.0"})).check(["GAN.maker"])


@pytest.mark.parametrize("given", [3, ["layer1", 3], [""], None])
def test_patterns_are_texts(given: object) -> None:
    with pytest.raises(UsageError, match="allowed is a glob on paths of modules"):
        plan(net(), machine(), 300, "swap_greedy", 1, include=given)  # pyright: ignore[reportArgumentType]
