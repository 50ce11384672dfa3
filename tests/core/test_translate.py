"""A plan for a trace of a GPU that was not there, in terms of the trace that a run has recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.errors import InvalidPlan
from elbowroom.plan import Algorithm, Plan, Swap
from elbowroom.step.check import check
from elbowroom.step.translate import translated
from elbowroom.trace import Part, Trace
from tests.core.build import Build

LARGE = [100, 200, 200]


def recorded(build: Build | None = None, extra: int = 0, small: bool = False, sizes: list[int] = LARGE) -> Trace:
    """Layers that save what they make, a backward that reads it in reverse, and a part with an optimizer's state.

    Args:
        build: what came before.
        extra: ops before each op of the step.
        small: whether each layer saves 4 bytes besides, and the first one a parameter; the part has 4 bytes more too.
        sizes: of what is saved.
    """
    build = build or Build()
    weight, states = build.storage(200, "parameter"), (build.storage(64, "optimizer_state"),)
    if small:
        states += (build.storage(4, "optimizer_state"),)
    if build.position:
        build.end_step()
    saved: list[int] = []

    def op(**what: object) -> int:
        for _ in range(extra):
            build.op("aten.view")
        return build.op(**what)  # type: ignore[arg-type]

    for size in sizes:
        made = op(make=size)
        if small:
            if not saved:
                build.save(weight)
            build.save(build.storage(4))
        saved.append(build.save(made))
    build.phase = "backward"
    for storage in reversed(saved):
        for _ in range(extra):
            build.op("aten.detach")
        build.read(storage)
        op(reads=(storage,))
        build.free(storage)
    build.phase = "optimizer"
    first = build.position
    op(reads=states, writes=states)
    trace = build.trace()
    return replace(trace, parts=(Part(first_op=first, end_op=build.position, storages=states),))


def virtual() -> Trace:
    """With a step before, one more op before each, and what is not large saved too."""
    before = Build()
    for _ in range(5):
        before.op(make=8)
    return recorded(before, extra=1, small=True)


def plan_of(trace: Trace, *swaps: Swap, budget_bytes: int = 10**6) -> Plan:
    return Plan(trace_id=trace.id, planner="by hand", budget_bytes=budget_bytes, swaps=swaps)


def saves(trace: Trace) -> list[int]:
    return [save.storage for save in trace.saves if trace.storages[save.storage].category == "activation"]


def test_a_swap_is_of_the_same_saved_storage_and_back_at_the_same_read() -> None:
    # given the first large storage, back where the second is read
    source, run = virtual(), recorded()
    large = [s for s in saves(source) if source.storages[s].size_bytes >= 100]
    of = {save.storage: save for save in source.saves}
    swap = Swap(
        storage=large[0],
        tier="disk",
        out_after_op=of[large[0]].saved_at - 1,
        back_before_op=of[large[1]].read_at[0],
    )
    # when
    made = translated(plan_of(source, swap), source, run)
    # then it leaves after op 0, and the second is read back before op 4: three layers, and one op of backward
    first = saves(run)[0]
    assert made.swaps == (Swap(storage=first, tier="disk", out_after_op=0, back_before_op=4),)
    assert made.trace_id == run.id
    check(run, made)


def test_a_swap_that_starts_back_between_two_reads_does_so_at_the_later_one() -> None:
    # given as above, but back at an op right after the read of the third
    source, run = virtual(), recorded()
    large = [s for s in saves(source) if source.storages[s].size_bytes >= 100]
    of = {save.storage: save for save in source.saves}
    back = of[large[2]].read_at[0] + 1
    swap = Swap(storage=large[0], tier="disk", out_after_op=of[large[0]].saved_at - 1, back_before_op=back)
    # then
    assert [each.back_before_op for each in translated(plan_of(source, swap), source, run).swaps] == [4]


def test_an_optimizers_state_is_the_one_of_the_same_part() -> None:
    # given a state that comes back in the next step as its part begins, the last op of it
    source, run = virtual(), recorded()
    part = source.parts[0]
    swap = Swap(storage=part.storages[0], tier="disk", out_after_op=part.end_op - 1, back_before_op=part.first_op)
    # when
    (made,) = translated(plan_of(source, swap), source, run).swaps
    # then it is so in the run, whose part is op 6 after three layers and their backward
    assert made == Swap(storage=run.parts[0].storages[0], tier="disk", out_after_op=6, back_before_op=6)
    check(run, plan_of(run, made))


def test_another_training_is_refused_with_what_differs() -> None:
    source = virtual()
    with pytest.raises(InvalidPlan, match="as number 1 one of 300 bytes of float32, not 200 of float32"):
        translated(plan_of(source), source, recorded(sizes=[100, 300, 200]))
    with pytest.raises(InvalidPlan, match="4 of at least 100 B, not 3"):
        translated(plan_of(source), source, recorded(sizes=[*LARGE, 100]))


def test_what_names_ops_or_another_trace_is_refused() -> None:
    source, run = virtual(), recorded()
    other = replace(plan_of(source), trace_id="another")
    with pytest.raises(InvalidPlan, match=f"it is for trace another, and the trace given with it is {source.id}"):
        translated(other, source, run)
    named = replace(plan_of(source), algorithms=(Algorithm(op=7, choice="native"),))
    with pytest.raises(InvalidPlan, match=r"its 1 algorithms name ops of its trace"):
        translated(named, source, run)
    small = plan_of(source, Swap(storage=0, tier="disk", out_after_op=0, back_before_op=3))
    with pytest.raises(InvalidPlan, match="it swaps storage 0 of its trace, which is not a saved storage"):
        translated(small, source, run)
