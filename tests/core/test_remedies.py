"""What a refusal says would help, each of which is planned with here again."""

from __future__ import annotations

import re

import pytest

from elbowroom.errors import Infeasible
from elbowroom.planners import plan
from elbowroom.planners.budget.remedies import scaled
from tests.core.test_planners import chain, machine


def refused(sizes: list[int], budget: int, base: int = 0, min_size: int = 1) -> Infeasible:
    with pytest.raises(Infeasible) as found:
        plan(chain(sizes, base=base), machine(), budget, "swap_greedy", min_size=min_size, allow=("swap",))
    return found.value


def test_a_scaled_trace_has_smaller_activations_and_the_same_weights() -> None:
    trace = chain([100, 40, 60], base=10, temporary=50)
    half = scaled(trace, 0.5)
    pairs = list(zip(trace.storages, half.storages, strict=True))
    assert {(a.size_bytes, b.size_bytes) for a, b in pairs} == {(10, 10), (100, 50), (40, 20), (60, 30), (50, 25)}
    assert all(half.storages[s].size_bytes == abs(size) for _, s, size in half.events)


def test_the_batch_that_is_named_meets_the_budget() -> None:
    # given 100 bytes of weights and layers of 400, so that a budget of 300 leaves 200 for what shrinks
    problem = refused([400, 400, 400], 300, base=100)
    named = re.search(r"A batch or an input (0\.\d\d) times as large meets this budget", str(problem))
    assert named is not None, str(problem)
    share = float(named[1])
    # then that share fits, and one a little larger does not
    trace = chain([400, 400, 400], base=100)
    plan(scaled(trace, share), machine(), 300, "swap_greedy", min_size=1, allow=("swap",))
    with pytest.raises(Infeasible):
        plan(scaled(trace, share + 0.06), machine(), 300, "swap_greedy", min_size=1, allow=("swap",))


def test_where_weights_alone_are_too_much_no_batch_is_named() -> None:
    problem = refused([400, 400, 400], 90, base=100)
    assert "meets this budget" not in str(problem)
    assert re.search(r"With a batch or an input 8 times smaller it would still be [^\n]* bytes\)\.", str(problem))


def test_a_smaller_least_size_is_named_where_it_helps() -> None:
    # given layers of 400 bytes, of which none may move where 1,600 are the least
    problem = refused([400, 400, 400, 400], 900, min_size=1600)
    named = re.search(r"with 100 B it is [^\n]*\((\d+) bytes\)", str(problem))
    assert named is not None, str(problem)
    assert int(named[1]) < problem.least_feasible_bytes
    plan(chain([400] * 4), machine(), int(named[1]), "swap_greedy", min_size=100, allow=("swap",))
    # and where all may move already, none is
    assert "least size" not in str(refused([400, 400, 400, 400], 300))


def test_lines_of_a_refusal_are_short() -> None:
    problem = refused([400, 400, 400], 90, base=100)
    assert max(map(len, str(problem).splitlines())) <= 100
