"""The optimal planner on a machine with a disk behind its host: what the host cannot hold goes on to the disk."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.errors import Infeasible
from elbowroom.machine import Link, Machine, Tier
from elbowroom.planners import check, plan
from elbowroom.simulate.simulate import simulate
from tests.core.build import chain

pytestmark = pytest.mark.long


def two_tiers(host: int, disk: int = 10**6, rate: int = 10**9) -> Machine:
    """A host of so many bytes, and a disk behind it, over links of one rate; at the default one byte takes 1 ns."""
    return Machine(
        name="two tiers",
        tiers=(
            Tier(name="device", capacity_bytes=10**6),
            Tier(name="host", capacity_bytes=host),
            Tier(name="disk", capacity_bytes=disk),
        ),
        links=(
            Link(upper="device", lower="host", out_bytes_per_s=rate, back_bytes_per_s=rate, latency_ns=0),
            Link(upper="host", lower="disk", out_bytes_per_s=rate, back_bytes_per_s=rate, latency_ns=0),
        ),
    )


def test_what_the_host_cannot_hold_goes_on_to_the_disk() -> None:
    # given 6 layers of 100 bytes, one of which is on the device, and a host for 300 bytes
    trace, on = chain([100] * 6, ns=1000), two_tiers(300)

    made = plan(trace, on, "100B,host=300B", "optimal", min_size=1, allow=("swap",))

    # then all but the last, which is read at once, are swapped, and what is idle longest, the first ones, goes to the
    # disk: 100 bytes of the host are left for what passes through, so that 2 stay there
    check(trace, made, on)
    assert [swap.tier for swap in made.swaps] == ["disk"] * 3 + ["host"] * 2
    assert made.bound is not None
    assert made.bound.step_ns == simulate(trace, on, made).step_ns >= made.bound.lower_bound_ns

    # and a host for all of them keeps them
    roomy = plan(trace, two_tiers(600), "100B,host=600B", "optimal", min_size=1, allow=("swap",))
    assert {swap.tier for swap in roomy.swaps} == {"host"}


def test_without_a_disk_the_host_bounds_what_can_move() -> None:
    # given the same without a disk: 3 of 6 layers may go
    on = two_tiers(300)
    bare = Machine(name="bare", tiers=on.tiers[:2], links=on.links[:1])
    with pytest.raises(Infeasible):
        plan(chain([100] * 6, ns=1000), bare, 100, "optimal", min_size=1, allow=("swap",))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=10),
    st.integers(60, 300),
    st.integers(150, 600),
    st.sampled_from([10**7, 10**9, 10**10]),
    st.integers(0, 100),
)
def test_plans_over_two_tiers_hold(sizes: list[int], host: int, disk: int, rate: int, percent: int) -> None:
    # given any rooms and a budget
    trace, on = chain(sizes), two_tiers(host, disk, rate)
    budget = max(sizes) + (sum(sizes) - max(sizes)) * percent // 100
    try:
        made = plan(trace, on, budget, "optimal", min_size=1, allow=("swap",))
    except Infeasible as problem:
        made = plan(trace, on, max(budget, problem.least_feasible_bytes), "optimal", min_size=1, allow=("swap",))

    # then no tier holds more than it has, and the step takes no less than its bound
    check(trace, made, on)
    assert made.bound is not None
    assert simulate(trace, on, made).step_ns == made.bound.step_ns >= made.bound.lower_bound_ns
