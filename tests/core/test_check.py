"""check: what a plan may not do, and what it is told then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.errors import InvalidPlan, UsageError
from elbowroom.machine import Machine, Tier
from elbowroom.plan import Plan, Swap
from elbowroom.planners import check
from elbowroom.trace import Category, Trace
from tests.core.build import Build, chain, machine


def one_swap(
    trace: Trace, storage: int = 1, out: int = 1, back: int = 4, budget: int = 10**6, swaps: tuple[Swap, ...] = ()
) -> Plan:
    """By default a swap of storage 1 of chain([100, 100, 100]): saved at 2, idle from 2, read back at 4."""
    swap = Swap(storage=storage, tier="disk", out_after_op=out, back_before_op=back)
    return Plan(trace_id=trace.id, planner="by hand", budget_bytes=budget, swaps=(*swaps, swap))


def refusal(trace: Trace, plan: Plan, on: Machine | None = None) -> str:
    with pytest.raises(InvalidPlan) as caught:
        check(trace, plan, on)
    return str(caught.value)


def test_a_plan_that_may_run_passes() -> None:
    trace = chain([100, 100, 100])
    check(trace, one_swap(trace), machine())
    check(trace, Plan(trace_id=trace.id, planner="keep_all", budget_bytes=300), machine())


def test_a_plan_for_another_trace_is_refused() -> None:
    trace = chain([100, 100, 100])
    plan = replace(one_swap(trace), trace_id="other")
    assert refusal(trace, plan) == (
        f"the plan was made for trace 'other', this is trace '{trace.id}'; "
        "plan again with elbowroom.plan for this trace"
    )


def test_an_unknown_storage_is_refused() -> None:
    trace = chain([100, 100, 100])
    assert "storage 9 must be kept: the trace has only storages 0 to 2" in refusal(trace, one_swap(trace, storage=9))


def test_a_storage_of_an_earlier_step_is_refused() -> None:
    trace = chain([100, 100, 100], steps=2)
    assert "autograd does not save it in the last step (ops 6 to 11)" in refusal(trace, one_swap(trace))


def test_a_refusal_names_the_storage_its_size_its_maker_and_the_remedy() -> None:
    trace = chain([100, 100, 100])
    assert refusal(trace, one_swap(trace, back=6)) == (
        "storage 1 (100 B, activation, made by op 1 forward in 'net' (forward)) must be kept: "
        "back_before_op 6 is after its first read at position 4; leave it out of the plan's swaps"
    )


@pytest.mark.parametrize("category", ["parameter", "buffer", "input", "optimizer_state", "gradient"])
def test_what_the_user_or_the_optimizer_holds_may_not_move(category: Category) -> None:
    trace = chain([100, 100, 100])
    storages = tuple(replace(storage, category=category) for storage in trace.storages)
    trace = replace(trace, storages=storages)
    assert f"its category is '{category}'; only activation, temporary, workspace may move" in refusal(
        trace, one_swap(trace)
    )


def test_a_storage_that_is_never_idle_is_refused() -> None:
    trace = chain([100, 100, 100])
    trace = replace(trace, saves=tuple(replace(save, idle_from=None) for save in trace.saves))
    assert "something other than autograd holds it" in refusal(trace, one_swap(trace))


def test_a_storage_saved_twice_in_a_step_is_refused() -> None:
    trace = chain([100, 100, 100])
    again = replace(trace.saves[1], saved_at=3, idle_from=3)
    trace = replace(trace, saves=(*trace.saves, again))
    assert "autograd saved it more than once" in refusal(trace, one_swap(trace))


def test_leaving_before_it_is_saved_is_refused() -> None:
    trace = chain([100, 100, 100])
    assert "out_after_op 0 is before autograd saves it; allowed is 1" in refusal(trace, one_swap(trace, out=0))
    assert "out_after_op 2 is too late; allowed is 1" in refusal(trace, one_swap(trace, out=2))


def test_coming_back_where_the_runtime_has_no_control_is_refused() -> None:
    # given a chain with an op between the last forward and the first backward op: position 4 is no tick
    build = Build()
    first, second = (build.save(build.op(make=100)) for _ in range(2))
    build.op()
    build.op()
    build.read(second)
    build.op()
    build.read(first)
    build.op()
    trace = build.trace()

    said = refusal(trace, one_swap(trace, storage=first, out=0, back=3))
    assert "back_before_op 3 is not a position at which autograd saves or reads a storage" in said


def test_coming_back_before_it_is_idle_is_refused() -> None:
    trace = chain([100, 100, 100])
    said = refusal(trace, one_swap(trace, back=2))
    assert "back_before_op 2 is not after position 2, from which it is idle" in said


def test_an_op_that_uses_the_storage_while_it_is_away_is_refused() -> None:
    # given op 2 reads storage 1, which the trace calls idle from position 2
    trace = chain([100, 100, 100])
    ops = (*trace.ops[:2], replace(trace.ops[2], reads=(1,)), *trace.ops[3:])
    trace = replace(trace, ops=ops)
    said = refusal(trace, one_swap(trace))
    assert "op 2 forward in 'net' (forward) uses it while it is away in [2, 4)" in said


def test_a_storage_written_in_place_after_it_was_saved_is_refused() -> None:
    # given op 2 writes storage 1 before it is idle, from position 3
    trace = chain([100, 100, 100])
    ops = (*trace.ops[:2], replace(trace.ops[2], writes=(*trace.ops[2].writes, 1)), *trace.ops[3:])
    saves = (trace.saves[0], replace(trace.saves[1], idle_from=3), trace.saves[2])
    trace = replace(trace, ops=ops, saves=saves)
    said = refusal(trace, one_swap(trace))
    assert "it is written in place by op 2 forward in 'net' (forward) after it was saved" in said


def test_a_write_after_the_first_read_is_allowed() -> None:
    trace = chain([100, 100, 100])
    ops = (*trace.ops[:4], replace(trace.ops[4], writes=(1,)), *trace.ops[5:])
    trace = replace(trace, ops=ops)
    check(trace, one_swap(trace))


def test_a_storage_never_read_back_comes_back_at_the_end_of_the_step() -> None:
    trace = chain([100, 100, 100])
    saves = (trace.saves[0], replace(trace.saves[1], read_at=()), trace.saves[2])
    ops = (*trace.ops[:4], replace(trace.ops[4], reads=()), *trace.ops[5:])
    trace = replace(trace, ops=ops, saves=saves)
    check(trace, one_swap(trace, back=6))
    assert "it is never read back, so back_before_op must be 6" in refusal(trace, one_swap(trace, back=4))


def test_a_plan_above_its_budget_is_refused() -> None:
    # given storage 1 away from position 2 to 4: op 2 holds storages 0 and 2 (200), op 3 too, op 1 the first two
    trace = chain([100, 100, 100])
    check(trace, one_swap(trace, budget=200))
    assert refusal(trace, one_swap(trace, budget=199)) == (
        "the plan holds 200 B (200 bytes) at op 1 forward in 'net' (forward), above its budget of "
        "199 B (199 bytes); raise the budget or swap more there"
    )


def test_a_tier_that_is_too_small_is_refused() -> None:
    # given a swap of 100 bytes, which stay on the disk until storage 1 is freed
    trace = chain([100, 100, 100])
    check(trace, one_swap(trace), machine(disk=100))
    said = refusal(trace, one_swap(trace), machine(disk=99))
    assert "the plan puts up to 100 B (100 bytes) on 'disk', which holds 99 B (99 bytes) on machine 'test'" in said


def test_a_tier_that_the_machine_lacks_is_refused() -> None:
    trace = chain([100, 100, 100])
    bare = Machine(name="bare", tiers=(Tier(name="device", capacity_bytes=1000),), links=())
    said = refusal(trace, one_swap(trace), bare)
    assert "the plan swaps to 'disk', which machine 'bare' does not link to its device" in said


def test_a_trace_without_ops_in_its_last_step_cannot_be_planned_for() -> None:
    trace = Build().trace()
    with pytest.raises(UsageError, match="capture at least one whole training step"):
        check(trace, Plan(trace_id=trace.id, planner="keep_all", budget_bytes=0))
