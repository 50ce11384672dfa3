"""Recipes: the rules that keep numbers, the options that are offered, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.plan import Recompute
from elbowroom.step.last_step import LastStep, last_step
from elbowroom.step.recipes import check_recipe, inputs_of, options, peak_of_recipe
from elbowroom.step.recipes.tables import RANDOM, STATISTICS
from elbowroom.trace import Trace
from tests.core.build import Build


def judged(trace: Trace, storages: Sequence[int], recipe: Sequence[int], before_op: int) -> str | None:
    made = Recompute(storages=tuple(storages), recipe=tuple(recipe), before_op=before_op)
    return check_recipe(last_step(trace), made)


def layers(build: Build, *names: str, size: int = 10) -> list[int]:
    """A chain of ops, each reading what the one before made; all of it is saved."""
    made: list[int] = []
    for name in names:
        made.append(build.op(name, make=size, reads=tuple(made[-1:])))
        build.save(made[-1])
    return made


def backward(build: Build, made: Sequence[int]) -> None:
    """From here on only autograd holds them, and it reads the last one first."""
    for storage in made:
        build.idle(storage)
    build.phase = "backward"
    for storage in reversed(made):
        build.read(storage)
        build.op("aten.backward", reads=(storage,))
        build.free(storage)


def test_a_storage_is_rebuilt_from_the_one_before_it() -> None:
    # given ops 0 conv and 1 relu, saved both; backward reads relu's result before op 2, conv's before op 3
    build = Build()
    conv, relu = made = layers(build, "aten.convolution", "aten.relu")
    backward(build, made)
    step = last_step(build.trace())

    # then relu's is rebuilt by relu from conv's, which is still there; conv's by the convolution
    assert [(o.recompute, o.inputs) for o in options(step, 1) if o.kind == "single"] == [
        (Recompute(storages=(relu,), recipe=(1,), before_op=2), (conv,)),
        (Recompute(storages=(conv,), recipe=(0,), before_op=3), ()),
    ]


def test_a_block_drops_what_is_inside_and_keeps_its_result_for_the_next_block() -> None:
    # given two blocks of two ops; all four results are saved, and the second block reads the first one's last
    build = Build()
    made = layers(build, "aten.a", "aten.b", "aten.c", "aten.d", size=8)
    backward(build, made)
    trace = build.trace()
    ops = [
        (op if op.phase != "forward" else type(op)(**{**as_dict(op), "module": f"net.{i // 2}"}))
        for i, op in enumerate(trace.ops)
    ]
    trace = replace(trace, ops=tuple(ops))

    blocks = {o.name: o for o in options(last_step(trace), 1) if o.kind == "block"}

    # then net.1 (ops 2 and 3) rebuilds both of its storages before op 4, from storage 1, in 2 * 10 ns and 2 * 8 bytes
    last = blocks["net.1"]
    assert last.recompute == Recompute(storages=(2, 3), recipe=(2, 3), before_op=4)
    assert (last.inputs, last.saved_bytes, last.duration_ns, last.peak_bytes) == ((1,), 16, 20, 16)
    # and there is no option for net.0 alone that drops storage 1, which net.1 reads
    assert "net.0" not in blocks


def as_dict(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__ if not name.startswith("_")}


def test_an_in_place_op_on_the_way_is_part_of_the_recipe() -> None:
    # given 0 norm makes storage 1, 1 relu_ changes it, then it is saved
    build = Build()
    x = build.op("aten.convolution", make=10)
    build.save(x)
    y = build.op("aten.norm", make=10, reads=(x,))
    build.op("aten.relu_", reads=(y,), writes=(y,))
    build.save(y)
    backward(build, [x, y])
    trace = build.trace()

    assert judged(trace, [y], [1, 2], 3) is None
    assert judged(trace, [y], [1], 3) == ("its recipe lacks op 2 aten.relu_ in 'net' (forward), which writes storage 1")
    assert [o.recompute.recipe for o in options(last_step(trace), 1) if o.recompute.storages == (y,)] == [(1, 2)]


def test_an_input_that_was_changed_since_is_no_input() -> None:
    # given storage 0, read by op 1, then changed in place by op 2 before backward begins
    build = Build()
    x = build.storage(10, "input")
    y = build.op("aten.relu", make=10, reads=(x,))
    build.save(y)
    build.op("aten.zero_", writes=(x,))
    backward(build, [y])

    assert judged(build.trace(), [y], [0], 2) == (
        "op 0 aten.relu in 'net' (forward) reads storage 0, which op 1 has written since"
    )


def test_an_input_that_is_gone_must_be_made_by_the_recipe() -> None:
    # given 0 makes x, 1 reads it and makes y, which is saved; x is freed before backward
    build = Build()
    x = build.op("aten.a", make=10)
    y = build.op("aten.b", make=10, reads=(x,))
    build.save(y)
    build.free(x)
    backward(build, [y])
    trace = build.trace()

    assert judged(trace, [y], [1], 2) == (
        "op 1 aten.b in 'net' (forward) reads storage 0, which is not there before op 2 and not made by the recipe"
    )
    assert judged(trace, [y], [0, 1], 2) is None
    # and x, no longer needed once op 1 has run again, is given back: 10 + 10 bytes at most
    made = Recompute(storages=(y,), recipe=(0, 1), before_op=2)
    assert peak_of_recipe(last_step(trace), made) == 20
    assert inputs_of(last_step(trace), made) == ()


def test_the_most_that_a_recipe_holds_counts_scratch_and_gives_intermediates_back() -> None:
    # given 0 makes a (30), 1 makes b (20) with 50 of scratch, 2 makes c (10); c is saved, a and b are freed
    build = Build()
    a = build.op("aten.a", make=30)
    b = build.op("aten.b", make=20, temporary=50, reads=(a,))
    c = build.op("aten.c", make=10, reads=(b,))
    build.save(c)
    build.free(a)
    build.free(b)
    backward(build, [c])

    # then op 1 holds a and first its scratch, 30 + 50, then b, 30 + 20; op 2 holds b and c, 20 + 10
    made = Recompute(storages=(c,), recipe=(0, 1, 2), before_op=3)
    assert peak_of_recipe(last_step(build.trace()), made) == 80


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("aten.index_add", "does not always give the same bits for the same arguments"),
        ("aten._cudnn_rnn", "keeps a random state of its own between calls"),
        ("aten.resize_", "changes which bytes a tensor is on"),
        ("c10d.allreduce_", "is a collective, which every process would have to run again"),
        ("mylib.kernel", "is of 'mylib'; whether it gives the same numbers again is known only of aten, prims"),
        ("aten._to_copy", "copies from the host, where its source may have changed"),
    ],
)
def test_ops_that_might_give_other_numbers_are_in_no_recipe(name: str, reason: str) -> None:
    build = Build()
    y = build.op(name, make=10)
    build.save(y)
    backward(build, [y])
    trace = build.trace()

    assert f"op 0 {name} in 'net' (forward) {reason}" in str(judged(trace, [y], [0], 1))
    assert not options(last_step(trace), 1)


def test_random_ops_run_again_with_their_state() -> None:
    build = Build()
    x = build.op("aten.convolution", make=10)
    build.save(x)
    mask = build.op("aten.native_dropout", make=10, reads=(x,))
    build.save(mask)
    backward(build, [x, mask])
    step = last_step(build.trace())
    made = Recompute(storages=(mask,), recipe=(1,), before_op=2)

    assert check_recipe(step, made) is None


def test_running_statistics_are_left_alone() -> None:
    # given a batch norm that reads and updates a buffer, and one that does so to what is no buffer
    build = Build()
    buffer, other = build.storage(4, "buffer"), build.storage(4, "temporary")
    x = build.op("aten.convolution", make=10)
    build.save(x)
    y = build.op("aten.cudnn_batch_norm", make=10, reads=(x, buffer), writes=(buffer,))
    build.save(y)
    z = build.op("aten.cudnn_batch_norm", make=10, reads=(x, other), writes=(other,))
    build.save(z)
    backward(build, [x, y, z])
    step = last_step(build.trace())
    made = Recompute(storages=(y,), recipe=(1,), before_op=4)

    # then the first may run again, with a copy of its statistics, which are not among its inputs
    assert check_recipe(step, made) is None
    assert inputs_of(step, made) == (x,)
    # and the second may not
    problem = check_recipe(step, Recompute(storages=(z,), recipe=(2,), before_op=3))
    assert problem == "op 2 aten.cudnn_batch_norm in 'net' (forward) reads storage 1, which op 2 has written since"


def test_statistics_that_are_only_read_must_not_have_changed() -> None:
    # given a batch norm in evaluation, whose result depends on the buffer, and a later op that changes the buffer
    build = Build()
    buffer = build.storage(4, "buffer")
    x = build.op("aten.convolution", make=10)
    build.save(x)
    y = build.op("aten.cudnn_batch_norm", make=10, reads=(x, buffer))
    build.save(y)
    build.op("aten.mul_", reads=(buffer,), writes=(buffer,))
    backward(build, [x, y])

    assert judged(build.trace(), [y], [1], 3) == (
        "op 1 aten.cudnn_batch_norm in 'net' (forward) reads storage 0, which op 2 has written since"
    )


def test_what_cannot_be_dropped_is_said() -> None:
    # given a saved input, a storage that autograd does not save, and a saved one that is read before op 4
    build = Build()
    x = build.storage(10, "input")
    build.save(x)
    y = build.op("aten.a", make=10, reads=(x,))
    z = build.op("aten.b", make=10, reads=(y,))
    build.save(z)
    build.phase = "backward"
    build.op("aten.c")
    build.op("aten.d")
    build.read(z)
    build.op("aten.e", reads=(z,))
    trace = build.trace()

    assert judged(trace, [x], [0], 4) == (
        "storage 0: its category is 'input'; only activation, temporary, workspace may move"
    )
    assert judged(trace, [y], [0], 4) == "storage 1: autograd does not save it in the last step"
    assert judged(trace, [z], [1], 5) == ("storage 2: it is read back before op 4, and its recipe runs before op 5")
    assert judged(trace, [z], [1, 2], 4) == (
        "op 2 aten.c in 'net' (backward) is of phase backward; allowed in a recipe are ops of forward"
    )
    assert judged(trace, [z], [0], 4) == "no op of its recipe makes storage 2"
    assert judged(trace, [z], [1], 1 + 1) is None
    assert judged(trace, [z], [7], 9) == "its recipe has ops outside the last step, 0 to 4"


def test_options_grow_linearly() -> None:
    # given 3,000 saved storages in 1,000 modules
    build = Build()
    made: list[int] = []
    for _ in range(1_000):
        made += layers(build, "aten.a", "aten.b", "aten.c")
    backward(build, made)

    found = options(last_step(build.trace()), 1)

    # then no more than one single for each, and parts: 2 + 4 + .. + 2048 of them
    singles = [o for o in found if o.kind == "single"]
    assert len(singles) == 3_000
    assert len(found) <= 3_000 + 4_094


# What the rules are for: the same contents. A trace is run with made-up numbers, and a recipe that passes runs again.


class Run:
    """Contents of storages as hashes; an op's results depend on its name, its arguments and the generator's state."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.contents: dict[int, int] = {}
        self.generator = 0
        self.states: dict[int, int] = {}
        self.before: dict[int, dict[int, int]] = {}
        events = list(trace.events)
        at = 0
        for i in range(-1, len(trace.ops)):
            self.before[i] = dict(self.contents)
            freed: list[int] = []
            while at < len(events) and events[at].op == i:
                if events[at].size_bytes > 0:
                    self.contents[events[at].storage] = 0 if i >= 0 else hash(("there", events[at].storage))
                else:
                    freed.append(events[at].storage)
                at += 1
            if i >= 0:
                self.states[i] = self.generator
                self.generator = compute(trace, i, self.contents, self.generator)
            for storage in freed:
                del self.contents[storage]


def compute(trace: Trace, i: int, contents: dict[int, int], generator: int, again: bool = False) -> int:
    """Run op i; returns the generator's next state."""
    op = trace.ops[i]
    statistics = {
        s for s in op.writes if op.name in STATISTICS and trace.storages[s].category == "buffer" and s in op.reads
    }
    drawn = generator if op.name in RANDOM else None
    value = hash((op.name, drawn, tuple(contents[s] for s in op.reads if s not in statistics)))
    for k, storage in enumerate(op.writes):
        if not (again and storage in statistics):
            contents[storage] = hash((value, k, contents[storage]))
    return generator + (op.name in RANDOM)


def rebuilt(run: Run, step: LastStep, made: Recompute) -> bool:
    """Whether a recipe gives the contents that its storages have before `before_op`, and changes nothing else."""
    there = dict(run.before[made.before_op])
    wanted = {storage: there.pop(storage) for storage in made.storages}
    untouched = dict(there)
    made_by = {(e.op, e.storage) for e in run.trace.events if e.size_bytes > 0}
    new: dict[int, int] = {}
    for i in made.recipe:
        new.update({s: 0 for s in step.trace.ops[i].writes if (i, s) in made_by})
        both = {**there, **new}
        compute(run.trace, i, both, run.states[i], again=True)
        for storage, content in both.items():
            if storage in new:
                new[storage] = content
            elif there[storage] != content:
                return False
    return there == untouched and all(new.get(storage) == content for storage, content in wanted.items())


NAMES = ["aten.a", "aten.b", "aten.native_dropout", "aten.cudnn_batch_norm", "aten.index_add"]


@st.composite
def programs(draw: st.DrawFn) -> Trace:
    """Random forward with in-place ops, frees, buffers and random ops; backward with more writes between the reads."""
    build = Build()
    live = [build.storage(8, category) for category in ("parameter", "buffer", "buffer", "input")]
    now: list[int] = []
    later: list[int] = []
    for _ in range(draw(st.integers(2, 10))):
        kind = draw(st.sampled_from(["make", "make", "make", "in place", "in place", "free"]))
        reads = tuple(draw(st.lists(st.sampled_from(live), max_size=3, unique=True)))
        if kind == "make":
            live.append(made(draw(st.sampled_from(NAMES)), build, reads))
            draw(st.sampled_from([now, later, list[int]()])).append(live[-1])
            if live[-1] in now:
                build.save(live[-1])
        elif kind == "in place":
            build.op("aten.add_", reads=reads, writes=(draw(st.sampled_from([*live, *later, *later, *later])),))
        elif mortal := sorted({*live[4:]} - {*now, *later}):
            live.remove(gone := draw(st.sampled_from(mortal)))
            build.free(gone)
    played_back(draw, build, live, now + [build.save(storage) for storage in later])
    return build.trace()


def made(name: str, build: Build, reads: tuple[int, ...]) -> int:
    """A new storage of an op, which updates the buffers that it reads if it keeps statistics."""
    statistics = tuple(s for s in reads if s in (1, 2) and name in STATISTICS)
    return build.op(name, make=8, reads=reads, writes=statistics)


def played_back(draw: st.DrawFn, build: Build, live: list[int], saved: list[int]) -> None:
    for storage in saved:
        build.idle(storage)
    build.phase = "backward"
    for storage in draw(st.permutations(saved)):
        if draw(st.booleans()):
            build.op("aten.add_", writes=(draw(st.sampled_from(live)),))
        build.read(storage)
        build.op("aten.backward", reads=(storage,))
        if draw(st.booleans()):
            build.free(storage)
            live.remove(storage)
    build.op("aten.optimizer", writes=(0,))


@settings(max_examples=300, deadline=None)
@given(programs(), st.data())
def test_every_recipe_that_passes_gives_the_same_contents(trace: Trace, data: st.DataObject) -> None:
    step = last_step(trace)
    run = Run(trace)
    offered = [o.recompute for o in options(step, 1)]
    for recompute in list(offered):  # and wrong ones: with an op less, with one more
        less = tuple(i for i in recompute.recipe if i != data.draw(st.sampled_from(recompute.recipe)))
        more = tuple(sorted({*recompute.recipe, data.draw(st.integers(0, recompute.before_op - 1))}))
        offered += [replace(recompute, recipe=recipe) for recipe in (less, more) if recipe]
    for recompute in offered:
        if check_recipe(step, recompute) is None:
            assert rebuilt(run, step, recompute), recompute
