"""Records that contradict nothing, for property tests."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from elbowroom.files.field_rules import MAX_INT
from elbowroom.hardware.gpu_table import DTYPES
from elbowroom.machine import TIERS, Link, Machine, Rate, Tier, TierName
from elbowroom.plan import Algorithm, Bound, Plan, Recompute, Swap
from elbowroom.timeline import CURVE_KINDS, LANES, SOURCES, SPAN_KINDS, Curve, Span, Timeline
from elbowroom.trace import (
    CATEGORIES,
    PHASES,
    REMARK_KINDS,
    Choice,
    Event,
    OnStream,
    Op,
    Remark,
    Save,
    Step,
    Storage,
    Trace,
    Workspace,
)

naturals = st.integers(0, MAX_INT)
rates = st.integers(1, MAX_INT)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


remarks = st.builds(Remark, kind=st.sampled_from(REMARK_KINDS), name=text, count=st.integers(1, 2**63 - 1))


@st.composite
def ops_on(draw: st.DrawFn, storage_count: int) -> Op:
    """One op on any storages, with up to three algorithms to choose from."""
    ids = st.lists(st.integers(0, storage_count - 1), max_size=3).map(tuple)
    names = draw(st.lists(text, unique=True, max_size=3))
    choices = tuple(Choice(name=name, duration_ns=draw(naturals), workspace_bytes=draw(naturals)) for name in names)
    return Op(
        name=draw(text),
        module=draw(text),
        phase=draw(st.sampled_from(PHASES)),
        reads=draw(ids),
        writes=draw(ids),
        duration_ns=choices[0].duration_ns if choices else draw(naturals),
        flops=draw(naturals),
        choices=choices,
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A trace of any shape: every storage may be allocated, freed and saved."""
    storages = draw(
        st.lists(
            st.builds(Storage, size_bytes=naturals, category=st.sampled_from(CATEGORIES), dtype=text),
            min_size=1,
            max_size=5,
        )
    )
    ops = draw(st.lists(ops_on(len(storages)), max_size=6))
    events: list[Event] = []
    for storage, what in enumerate(storages):
        first, last = sorted(draw(st.tuples(*[st.integers(-1, len(ops) - 1)] * 2)))
        changes = [Event(first, storage, what.size_bytes), Event(last, storage, -what.size_bytes)]
        events += changes[: draw(st.integers(0, 2))] if what.size_bytes else []
    borders = sorted(draw(st.lists(st.integers(0, len(ops)), min_size=2, max_size=4)))
    return Trace(
        device=draw(text),
        torch_version=draw(text),
        ops=tuple(ops),
        storages=tuple(storages),
        events=tuple(sorted(events, key=lambda event: event.op)),
        saves=tuple(sorted(draw(st.lists(saves(len(storages), len(ops)), max_size=4)), key=lambda save: save.saved_at)),
        steps=tuple(Step(*pair) for pair in pairwise(borders)),
        remarks=tuple(draw(st.lists(remarks, max_size=2))),
        workspaces=tuple(
            Workspace(storage=storage, least_bytes=draw(st.integers(0, what.size_bytes)), most_bytes=what.size_bytes)
            for storage, what in enumerate(storages)
            if what.category == "workspace" and draw(st.booleans())
        ),
        empties=tuple(sorted(draw(st.lists(st.integers(0, len(events)), max_size=2)))),
        streams=tuple(OnStream(n, draw(st.integers(1, 3))) for n in range(len(storages)) if draw(st.booleans())),
    )


@st.composite
def saves(draw: st.DrawFn, storage_count: int, op_count: int) -> Save:
    """One save whose positions are in order."""
    positions = sorted(draw(st.lists(st.integers(0, op_count), min_size=2, max_size=4)))
    return Save(
        storage=draw(st.integers(0, storage_count - 1)),
        saved_at=positions[0],
        idle_from=draw(st.sampled_from([None, positions[1]])),
        read_at=tuple(positions[2:]),
    )


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """One to three tiers and links between neighbours."""
    names: list[TierName] = ["device", *(name for name in TIERS[1:] if draw(st.booleans()))]
    links = [
        Link(
            upper=upper,
            lower=lower,
            out_bytes_per_s=draw(rates),
            back_bytes_per_s=draw(rates),
            latency_ns=draw(naturals),
            shared_by=draw(rates),
        )
        for upper, lower in pairwise(names)
        if draw(st.booleans())
    ]
    least, outside, most = sorted(draw(st.tuples(naturals, naturals, naturals)))
    dtypes = draw(st.lists(st.sampled_from(DTYPES), unique=True, max_size=3))
    return Machine(
        name=draw(text),
        tiers=tuple(Tier(name=name, capacity_bytes=draw(naturals)) for name in names),
        links=tuple(links),
        outside_bytes=outside,
        allocator=draw(text),
        flops_per_s=draw(naturals),
        memory_bytes_per_s=draw(naturals),
        compute_capability=draw(naturals),
        multiprocessors=draw(naturals),
        rates=tuple(Rate(dtype=dtype, flops_per_s=draw(rates)) for dtype in dtypes),
        outside_range_bytes=draw(st.sampled_from([(0, 0), (least, most)])),
    )


swaps = st.builds(
    Swap,
    storage=st.integers(0, 9),
    tier=st.sampled_from(TIERS[1:]),
    out_after_op=st.integers(-1, 100),
    back_before_op=st.integers(0, 100),
)
op_ids = st.integers(0, 100)
op_sets = st.lists(op_ids, unique=True, min_size=1, max_size=4).map(lambda drawn: tuple(sorted(drawn)))


@st.composite
def recomputes(draw: st.DrawFn, number: int) -> Recompute:
    """One recompute of two storages that no other one has."""
    recipe = draw(op_sets)
    return Recompute(
        storages=(10 + 2 * number, 11 + 2 * number), recipe=recipe, before_op=recipe[-1] + draw(op_ids) + 1
    )


@st.composite
def bounds(draw: st.DrawFn) -> Bound:
    """A bound that is not above the step."""
    least, most = sorted(draw(st.tuples(naturals, naturals)))
    return Bound(machine=draw(text), step_ns=most, lower_bound_ns=least)


plans = st.builds(
    Plan,
    trace_id=text,
    planner=text,
    budget_bytes=naturals,
    swaps=st.lists(swaps, max_size=5, unique_by=lambda swap: swap.storage).map(
        lambda drawn: tuple(sorted(drawn, key=lambda swap: swap.out_after_op))
    ),
    recomputes=st.tuples(recomputes(0), recomputes(1)).map(
        lambda drawn: tuple(sorted(drawn, key=lambda recompute: recompute.before_op))
    ),
    algorithms=st.lists(st.builds(Algorithm, op=op_ids, choice=text), max_size=3, unique_by=lambda each: each.op).map(
        lambda drawn: tuple(sorted(drawn, key=lambda algorithm: algorithm.op))
    ),
    bound=st.none() | bounds(),
)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    """One bar on any lane."""
    start_ns, end_ns = sorted(draw(st.tuples(naturals, naturals)))
    return Span(
        lane=draw(st.sampled_from(LANES)),
        kind=draw(st.sampled_from(SPAN_KINDS)),
        name=draw(text),
        start_ns=start_ns,
        end_ns=end_ns,
        op=draw(st.none() | naturals),
        storage=draw(st.none() | naturals),
        size_bytes=draw(naturals),
    )


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """One curve of any tier."""
    at_ns = sorted(draw(st.lists(naturals, min_size=1, max_size=5)))
    size_bytes = draw(st.lists(naturals, min_size=len(at_ns), max_size=len(at_ns)))
    tier, kind = draw(st.sampled_from(TIERS)), draw(st.sampled_from(CURVE_KINDS))
    return Curve(tier=tier, kind=kind, at_ns=tuple(at_ns), size_bytes=tuple(size_bytes))


at_peaks = st.lists(st.tuples(st.sampled_from(CATEGORIES), naturals), max_size=5, unique_by=lambda pair: pair[0]).map(
    lambda pairs: tuple(sorted(pairs, key=lambda pair: -pair[1]))
)
timelines = st.builds(
    Timeline,
    source=st.sampled_from(SOURCES),
    trace_id=text,
    step_ns=naturals,
    spans=st.lists(spans(), max_size=5).map(lambda drawn: tuple(sorted(drawn, key=lambda span: span.start_ns))),
    curves=st.lists(curves(), max_size=4, unique_by=lambda curve: (curve.tier, curve.kind)).map(tuple),
    at_peak=at_peaks,
    outside_bytes=naturals,
)
