"""What the fuzz (`make fuzz`) found, each as small as it could be made, with what must hold instead."""

from __future__ import annotations

from elbowroom.planners import check, plan
from tests.core.build import Build, machine


def test_what_is_never_read_again_is_not_swapped_before_a_recipe_reads_it() -> None:
    # given 30 bytes that are saved and never read back, from which 50 more are made; 100 more in between; a slow link
    build = Build()
    never_read = build.save(build.op(make=30), idle=False)
    made = build.op(reads=(never_read,), make=50)
    build.idle(never_read)
    build.save(made)
    build.op(temporary=100)
    build.phase = "backward"
    build.read(made)
    build.op(reads=(made,))
    build.free(made)
    build.free(never_read)
    trace, on = build.trace(), machine(10**7, 10**7)

    # then at 130 bytes the 50 are made again, and at 100, where the 30 are away for good, they are swapped
    assert plan(trace, on, 130, "optimal", min_size_bytes=1).recomputes[0].storages == (made,)
    least = plan(trace, on, 100, "optimal", min_size_bytes=1)
    check(trace, least, on)
    assert {swap.storage for swap in least.swaps} == {never_read, made}
    assert least.recomputes == ()
