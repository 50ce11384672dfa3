"""A training within a budget on the CUDA build of PyTorch: what the allocator holds beside what the plan says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.on_rig import said
from tests.fakecuda import FIXED, PAGES, SHARED
from tests.fakecuda.rig import rig_folder

MIB = 2**20
MODELS = (
    "perceptron", "residual net", "residual net in bfloat16", "perceptron in micro-batches", "vgg",
    "separable convolutions", "autoencoder", "volume net", "language model", "language model in bfloat16",
    "vision transformer", "recurrent net", "dense net", "adversarial nets",
    "plane net",
)  # fmt: skip
PAGE = 12 * MIB
"""Page of the expandable segments of a run: what is reserved is simulated to the page, what is allocated to 1 MiB."""
SHARES = (0.9, 0.7, 0.5)
"""Budgets, of what plain training reserves."""


@pytest.fixture
def rig() -> Path:
    folder = rig_folder()
    if folder is None:
        pytest.skip("ELBOWROOM_RIG is not set: no rig with the CUDA build of PyTorch")
    return folder


def on_the_rig(
    rig: Path,
    spec: dict[str, Any],
    script: str = "within.py",
    backing_bytes: int = 0,
    workspace_bytes: int = 0,
    allocator: Mapping[str, str] = FIXED,
) -> dict[str, Any]:
    """What a script of this folder says; copies are real where device memory has some backing.

    The workspace is that of every convolution that cuDNN carries out. All threads share one of cuBLAS: the budgets of
    these tests were chosen so. `allocator` is what the user chose; empty for nothing, so that a run has expandable
    segments.
    """
    variables = {"FAKECUDA_BACKING": str(backing_bytes), "FAKECUDNN_WORKSPACE": str(workspace_bytes), **allocator}
    variables |= SHARED
    return said(rig, str(Path(__file__).with_name(script)), spec=spec, variables=variables)


@cache
def outcomes_of(script: str, cases: tuple[str, ...], rig: Path) -> dict[str, dict[str, Any]]:
    """Of all cases of a script, in one process one after the other: what one left would be in the way of the next."""
    return on_the_rig(rig, {"cases": cases}, script)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("model", MODELS)
def test_the_allocator_holds_what_the_simulation_says_and_no_more_than_the_budget(rig: Path, model: str) -> None:
    # given what plain training holds, with segments of a fixed size
    plain = on_the_rig(rig, {"model": model, "shares": (), "steps": 6}, allocator={})["plain"]
    # when it trains within three budgets, with expandable segments, each in a process of its own
    found = [
        on_the_rig(rig, {"model": model, "plain": plain, "shares": [share], "steps": 6}, allocator=PAGES)["runs"][0]
        for share in SHARES
    ]
    # then
    for run in found:
        if "least_feasible_bytes" in run:
            assert run["least_feasible_bytes"] > run["share"] * plain["reserved"]
            assert "plan" in run["at_least"], "the least that is named can be met"
        else:
            # expandable segments alone may hold a large part of what fixed ones reserve
            assert run["plan"]["swaps"] > 0 or run["share"] > SHARES[-1]
        assert_as_simulated(run.get("at_least", run), page_bytes=PAGE)
    assert any("plan" in run for run in found), "one of the budgets can be met"


@pytest.mark.timeout(0)
@pytest.mark.parametrize("model", ["vgg", "autoencoder"])
def test_the_budget_holds_if_the_model_lies_in_segments_of_a_fixed_size(rig: Path, model: str) -> None:
    # given a model that was made before the run, whose segments the run's pages cannot join
    found = on_the_rig(rig, {"model": model, "shares": SHARES, "steps": 8}, allocator={})
    # when the first plans hold more than they say
    met = [run.get("at_least", run) for run in found["runs"]]
    # then later ones keep within the budget, by the allocator's limit if no plan holds less
    for run in met:
        assert all(step["reserved"] <= run["budget_bytes"] for step in run["steps"][-2:])
        assert [figures["mismatches"] for figures in run["figures"][-3:]] == [0, 0, 0]
        assert run["after"]["host"] == 0


@pytest.mark.timeout(0)
def test_small_storages_move_where_the_budget_is_small(rig: Path) -> None:
    # when all that may move is below 1 MiB, and no least size is given
    found = on_the_rig(rig, {"model": "small storages", "shares": (0.75, 0.6), "steps": 6})
    # then plans move it, and hold what they say; what is too little names a budget that is met so
    for run in found["runs"]:
        met = run.get("at_least", run)
        assert met["plan"]["swaps"] > 100
        assert met["budget_bytes"] < found["plain"]["reserved"] * 0.8
        assert_as_simulated(met)


def assert_as_simulated(run: dict[str, Any], page_bytes: int = MIB) -> None:
    """Peaks are as simulated to 1 % and 1 MiB; reserved bytes of expandable segments to 1 % and a page."""
    last, simulated = run["steps"][-1], run["simulated"]
    for kind in ("allocated", "reserved"):
        allowed = 0.01 * simulated[kind] + (page_bytes if kind == "reserved" else MIB)
        assert abs(last[kind] - simulated[kind]) <= allowed, f"{kind}: {last[kind]}, simulated {simulated[kind]}"
    assert last["reserved"] <= run["budget_bytes"]
    assert [figures["mismatches"] for figures in run["figures"]] == [0] * len(run["figures"])
    assert run["plan"]["states"] or last["held"] == 0
    assert run["after"]["host"] == 0, "all host memory is given back"


@pytest.mark.timeout(0)
@pytest.mark.parametrize("model", ["residual net", "separable convolutions"])
def test_the_allocator_holds_what_the_simulation_says_where_storages_are_recomputed(rig: Path, model: str) -> None:
    # when it trains with recomputes alone: observed twice, calls recorded, proven twice
    spec = {"model": model, "shares": (0.85,), "steps": 8, "options": {"allow": ["recompute"]}}
    (run,) = on_the_rig(rig, spec)["runs"]
    # then
    assert run["recomputed"][-1] > 0
    assert run["figures"][-1] == {"out": 0, "back": 0, "mismatches": 0}
    for kind in ("allocated", "reserved"):
        measured, simulated = run["steps"][-1][kind], run["simulated"][kind]
        assert abs(measured - simulated) <= simulated / 100 + MIB, kind
    assert max(step["reserved"] for step in run["steps"][3:]) <= run["budget_bytes"]
