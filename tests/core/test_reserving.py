"""Reserved bytes in `optimal`: what a trial reserves, and the least budget that is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.errors import Infeasible
from elbowroom.planners import asking, plan, requested
from elbowroom.planners.budget.budgets import below_device
from elbowroom.planners.budget.confirm_reserved import replayed
from elbowroom.planners.optimal import optimal
from elbowroom.planners.optimal.leaving import Leaving, Reserving, Scale
from elbowroom.planners.optimal.reserved_trials import is_free, reserved_bytes, reserving
from elbowroom.planners.optimal.rough_trials import Search, Start, pool_of
from elbowroom.planners.optimal.trial import tried
from elbowroom.planners.problem import peak_of
from elbowroom.simulate.simulate import simulate
from elbowroom.step.least_size import least_size
from elbowroom.units import Budget
from tests.core.build import chain, machine
from tests.core.test_optimal import infeasible_at, problem_of


def test_what_a_trial_reserves_is_what_its_simulation_says() -> None:
    # given the same layers, some of them swapped and one recomputed, on an allocator that keeps segments
    trace = chain([mib * 2**20 for mib in (3, 30, 8, 14, 25, 5, 11, 17)], base=2**20, temporary=9 * 2**20)
    caching = replace(machine(), allocator="")
    problem = problem_of(trace, caching, 2**40)
    pool = pool_of(problem)
    bases = [pool.basis(()), pool.basis(pool.options[:1])]
    trials = [tried(basis, basis.on_demand(n)) for basis in bases for n in (basis.n[:0], basis.n[::2], basis.n)]

    # then replaying the trial alone gives the peak of the whole simulation
    for trial in trials:
        line = simulate(trace, caching, replace(trial.plan("optimal"), budget_bytes=2**40))
        assert reserved_bytes(trial) == line.peak_reserved_bytes > 0


def test_a_trial_waits_for_the_driver_below_a_limit_where_its_simulation_does() -> None:
    trace = chain(
        [mib * 2**20 for mib in (72, 160, 148, 44, 104, 132, 160, 28, 12, 132)], base=2**20, temporary=9 * 2**20
    )
    caching = replace(machine(), allocator="expandable_segments:True")
    pool = pool_of(problem_of(trace, caching, 2**50))
    trials = [tried(basis, basis.on_demand(n)) for basis in (pool.basis(()),) for n in (basis.n[::2], basis.n[::3])]

    met = list[tuple[bool, bool]]()
    for trial in trials:
        peak_bytes, most_bytes = peak_of(pool.problem.step, trial.played), reserved_bytes(trial)
        for limit_bytes in range(peak_bytes, most_bytes + 2**20, 2**23):
            found = reserving(trial, limit_bytes)
            played = replayed(trace, caching, trial.plan("optimal"), limit_bytes)
            assert (found.over_bytes == 0, found.waits_ns > 0) == (played.fits, played.fits and played.is_driven)
            assert is_free(trial, limit_bytes) == played.is_free
            met.append((played.fits, played.is_driven))

    # then there were limits of each kind: too low, with waits, and without
    assert {(True, True), (True, False)} <= set(met)
    assert any(not fits for fits, _ in met)


def test_a_plan_with_waits_for_the_driver_is_found_where_none_is_without() -> None:
    trace = chain([mib * 2**20 for mib in (40, 3, 30, 8, 14, 25)], base=2**20, temporary=9 * 2**20)
    caching = replace(machine(), allocator="")
    least = infeasible_at(trace, caching, 0)

    for budget_bytes in (least, least + 2**21):
        made = plan(trace, caching, budget_bytes, "optimal")
        played = replayed(trace, caching, made, budget_bytes)
        assert made.bound is not None
        assert (played.fits, played.step_ns) == (True, made.bound.step_ns)


def test_the_least_budget_named_is_the_same_whatever_was_asked_for() -> None:
    trace = chain([mib * 2**20 for mib in (40, 3, 30, 8, 14, 25)], base=2**20, temporary=9 * 2**20)
    caching = replace(machine(), allocator="")
    least = infeasible_at(trace, caching, 0)

    # then it can be met, and smaller budgets that cannot name it again
    assert simulate(trace, caching, plan(trace, caching, least, "optimal")).peak_reserved_bytes <= least
    for budget in (1, least // 3, least // 2):
        assert infeasible_at(trace, caching, budget) == least


def test_where_no_rung_is_within_the_budget_the_search_goes_on_from_what_reserves_least() -> None:
    # given an allocator that has room for few swaps at once, or for none but those of one trial
    trace = chain([mib * 2**20 for mib in (40, 3, 30, 8, 14, 25)], base=2**20, temporary=9 * 2**20)
    problem = problem_of(trace, replace(machine(), allocator=""), 100 * 2**20)
    scale = Scale(pool_of(problem))
    choice = scale.brought_within(scale.estimated(Leaving(frozenset(), frozenset(scale.swappable))))
    least: Start = (scale, choice)

    def over(trial: object) -> Reserving:
        return Reserving(0 if trial is choice.trial else 50 * 2**20, 0)

    def found(frugalest: Start | None) -> list[Start]:
        budget_bytes = problem.budget_bytes
        return Search(problem).annealed_within(budget_bytes, budget_bytes, over, 0, lambda: frugalest)

    # then that trial is among those that are found; if it needs far more, there are none
    assert any(each.trial is choice.trial and not each.over_bytes for _, each in found(least))
    assert found(None) == []


def test_a_refusal_looks_once_for_what_reserves_least(monkeypatch: pytest.MonkeyPatch) -> None:
    # given large layers and small ones, which may move within a budget of nothing, but not within the least
    sizes = [kib * 2**10 for kib in (8, 30 * 1024, 8, 44 * 1024, 8, 25 * 1024)]
    trace = chain(sizes, base=400 * 2**20, temporary=9 * 2**20)
    caching = replace(machine(), allocator="")
    looked, frugalest = list[int](), optimal.frugalest

    def noted(*given: object) -> object:
        looked.append(1)
        return frugalest(*given)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(optimal, "frugalest", noted)
    ask = asking(trace, caching, below_device(caching, Budget()), requested())
    with pytest.raises(Infeasible) as refused:
        ask.plan(1)

    # then the least that is named is met, with the least size that follows it
    least = refused.value.least_feasible_bytes
    assert len(looked) == 1
    assert least_size(least) > least_size(1)
    assert simulate(trace, caching, ask.plan(least)).peak_reserved_bytes <= least
