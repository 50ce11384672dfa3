"""need, simulate and check beside a second simulator that shares nothing with them (reference.py)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.simulate.simulate import simulate
from elbowroom.step.algorithms import with_algorithms
from elbowroom.step.last_step import last_step
from elbowroom.step.moves import moves_of_plan, need
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace
from tests.core.build import machine
from tests.core.plans import linked_traces, plans_for
from tests.core.reference import Reference

RATES = st.sampled_from([10**7, 10**8, 10**9, 10**10])


def curve(line: Timeline, tier: str) -> list[tuple[int, int]]:
    found = next(c for c in line.curves if c.tier == tier)
    return list(zip(found.at_ns, found.size_bytes, strict=True))


@settings(max_examples=300, deadline=None)
@given(linked_traces(), RATES, RATES, st.integers(0, 20), st.data())
def test_simulate_and_need_agree_with_the_reference(
    trace: Trace, out: int, back: int, latency: int, data: st.DataObject
) -> None:
    on = machine(out, back, latency)
    plan = data.draw(plans_for(trace, on))

    expected = Reference(trace, on, plan).run()
    line = simulate(trace, on, plan)

    step = with_algorithms(last_step(trace), plan.algorithms)
    assert int(need(step, moves_of_plan(step, plan)).max()) == expected.peak
    assert line.step_ns == expected.step_ns
    assert curve(line, "device") == expected.curve
    assert line.peak_allocated_bytes == expected.peak
    assert sum(line.breakdown().values()) == expected.peak
