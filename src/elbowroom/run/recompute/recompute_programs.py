"""Programs: the recipes of a plan as calls that can be made again, and where each call takes its bytes from.

Computes: for each recompute of a plan, the recorded calls of its ops (call_recorder.py). Each tensor in their arguments
lies on one of three kinds of storages: made by an earlier call, saved in the step, or of a parameter or buffer.

A recompute is impossible in these cases:

- the recorded step did not call one of its ops at that place;
- it reads an unknown storage: a constant, or an input that autograd did not save;
- it reads a storage that Python filled, and no call did;
- the op that makes its storage leaves some of the bytes as it found them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elbowroom.plan import Plan, Recompute
from elbowroom.run.recompute.call_recorder import Calls, CallStorage, Group, OpCall, Owner, View, views_of
from elbowroom.step.last_step import LastStep, op_label
from elbowroom.step.recipes.tables import RANDOM, STATISTICS
from elbowroom.torch_compat.core import schema_of
from elbowroom.torch_compat.operators import UNFILLED


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One recompute, as calls.

    Attributes:
        index: its place in the plan.
        label: its first op, in words.
        ops: for each call, the op of the trace that it is part of.
        calls: what is called, in order.
        dies: for each call, the storages that are not needed after it.
        makes: n -> the saved storage that it rebuilds.
        entries: the saved storages that it reads.
        owners: the parameters and buffers that it reads.
        copied: running statistics; the calls get copies of them.
        draws: the calls that draw random numbers.
        flags: the settings under which all calls ran.
    """

    index: int
    label: str
    ops: tuple[int, ...]
    calls: tuple[OpCall, ...]
    dies: tuple[tuple[CallStorage, ...], ...]
    makes: Mapping[int, CallStorage]
    entries: frozenset[int]
    owners: tuple[Owner, ...]
    copied: frozenset[CallStorage]
    draws: frozenset[OpCall]
    flags: tuple[Any, ...]


class Impossible(Exception):
    """A recompute cannot be carried out; the message is a clause that says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """Recorded calls of a step, matched with the last step of its trace.

    Attributes:
        step: the last step.
        calls: the recorded calls.
        group_of: op -> what was called there; only as far as both agree.
    """

    step: LastStep
    calls: Calls
    group_of: Mapping[int, Group]


def matched(step: LastStep, calls: Calls) -> Matched:
    """Match the calls of a step with the trace of its kind."""
    ops = step.trace.ops
    group_of: dict[int, Group] = {}
    forward = (i for i in range(step.first_op, step.end_op) if ops[i].phase == "forward")
    for i, group in zip(forward, calls.groups, strict=False):
        if group.name != ops[i].name:
            break
        group_of[i] = group
    return Matched(step, calls, group_of)


def why_impossible(found: Matched, recompute: Recompute) -> str | None:
    """Return why a recompute cannot be carried out; None if it can."""
    try:
        program_of(found, recompute, 0)
    except Impossible as problem:
        return str(problem)
    return None


def programs_of(found: Matched, plan: Plan) -> tuple[Program, ...]:
    """Return the programs of a plan's recomputes. Raises Impossible."""
    return tuple(program_of(found, recompute, index) for index, recompute in enumerate(plan.recomputes))


def program_of(found: Matched, recompute: Recompute, index: int) -> Program:
    """Return the program of one recompute. Raises Impossible."""
    groups = [found.group_of.get(i) for i in recompute.recipe]
    missing = [i for i, group in zip(recompute.recipe, groups, strict=True) if group is None]
    if missing:
        raise Impossible(f"{op_label(found.step.trace, missing[0])} was not called there in the recorded step")
    pairs = [(i, c) for i, g in zip(recompute.recipe, groups, strict=True) if g is not None for c in g.calls]
    calls = [call for _, call in pairs]
    for i, call in pairs:
        if call.unfit:
            raise Impossible(f"{op_label(found.step.trace, i)} {call.unfit}")
    if any(call.flags != calls[0].flags for call in calls):
        raise Impossible("its ops ran under different settings")
    makes = _made(found, recompute, calls)
    check_filled(calls, set(makes.values()))
    inputs, copied = _inputs(calls)
    return Program(
        index=index,
        label=op_label(found.step.trace, recompute.recipe[0]),
        ops=tuple(i for i, _ in pairs),
        calls=tuple(calls),
        dies=_dying(calls, set(makes.values())),
        makes=makes,
        entries=frozenset(source.saved for source in inputs if source.saved is not None),
        owners=tuple(source.owner for source in inputs if source.saved is None and source.owner is not None),
        copied=frozenset(copied),
        draws=frozenset(call for call in calls if call.name in RANDOM),
        flags=calls[0].flags,
    )


def _made(found: Matched, recompute: Recompute, calls: Sequence[OpCall]) -> dict[int, CallStorage]:
    """Return n -> the dropped storage that the calls make."""
    step, again = found.step, set(map(id, calls))
    save_of = {save.storage: n for n, save in enumerate(step.saves)}
    makes: dict[int, CallStorage] = {}
    for storage in recompute.storages:
        n = save_of[storage]
        source = found.calls.saved.get(n)
        if source is None or source.maker is None or id(source.maker) not in again:
            raise Impossible(f"what made storage {storage} was not seen")
        if source.size_bytes != step.storage_bytes[storage]:
            raise Impossible(f"storage {storage} had {source.size_bytes} bytes in the recorded step")
        if source.used_bytes < source.size_bytes:  # as of mse_loss, which shrinks its result to a mean
            raise Impossible(f"{source.maker.name} leaves some bytes of storage {storage} as it found them")
        makes[n] = source
    return makes


def check_filled(calls: Sequence[OpCall], needed: set[CallStorage]) -> None:
    """Check that a call wrote all that is read. Python writes too, as in `torch.tensor([1, 2])`. Raises Impossible."""
    unfilled: set[CallStorage] = set()
    for call in calls:
        unfilled -= {view.source for view in written(call)}
        if any(view.source in unfilled for view in call.used()):
            raise Impossible(f"{call.name} reads what no call has written")
        if call.name.removeprefix("aten.") in UNFILLED:
            unfilled.update(call.results.values())
    if unfilled & needed:
        raise Impossible("it makes what no call has written")


def written(call: OpCall) -> list[View]:
    """Return the arguments that a call changes."""
    return list(views_of(changed(call.op, call.args, call.kwargs)))


def changed(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return those arguments of an op, recorded or not, that it changes; None for those that were left out."""
    given = _named(op, args, kwargs)
    names = [a.name for a in schema_of(op).arguments if a.alias_info is not None and a.alias_info.is_write]
    return [given.get(name) for name in names]


def _inputs(calls: Sequence[OpCall]) -> tuple[list[CallStorage], list[CallStorage]]:
    """Return what the calls read and do not make: storages, and running statistics apart. Raises Impossible."""
    made: set[CallStorage] = set()
    inputs: dict[CallStorage, None] = {}
    copied: dict[CallStorage, None] = {}
    for call in calls:
        statistics = {view.source for view in _statistics(call)}
        for view in call.used():
            if view.source in statistics:
                copied[view.source] = None
            elif view.source not in made:
                inputs[view.source] = None
        made.update(call.results.values())
    for source in (*inputs, *copied):
        if source.saved is None and source.owner is None:
            raise Impossible(f"a storage of {source.size_bytes} bytes that it reads is not known")
    return list(inputs), list(copied)


def _statistics(call: OpCall) -> list[View]:
    """Return the running statistics that a call updates; in evaluation it only reads them."""
    if call.name not in STATISTICS or not updates_statistics(call.op, call.args, call.kwargs):
        return []
    given = _named(call.op, call.args, call.kwargs)
    return list(views_of([given.get("running_mean"), given.get("running_var")]))


def updates_statistics(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an op that may update running statistics does: in evaluation it only reads them."""
    given = _named(op, args, kwargs)
    return bool(given.get("training", given.get("train", True)))


def _named(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an op, recorded or not, by their names."""
    return dict(zip((argument.name for argument in schema_of(op).arguments), args, strict=False)) | {**kwargs}


def _dying(calls: Sequence[OpCall], stay: set[CallStorage]) -> tuple[tuple[CallStorage, ...], ...]:
    """Return for each call what was made or read by then and is not needed any more."""
    last: dict[CallStorage, int] = {}
    for at, call in enumerate(calls):
        used = [view.source for view in call.used()]
        last.update((source, at) for source in (*used, *call.results.values()))
    dies: list[list[CallStorage]] = [[] for _ in calls]
    for source, at in last.items():
        if source not in stay:
            dies[at].append(source)
    return tuple(map(tuple, dies))
