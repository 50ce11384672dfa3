"""The least budget that a training of several kinds of steps is told."""

from __future__ import annotations

from elbowroom.errors import Infeasible
from elbowroom.run.refusals import Verdicts


def refused(least_feasible_bytes: int) -> Infeasible:
    return Infeasible("no plan.", budget_bytes=10, least_feasible_bytes=least_feasible_bytes)


def test_a_kind_of_step_alone_is_told_what_it_needs() -> None:
    # given
    verdicts, first, second = Verdicts(), refused(2000), refused(3000)
    # then also where it is planned for again
    assert verdicts.refused("kind", first) is first
    assert verdicts.refused("kind", second) is second
    assert verdicts.refused("kind", first) is first


def test_what_another_kind_needs_counts_with_one_part_in_a_hundred_more() -> None:
    # given another kind that needs 4000 bytes
    verdicts = Verdicts()
    verdicts.refused("another", refused(4000))
    # when
    found = verdicts.refused("kind", refused(3000))
    # then that is 4000 bytes and 40
    assert found.least_feasible_bytes == 4040
    assert found.budget_bytes == 10
    assert str(found) == "no plan. Another kind of step of this training needs 3.9 KiB (4040 bytes): give that."


def test_a_kind_that_needs_most_is_told_that_alone() -> None:
    verdicts, largest = Verdicts(), refused(5000)
    verdicts.refused("another", refused(4000))
    assert verdicts.refused("kind", largest) is largest
