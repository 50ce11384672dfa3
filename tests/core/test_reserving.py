"""Reserved bytes in `optimal`: what a trial reserves, and the least budget that is named."""

from __future__ import annotations

from dataclasses import replace

from elbowroom.planners import plan
from elbowroom.planners.optimal.reserved_trials import reserved_bytes
from elbowroom.planners.optimal.rough_trials import pool_of
from elbowroom.planners.optimal.trial import tried
from elbowroom.simulate.simulate import simulate
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


def test_the_least_budget_named_is_the_same_whatever_was_asked_for() -> None:
    trace = chain([mib * 2**20 for mib in (40, 3, 30, 8, 14, 25)], base=2**20, temporary=9 * 2**20)
    caching = replace(machine(), allocator="")
    least = infeasible_at(trace, caching, 0)

    # then it can be met, and smaller budgets that cannot name it again
    assert simulate(trace, caching, plan(trace, caching, least, "optimal")).peak_reserved_bytes <= least
    for budget in (1, least // 3, least // 2):
        assert infeasible_at(trace, caching, budget) == least
