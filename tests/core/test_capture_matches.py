"""A recorded step and a capture of it: when only autograd holds what a plan keeps."""

from __future__ import annotations

from dataclasses import replace

from elbowroom.capture.steady import with_idle_of_capture
from elbowroom.trace import Op, Trace
from tests.core.build import Build


def captured() -> Trace:
    """A storage that is made and saved, in use until the next op ends, and read back at the last op."""
    build = Build()
    made = build.op("aten.mm", make=100)
    build.save(made, idle=False)
    build.op("aten.view")
    build.op("aten.mul", reads=(made,))
    build.idle(made)
    build.phase = "backward"
    build.read(made)
    build.op("aten.mul_backward", reads=(made,))
    return build.trace()


def recorded(*names: str) -> Trace:
    """The same step under a plan that keeps the storage; ops with other names touch no storage."""
    build, made = Build(), -1
    for name in names:
        if name == "aten.mm":
            made = build.op(name, make=100)
            build.save(made, idle=False)
            continue
        if name == "aten.mul_backward":
            build.phase = "backward"
            build.read(made)
        build.op(name, reads=(made,) if name.startswith("aten.mul") else ())
    return build.trace()


def test_what_a_recording_does_not_show_is_taken_from_the_capture() -> None:
    # given a recording that lacks the view
    found = with_idle_of_capture(recorded("aten.mm", "aten.mul", "aten.mul_backward"), captured())
    # then the storage is idle once the second op has run
    assert found is not None
    assert found.saves[0].idle_from == 2


def test_views_that_only_the_recording_has_do_not_matter() -> None:
    # given three ops without a storage that the capture lacks, and no view
    names = ("aten.detach", "aten.mm", "aten.detach", "aten.mul", "aten.mul_backward", "aten.detach")
    found = with_idle_of_capture(recorded(*names), captured())
    # then the storage is idle after the fourth op
    assert found is not None
    assert found.saves[0].idle_from == 4


def test_an_op_counts_under_the_name_of_the_one_that_calls_it() -> None:
    # given that torch records what index_put_ calls
    step, capture = recorded("aten.mm", "aten.mul", "aten.mul_backward"), captured()
    called, calls = "aten._index_put_impl_", "aten.index_put_"
    step = replace(step, ops=(step.ops[0], replace(step.ops[1], name=called), step.ops[2]))
    capture = replace(capture, ops=(*capture.ops[:2], replace(capture.ops[2], name=calls), capture.ops[3]))
    # then they match
    assert with_idle_of_capture(step, capture) is not None


def test_another_op_that_touches_a_storage_means_another_step() -> None:
    # given an op between that reads the storage
    step = recorded("aten.mm", "aten.mul", "aten.mul_backward")
    other = Op(name="aten.exp", module="net", phase="forward", reads=(0,), writes=(), duration_ns=1)
    ops = (step.ops[0], other, *step.ops[2:])
    # then nothing is taken from the capture
    assert with_idle_of_capture(replace(step, ops=ops), captured()) is None
