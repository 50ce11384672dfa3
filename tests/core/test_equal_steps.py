"""Equal steps end early where a step lays its blocks out as the one before."""

from __future__ import annotations

from functools import partial

import pytest

from elbowroom.simulate import reserved_curve
from elbowroom.simulate.curves import away_points
from elbowroom.simulate.lanes import play
from elbowroom.simulate.reserved_curve import AllocatorUse, EqualSteps, Played, equal_steps
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of_plan, tiers_of_plan
from tests.fuzz.cases import Case, case

STEPS = 6
EXPANDABLE = "expandable_segments:True"
PAGES = "expandable_segments:True,large_segment_size_mb:12"


def steps_of(drawn: Case, settings: str) -> EqualSteps:
    """Equal steps of a random plan of swaps and recomputes."""
    step = last_step(drawn.trace)
    moves = moves_of_plan(step, drawn.plan)
    done = play(step, moves, drawn.machine, tiers_of_plan(step, drawn.plan, moves))
    return equal_steps(step, moves, away_points(step, moves, done), AllocatorUse(settings), STEPS)


def shown(found: Played | None) -> object:
    return found and (found.allocated.tolist(), found.reserved.tolist(), found.most_reserved, found._driven)


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
