"""Random traces whose ops read each other's results, and random plans for them that pass `check`."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from elbowroom.errors import InvalidPlan
from elbowroom.machine import Machine
from elbowroom.plan import Algorithm, Plan, Recompute, Swap
from elbowroom.planners import check
from elbowroom.trace import Choice, Save, Trace
from tests.core.build import Build


@st.composite
def linked_traces(draw: st.DrawFn, layers: int = 7) -> Trace:
    """A step whose forward ops read what others made, with scratch memory, and a backward that reads what was saved."""
    build = Build()
    alive = [build.storage(draw(st.integers(1, 40)), "parameter")]
    if draw(st.booleans()):
        _forward(draw, build, alive, draw(st.integers(1, 3)))
        build.op("optimizer", 5)
        build.end_step()
    saved = _forward(draw, build, alive, draw(st.integers(1, layers)))
    build.phase = "backward"
    for storage in draw(st.permutations(saved)) if draw(st.booleans()) else saved[::-1]:
        if draw(st.sampled_from([True] * 6 + [False])):
            build.read(storage)
            build.op("backward", draw(st.integers(0, 50)), temporary=draw(st.sampled_from([0, 10])), reads=(storage,))
        if draw(st.sampled_from([True] * 4 + [False])):
            build.free(storage)
    build.op("optimizer", 5)
    return _with_choices(draw, build)


def _forward(draw: st.DrawFn, build: Build, alive: list[int], layers: int) -> list[int]:
    """Ops that make storages of each other; returns the saved ones."""
    saved: list[int] = []
    for _ in range(layers):
        reads = tuple(draw(st.lists(st.sampled_from(alive[-3:]), unique=True, max_size=2)))
        workspace = draw(st.sampled_from([0, 0, 30]))
        made = build.op("forward", draw(st.integers(0, 50)), make=draw(st.integers(1, 60)), reads=reads)
        if workspace:
            build.free(build.storage(workspace, "workspace"))
        alive.append(made)
        kind = draw(st.sampled_from(["save", "save", "save", "hold", "free", "never idle"]))
        if kind == "free":
            continue
        saved.append(build.save(made, idle=kind == "save"))
        if kind == "hold":
            build.op("forward", draw(st.integers(0, 9)), reads=(made,))
            build.idle(made)
    for storage in alive[1:]:
        if storage not in saved and draw(st.booleans()):
            build.free(storage)
            alive.remove(storage)
    return saved


def _with_choices(draw: st.DrawFn, build: Build) -> Trace:
    """Some of the ops with a workspace offer others."""
    trace = build.trace()
    workspaces = {e.op: e.size_bytes for e in trace.events if trace.storages[e.storage].category == "workspace"}
    ops = list(trace.ops)
    for op, size_bytes in workspaces.items():
        here = Choice(name="as recorded", duration_ns=ops[op].duration_ns, workspace_bytes=abs(size_bytes))
        other = Choice(name="other", duration_ns=draw(st.integers(0, 90)), workspace_bytes=draw(st.integers(0, 70)))
        ops[op] = replace(ops[op], choices=(here, other))
    return replace(trace, ops=tuple(ops))


def passes(trace: Trace, plan: Plan, machine: Machine) -> bool:
    """Whether a plan may run."""
    try:
        check(trace, plan, machine)
    except InvalidPlan:
        return False
    return True


@st.composite
def plans_for(draw: st.DrawFn, trace: Trace, machine: Machine) -> Plan:
    """A plan that swaps, recomputes and chooses at random, as far as that may run."""
    plan = Plan(trace_id=trace.id, planner="random", budget_bytes=10**9)
    first, end = trace.steps[-1]
    saves = {s.storage: s for s in trace.saves if first <= s.saved_at <= end}
    for storage, save in saves.items():
        means = draw(st.sampled_from(["keep", "swap", "recompute", "recompute"]))
        taken = {s for each in plan.recomputes for s in each.storages}
        if storage in taken or means == "keep":
            continue
        changed = _swapped(draw, plan, save, end) if means == "swap" else _dropped(draw, trace, plan, save, saves)
        plan = changed if changed is not None and passes(trace, changed, machine) else plan
    chosen = [op for op in range(first, end) if trace.ops[op].choices and draw(st.booleans())]
    return replace(plan, algorithms=tuple(Algorithm(op=op, choice="other") for op in chosen))


def _swapped(draw: st.DrawFn, plan: Plan, save: Save, end: int) -> Plan:
    back = save.read_at[0] - draw(st.sampled_from([0, 0, 1, 2])) if save.read_at else end
    swap = Swap(storage=save.storage, tier="disk", out_after_op=save.saved_at - 1, back_before_op=max(0, back))
    return replace(plan, swaps=tuple(sorted((*plan.swaps, swap), key=lambda s: s.out_after_op)))


def _dropped(draw: st.DrawFn, trace: Trace, plan: Plan, save: Save, saves: dict[int, Save]) -> Plan | None:
    """Drop a storage, perhaps with others that are read later and made by the same ops."""
    if not save.read_at:
        return None
    makers = {e.storage: e.op for e in trace.events if e.size_bytes > 0}
    before = save.read_at[0] - draw(st.sampled_from([0, 0, 0, 1]))
    lowest = max(trace.steps[-1].first_op, makers[save.storage] - draw(st.integers(0, 3)))
    recipe = range(lowest, makers[save.storage] + 1)
    others = [s for s in saves if makers[s] in recipe and s != save.storage and draw(st.booleans())]
    held = {swap.storage for swap in plan.swaps} | {s for each in plan.recomputes for s in each.storages}
    storages = (save.storage, *(s for s in others if s not in held))
    if before <= recipe[-1]:
        return None
    made = Recompute(storages=storages, recipe=tuple(recipe), before_op=before)
    return replace(plan, recomputes=tuple(sorted((*plan.recomputes, made), key=lambda each: each.before_op)))
