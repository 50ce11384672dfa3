"""Recomputes and algorithms: bytes, times and refusals by hand arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.errors import InvalidPlan
from elbowroom.machine import Machine
from elbowroom.plan import Algorithm, Plan, Recompute, Swap
from elbowroom.planners import check
from elbowroom.simulate.simulate import simulate
from elbowroom.step.algorithms import with_algorithms
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of_plan, need
from elbowroom.timeline import Timeline
from elbowroom.trace import Choice, Trace
from tests.core.build import Build, machine


def linked(sizes: tuple[int, ...] = (100, 60, 40), temporary: int = 0) -> Trace:
    """Op i of forward reads what op i - 1 made, makes and saves storage i + 1; backward reads them from the last on.

    Storage 0 is 10 bytes of parameters. Forward is ops 0 to n - 1 of 10 ns, backward n to 2 n - 1. Storage i + 1 is
    idle from position i + 2, when the next op has read it.
    """
    build = Build()
    made = [build.storage(10, "parameter")]
    for size in sizes:
        made.append(build.save(build.op("forward", 10, make=size, reads=(made[-1],), temporary=temporary)))
        if len(made) > 2:
            build.idle(made[-2])
    build.phase = "backward"
    for storage in reversed(made[1:]):
        build.read(storage)
        build.op("backward", 10, reads=(storage,))
        build.free(storage)
    return build.trace()


def planned(trace: Trace, *recomputes: Recompute, swaps: tuple[Swap, ...] = (), budget: int = 10**9) -> Plan:
    return Plan(trace_id=trace.id, planner="by hand", budget_bytes=budget, swaps=swaps, recomputes=recomputes)


def again(*storages: int, recipe: tuple[int, ...], before: int) -> Recompute:
    return Recompute(storages=storages, recipe=recipe, before_op=before)


def curve(line: Timeline) -> list[tuple[int, int]]:
    return list(zip(line.curves[0].at_ns, line.curves[0].size_bytes, strict=True))


def refusal(trace: Trace, plan: Plan) -> str:
    with pytest.raises(InvalidPlan) as caught:
        check(trace, plan, machine())
    return str(caught.value)


def test_a_recipe_runs_before_the_read_and_its_bytes_are_there_from_then_on() -> None:
    # given storages 1 to 3 of 100, 60 and 40 bytes on 10 of parameters, and storage 2 dropped, rebuilt before op 4
    trace = linked()
    line = simulate(trace, machine(), planned(trace, again(2, recipe=(1,), before=4)))

    # then op 1 runs again from 40 to 50, and op 4 from there
    assert [(s.op, s.start_ns, s.end_ns) for s in line.spans if s.kind == "recompute"] == [(1, 40, 50)]
    assert line.step_ns == 70
    assert line.recompute_ns == 10
    assert line.stall_ns == 0
    # op 0: 10 + 100; op 1: 170; op 2: 210; op 3, with storage 2 dropped: 10 + 100 + 40; then storage 3 is freed and
    # the recipe makes 60 again: 170; op 5 after storage 2 is freed: 110
    assert curve(line) == [(0, 110), (10, 170), (20, 210), (30, 150), (40, 170), (60, 110), (70, 10)]
    assert line.peak_allocated_bytes == 210


def test_what_a_recipe_makes_on_its_way_counts_until_its_last_use() -> None:
    # given storages 1 and 2 dropped: 2 is rebuilt with ops 0 and 1 before op 4, 1 with op 0 before op 5
    trace = linked((100, 60, 40))
    plan = planned(trace, again(2, recipe=(0, 1), before=4), again(1, recipe=(0,), before=5))
    line = simulate(trace, machine(), plan)

    # then op 2, without storage 1, holds 10 + 60 + 40 and op 3 10 + 40; op 0 again: 10 + 100; op 1 again:
    # 10 + 100 + 60, and 100 goes; op 4 holds 70; op 0 makes 100 again: 110
    assert curve(line) == [
        (0, 110), (10, 170), (20, 110), (30, 50), (40, 110), (50, 170), (60, 70), (70, 110), (90, 10)
    ]  # fmt: skip
    assert line.step_ns == 90


def test_storages_of_one_recompute_are_rebuilt_together() -> None:
    trace = linked((100, 60, 40))
    line = simulate(trace, machine(), planned(trace, again(1, 2, recipe=(0, 1), before=4)))
    assert curve(line) == [(0, 110), (10, 170), (20, 110), (30, 50), (40, 110), (50, 170), (70, 110), (80, 10)]


def test_scratch_memory_of_a_recipe_is_part_of_the_peak_and_of_the_budget() -> None:
    # given ops that take 500 bytes of scratch memory before they make theirs: at op 2 10 + 100 + 60 + 500 are held
    trace = linked((100, 60, 50), temporary=500)
    first = trace.saves[0].storage
    step = last_step(trace)
    assert step.level.max() == 670

    # when the first one is dropped from position 2 to position 3, op 1 holds 610, op 2 570 and op 0 again, before op 3,
    # 10 + 60 + 50 + 500
    plan = planned(trace, again(first, recipe=(0,), before=3), budget=620)
    assert need(step, moves_of_plan(step, plan)).max() == 620
    check(trace, plan)
    said = refusal(trace, replace(plan, budget_bytes=619))
    assert "the plan holds 620 B (620 bytes)" in said


def test_a_recipe_waits_for_what_it_reads() -> None:
    # given storage 1 swapped, back at position 4 for the recipe of storage 2; a byte takes a nanosecond
    trace = linked((100, 60, 40))
    swap = Swap(storage=1, tier="disk", out_after_op=0, back_before_op=4)
    line = simulate(trace, machine(), planned(trace, again(2, recipe=(1,), before=4), swaps=(swap,)))

    # then its write, 10 to 110, is waited for before op 2, which holds 10 + 60 + 40 and what has not left, where the
    # peak is 10 + 100 + 60; op 4 is reached at 130, and op 1 runs again when storage 1 is back
    assert line.peak_allocated_bytes == 170
    assert [(s.name, s.start_ns, s.end_ns, s.storage) for s in line.spans if s.kind == "stall"] == [
        ("wait for room", 20, 110, 1),
        ("wait for data", 130, 230, 1),
    ]
    assert [(s.op, s.start_ns) for s in line.spans if s.kind == "recompute"] == [(1, 230)]


def test_the_peak_may_be_inside_a_recipe() -> None:
    # given storage 2 rebuilt with both ops before it, while storage 1 is kept: op 0 again makes another 100
    trace = linked((100, 20, 10))
    line = simulate(trace, machine(), planned(trace, again(2, recipe=(0, 1), before=4)))
    # op 1 again holds 10 + 100 (storage 1) + 100 (made again) + 20
    assert line.peak_allocated_bytes == 230
    assert line.at_peak == (("activation", 220), ("parameter", 10))


def test_the_reserved_curve_has_the_recipes() -> None:
    # given 30 MiB a storage on a device with a caching allocator, and storage 2 dropped and rebuilt with both ops
    mib = 2**20
    trace = linked((30 * mib, 30 * mib, 10 * mib))
    cuda = replace(machine(), allocator="")
    plan = planned(trace, again(2, recipe=(0, 1), before=4))

    # then at op 2 there is a segment for each, 30 + 30 + 10, beside one of 2 MiB for the parameters; op 0 again takes
    # the place of storage 2, and op 1 again needs another 30
    line = simulate(trace, cuda, plan)
    assert line.peak_allocated_bytes == 90 * mib + 10
    assert line.peak_reserved_bytes == 102 * mib


@pytest.mark.parametrize(
    ("recompute", "what"),
    [
        (again(9, recipe=(1,), before=4), "autograd does not save it in the last step"),
        (again(0, recipe=(1,), before=4), "autograd does not save it in the last step"),
        (again(2, recipe=(0,), before=4), "no op of its recipe makes storage 2"),
        (again(2, recipe=(1,), before=5), "it is read back before op 4, and its recipe runs before op 5"),
        (again(2, recipe=(1,), before=3), "before_op 3 is not after position 3, from which storage 2 is idle"),
        (again(3, recipe=(1, 2), before=9), "its recipe runs before op 9, and has op 2"),
    ],
)
def test_a_recompute_that_may_not_run_is_refused(recompute: Recompute, what: str) -> None:
    trace = linked()
    said = refusal(trace, planned(trace, recompute))
    assert what in said
    assert said.startswith(f"storage {recompute.storages[0]}")
    assert said.endswith("leave that out of the plan")


def test_an_input_that_is_away_is_refused() -> None:
    # given storage 1 back only for its own read, at position 5
    trace = linked()
    swap = Swap(storage=1, tier="disk", out_after_op=0, back_before_op=5)
    said = refusal(trace, planned(trace, again(2, recipe=(1,), before=4), swaps=(swap,)))
    assert said == (
        "the recipe before op 4 reads storage 1 (100 B, activation, made by op 0 forward in 'net' (forward)), which is "
        "away or not rebuilt yet; keep that one, bring it back before, or leave the recompute out of the plan"
    )


def test_an_input_that_is_rebuilt_later_is_refused_and_one_rebuilt_before_is_not() -> None:
    # given storages 2 and 3, both read at position 3, and 3 made of 2
    build = Build()
    first = build.save(build.op("forward", make=50))
    second = build.save(build.op("forward", make=50, reads=(first,)))
    build.idle(first)
    build.op("forward")
    build.read(first)
    build.read(second)
    build.op("backward")
    trace = build.trace()
    one, other = again(first, recipe=(0,), before=3), again(second, recipe=(1,), before=3)

    check(trace, planned(trace, one, other))
    assert "which is away or not rebuilt yet" in refusal(trace, planned(trace, other, one))


# Algorithms.


def convolving(workspace: int = 50) -> Trace:
    """One op of 10 ns with a workspace that makes 100 bytes, and two more ops."""
    build = Build()
    build.op("convolution", 10, make=100)
    if workspace:
        build.free(build.storage(workspace, "workspace"))
    build.op(make=20)
    trace = build.trace()
    choices = (
        Choice(name="gemm", duration_ns=10, workspace_bytes=workspace),
        Choice(name="fft", duration_ns=4, workspace_bytes=200),
        Choice(name="implicit", duration_ns=30, workspace_bytes=0),
    )
    return replace(trace, ops=(replace(trace.ops[0], choices=choices), *trace.ops[1:]))


def choosing(trace: Trace, name: str, budget: int = 10**6, op: int = 0) -> Plan:
    plan = Plan(trace_id=trace.id, planner="by hand", budget_bytes=budget)
    return replace(plan, algorithms=(Algorithm(op=op, choice=name),))


@pytest.mark.parametrize("workspace", [50, 0])
@pytest.mark.parametrize("allocator", ["exact", ""])
def test_an_algorithm_changes_time_and_workspace(workspace: int, allocator: str) -> None:
    trace, on = convolving(workspace), replace(machine(), allocator=allocator)

    fft, implicit = (simulate(trace, on, choosing(trace, name)) for name in ("fft", "implicit"))

    # then the op takes 4 ns and 100 + 200 bytes, or 30 ns and 100; the second op makes 20 more
    assert (fft.step_ns, fft.peak_allocated_bytes) == (14, 300)
    assert fft.at_peak == (("workspace", 200), ("activation", 100))
    assert (implicit.step_ns, implicit.peak_allocated_bytes) == (40, 120)


def test_a_workspace_counts_in_the_budget() -> None:
    trace = convolving()
    check(trace, choosing(trace, "fft", 300))
    assert "holds 300 B (300 bytes) at op 0 convolution" in refusal(trace, choosing(trace, "fft", 299))


@pytest.mark.parametrize(
    ("name", "op", "what"),
    [
        ("winograd", 0, "op 0 convolution in 'net' (forward) offers gemm, fft, implicit"),
        ("fft", 1, "op 1 aten.op in 'net' (forward) offers no algorithms"),
        ("fft", 7, "op 7 is not in the last step (ops 0 to 1)"),
    ],
)
def test_an_algorithm_that_is_not_offered_is_refused(name: str, op: int, what: str) -> None:
    trace = convolving()
    assert refusal(trace, choosing(trace, name, op=op)) == (
        f"algorithm {name!r} for op {op}: {what}; leave it out of the plan"
    )


def test_a_step_with_the_recorded_algorithms_is_the_step() -> None:
    trace = convolving()
    step = last_step(trace)
    same = with_algorithms(step, (Algorithm(op=0, choice="gemm"),))
    assert same.level.tolist() == step.level.tolist()
    assert same.at_ns.tolist() == step.at_ns.tolist()


def test_a_machine_without_a_lower_tier_can_run_a_plan_that_only_recomputes() -> None:
    trace = linked()
    bare = Machine(name="bare", tiers=machine().tiers[:1], links=())
    assert simulate(trace, bare, planned(trace, again(2, recipe=(1,), before=4))).step_ns == 70
