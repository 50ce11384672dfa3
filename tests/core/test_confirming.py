"""Which budgets of allocated bytes are tried where the budget counts reserved ones."""

from __future__ import annotations

from dataclasses import replace

import elbowroom as er
from elbowroom.planners.budget.reserved_search import Descending, Look, Narrowing, lowest, search
from elbowroom.simulate.simulate import simulate
from tests.core.build import chain, machine


def test_a_budget_is_narrowed_to_the_most_that_works() -> None:
    # given that 700 bytes work and 701 do not
    narrowing, tried = Narrowing(1000, 100), list[int]()
    # when
    while not narrowing.is_over:
        tried.append(narrowing.allowed_bytes)
        if tried[-1] <= 700:
            narrowing.more()
        else:
            narrowing.less(Look(fits=False), has_fit=min(tried) <= 700)
    # then by a quarter of what is above the least: 1000, 1000 - 225, 775 - 168; then by halves
    assert tried[:4] == [1000, 775, 607, (607 + 775) // 2]
    assert max(each for each in tried if each <= 700) == 700


def test_a_lowest_limit_is_as_close_as_asked_for() -> None:
    assert lowest(lambda limit: limit >= 617, 0, 1000, 1) == 617
    assert 617 <= lowest(lambda limit: limit >= 617, 0, 1000, 50) <= 667
    assert 617 <= lowest(lambda limit: limit >= 617, 0, 1000, 1, 0.1) <= 617 / 0.9


def test_a_baseline_swaps_no_more_than_the_reserved_bytes_ask_for() -> None:
    # given twelve storages of 40 MiB, each with segments of its own
    trace = chain([40 * 2**20] * 12, ns=10**8)
    gpu = replace(machine(out=10**9, back=10**9), allocator="")
    peak = simulate(trace, gpu).peak_reserved_bytes
    # when
    plans = [er.plan(trace, gpu, share * peak // 100, "swap_greedy") for share in (90, 70, 50)]
    # then
    assert [len(plan.swaps) for plan in plans] == sorted({len(plan.swaps) for plan in plans})
    assert len(plans[0].swaps) < 5


def test_a_run_goes_down_by_a_twelfth_to_the_first_plan_that_fits() -> None:
    # given that 840 bytes fit
    tried: list[int] = []

    def look(allowed_bytes: int) -> Look:
        tried.append(allowed_bytes)
        return Look(fits=allowed_bytes <= 840)

    # when
    search(Descending(1000), look, 10)
    # then
    assert tried == [1000, 1000 - 83, 917 - 76, 841 - 70]


def test_a_run_ends_at_the_least_that_can_be_planned_for() -> None:
    # given that nothing fits, and 900 bytes can be planned for
    tried: list[int] = []

    def look(allowed_bytes: int) -> Look:
        tried.append(allowed_bytes)
        return Look(fits=False, least_bytes=0 if allowed_bytes >= 900 else 900)

    # when
    search(Descending(1000), look, 10)
    # then
    assert tried == [1000, 917, 841, 900]
