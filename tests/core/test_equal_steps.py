"""Equal steps end early where a step lays its blocks out as the one before; MiB stands for 2**20 bytes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from elbowroom.planners.problem import moves_on_demand
from elbowroom.simulate import reserved_curve
from elbowroom.simulate.curves import away_points
from elbowroom.simulate.lanes import play
from elbowroom.simulate.reserved_curve import AllocatorUse, EqualSteps, Played, equal_steps
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of_plan, tiers_of_plan
from tests.core.build import Build
from tests.fuzz.cases import Case, case

MIB = 2**20
STEPS = 6
EXPANDABLE = "expandable_segments:True"
PAGES = "expandable_segments:True,large_segment_size_mb:12"


def steps_of(drawn: Case, settings: str) -> EqualSteps:
    """Equal steps of a random plan of swaps and recomputes."""
    step = last_step(drawn.trace)
    moves = moves_of_plan(step, drawn.plan)
    done = play(step, moves, drawn.machine, tiers_of_plan(step, drawn.plan, moves))
    return equal_steps(step, moves, away_points(step, moves, done), AllocatorUse(settings), STEPS)


def shown(found: Played | int | None) -> object:
    if not isinstance(found, Played):
        return found
    return found.allocated.tolist(), found.reserved.tolist(), found.most_reserved, found._driven


@pytest.mark.parametrize("settings", ["", EXPANDABLE, PAGES])
def test_a_step_that_lays_out_blocks_as_the_one_before_is_every_later_one(
    settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the caching cases among some random ones, whose storages are parts of MiB
    seeds = [seed for seed in range(120) if case(seed).is_caching]
    assert len(seeds) > 10
    for seed in seeds:
        steps = steps_of(case(seed), settings)
        most = steps.played().most_reserved
        asks = [steps.played, *(partial(steps.within, int(share * most)) for share in (0.5, 0.8, 1.0))]
        # when
        early = [shown(ask()) for ask in asks]
        with monkeypatch.context() as patch:
            patch.setattr(reserved_curve, "_layout", lambda *_: object())  # no layout is ever that of the step before
            whole = [shown(ask()) for ask in asks]
        # then
        assert early == whole, seed


def test_what_is_above_a_limit_is_what_its_requests_raise_it_by() -> None:
    # given 30 MiB for a moment, and then 40, beside 12 of parameters: 52 are enough, one after the other
    build = Build()
    parameter = build.storage(12 * MIB, "parameter")
    build.op(temporary=30 * MIB)
    build.save(parameter, idle=False)
    build.op(temporary=40 * MIB)
    step = last_step(build.trace())
    moves = moves_on_demand(step, np.zeros(0, np.int64))
    none = step.point_of[:0]
    steps = equal_steps(step, moves, (none, none, none), AllocatorUse(""))
    # then
    met = steps.above(52 * MIB)
    assert isinstance(met, Played)
    assert met.most_reserved == 52 * MIB
    assert steps.above(45 * MIB) == 7 * MIB
    assert steps.above(41 * MIB) == 11 * MIB
