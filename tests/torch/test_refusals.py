"""The least budget that a training of several kinds of steps is refused with."""

from __future__ import annotations

from elbowroom.errors import Infeasible
from elbowroom.run.refusals import Refusals, with_others


def refused(least_feasible_bytes: int) -> Infeasible:
    return Infeasible("no plan.", budget_bytes=10, least_feasible_bytes=least_feasible_bytes)


def test_a_kind_of_step_alone_names_what_it_needs() -> None:
    # given one kind, which is refused twice
    refusals, first = Refusals(), refused(2000)
    refusals.note("kind", 2000)
    refusals.note("kind", 3000)
    # then its own refusals do not count
    assert refusals.others_bytes("kind") == 0
    assert with_others(first, 0) is first


def test_what_another_kind_needs_counts_with_one_part_in_a_hundred_more() -> None:
    # given another kind that needs 4000 bytes
    refusals = Refusals()
    refusals.note("another", 4000)
    # when
    found = with_others(refused(3000), refusals.others_bytes("kind"))
    # then that is 4000 bytes and 40
    assert found.least_feasible_bytes == 4040
    assert found.budget_bytes == 10
    assert str(found) == "no plan.\nAnother kind of step of this training needs 3.9 KiB (4040 bytes). Give that."


def test_a_kind_that_needs_most_names_its_own_need() -> None:
    largest, refusals = refused(5000), Refusals()
    refusals.note("another", 4000)
    assert with_others(largest, refusals.others_bytes("kind")) is largest
