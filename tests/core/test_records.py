"""Records refuse values that contradict each other, naming the field, the value and what is allowed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest

from elbowroom.errors import ElbowroomError, InvalidRecord
from elbowroom.machine import Link, Machine, Tier
from elbowroom.plan import Algorithm, Bound, Plan, Recompute, Swap
from elbowroom.timeline import Curve, Span, Timeline
from elbowroom.trace import Choice, Event, OnStream, Op, Save, Step, Storage, Trace, Workspace


def but(fields: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return fields | changes


OP: dict[str, Any] = {"name": "mm", "module": "", "phase": "forward", "reads": (0,), "writes": (1,), "duration_ns": 5}
CHOICE: dict[str, Any] = {"name": "gemm", "duration_ns": 5, "workspace_bytes": 8}
STORAGE: dict[str, Any] = {"size_bytes": 64, "category": "activation", "dtype": "float32"}
SAVE: dict[str, Any] = {"storage": 1, "saved_at": 1, "idle_from": 1, "read_at": (1, 2)}
TRACE: dict[str, Any] = {
    "device": "cpu",
    "torch_version": "2.13.0",
    "ops": (Op(**OP), Op(**OP)),
    "storages": (Storage(**STORAGE), Storage(**STORAGE)),
    "events": (Event(-1, 0, 64), Event(0, 1, 64), Event(1, 1, -64)),
    "saves": (Save(**SAVE),),
    "steps": (Step(0, 1), Step(1, 2)),
}
LINK: dict[str, Any] = {
    "upper": "device",
    "lower": "disk",
    "out_bytes_per_s": 1,
    "back_bytes_per_s": 1,
    "latency_ns": 0,
    "shared_by": 1,
}
DEVICE, HOST, DISK = (Tier(name=name, capacity_bytes=1) for name in ("device", "host", "disk"))
MACHINE: dict[str, Any] = {"name": "here", "tiers": (DEVICE, DISK), "links": (Link(**LINK),)}
SWAP: dict[str, Any] = {"storage": 1, "tier": "disk", "out_after_op": 1, "back_before_op": 2}
RECOMPUTE: dict[str, Any] = {"storages": (3, 4), "recipe": (0, 1), "before_op": 2}
ALGORITHM: dict[str, Any] = {"op": 4, "choice": "gemm"}
BOUND: dict[str, Any] = {"machine": "here", "step_ns": 12, "lower_bound_ns": 10}
PLAN: dict[str, Any] = {"trace_id": "", "planner": "x", "budget_bytes": 1, "swaps": (Swap(**SWAP),)}
SPAN: dict[str, Any] = {"lane": "compute", "kind": "op", "name": "mm", "start_ns": 1, "end_ns": 2, "op": 0}
CURVE: dict[str, Any] = {"tier": "device", "kind": "allocated", "at_ns": (0, 1), "size_bytes": (1, 2)}
TIMELINE: dict[str, Any] = {
    "source": "measured",
    "trace_id": "",
    "step_ns": 2,
    "spans": (Span(**SPAN),),
    "curves": (Curve(**CURVE),),
    "at_peak": (("activation", 2), ("input", 1)),
}
FIELDS: dict[type, dict[str, Any]] = {
    Choice: CHOICE,
    Op: OP,
    Storage: STORAGE,
    Save: SAVE,
    Workspace: {"storage": 0, "least_bytes": 0, "most_bytes": 64},
    Trace: TRACE,
    Tier: {"name": "device", "capacity_bytes": 1},
    Link: LINK,
    Machine: MACHINE,
    Swap: SWAP,
    Recompute: RECOMPUTE,
    Algorithm: ALGORITHM,
    Bound: BOUND,
    Plan: PLAN,
    Span: SPAN,
    Curve: CURVE,
    Timeline: TIMELINE,
}
INT = r"an int from 0 to 2\*\*63 - 1"

REFUSED: list[tuple[type, dict[str, Any], str]] = [
    # a type that is not the field's
    (Op, {"name": 3}, r"Op\.name: given 3; allowed is a str of Unicode text"),
    (Op, {"module": "\ud800"}, r"Op\.module: given '\\ud800'; allowed is a str"),
    (
        Op,
        {"phase": "sideways"},
        r"Op\.phase: given 'sideways'; allowed is one of 'forward', 'backward', 'optimizer', 'other'",
    ),
    (Op, {"reads": [0]}, r"Op\.reads: given \[0\]; allowed is a tuple of ints"),
    (Op, {"reads": (0, True)}, rf"Op\.reads\[1\]: given True; allowed is {INT}"),
    (Op, {"writes": (-1,)}, rf"Op\.writes\[0\]: given -1; allowed is {INT}"),
    (Op, {"duration_ns": 1.5}, rf"Op\.duration_ns: given 1\.5; allowed is {INT}"),
    (Op, {"duration_ns": True}, rf"Op\.duration_ns: given True; allowed is {INT}"),
    (Op, {"flops": 2**63}, rf"Op\.flops: given 9223372036854775808; allowed is {INT}"),
    (Storage, {"size_bytes": -1}, rf"Storage\.size_bytes: given -1; allowed is {INT}"),
    (Storage, {"category": "weight"}, r"Storage\.category: given 'weight'; allowed is one of 'parameter', 'gradient'"),
    (Storage, {"dtype": None}, r"Storage\.dtype: given None"),
    # saves
    (Save, {"read_at": (0,)}, r"Save\.read_at\[0\]: given 0; allowed is an int from 1 to"),
    (Save, {"read_at": (2, 1)}, r"Save\.read_at\[1\]: given 1; allowed is at least 2, the value before it"),
    (Save, {"idle_from": 0}, r"Save\.idle_from: given 0; allowed is an int from 1 to"),
    # workspaces
    (Workspace, {"least_bytes": 65}, r"Workspace\.most_bytes: given 64; allowed is an int from 65 to"),
    (
        Trace,
        {"workspaces": (Workspace(storage=0, least_bytes=0, most_bytes=64),)},
        r"Trace\.workspaces\[0\]\.storage: given 0; allowed is a storage of category 'workspace'",
    ),
    (
        Trace,
        {
            "storages": (Storage(**but(STORAGE, category="workspace")), Storage(**STORAGE)),
            "workspaces": (Workspace(storage=0, least_bytes=0, most_bytes=63),),
        },
        r"Trace\.workspaces\[0\]: given \(0, 63\); allowed is bounds of the storage's 64 bytes",
    ),
    (Trace, {"streams": (OnStream(0, 0),)}, r"Trace\.streams\[0\]\.stream: given 0; allowed is an int from 1 to"),
    (Trace, {"streams": (OnStream(99, 1),)}, r"Trace\.streams\[0\]\.storage: given 99; allowed is an int from 0 to"),
    (Trace, {"empties": (9,)}, r"Trace\.empties\[0\]: given 9; allowed is an int from 0 to"),
    (Trace, {"empties": (1, 0)}, r"Trace\.empties\[1\]: given 0; allowed is at least 1, the value before it"),
    # traces
    (Trace, {"ops": (Op(**but(OP, reads=(2,))),)}, r"Trace\.ops\[0\]: storage: given 2; allowed is an id below 2"),
    (
        Trace,
        {"ops": (Step(0, 1),)},
        r"Trace\.ops\[0\]: given Step\(first_op=0, end_op=1\); allowed is an instance of Op",
    ),
    (Trace, {"ops": []}, r"Trace\.ops: given \[\]; allowed is a tuple of Op"),
    (Trace, {"events": ((0, 0, 64),)}, r"Trace\.events\[0\]: given \(0, 0, 64\); allowed is an instance of Event"),
    (Trace, {"events": (Event(-2, 0, 64),)}, r"Trace\.events\[0\]\.op: given -2; allowed is an int from -1 to 1"),
    (Trace, {"events": (Event(2, 0, 64),)}, r"Trace\.events\[0\]\.op: given 2; allowed is an int from -1 to 1"),
    (
        Trace,
        {"events": (Event(1, 0, 64), Event(0, 1, 64))},
        r"Trace\.events\[1\]\.op: given 0; allowed is an int from 1 to 1",
    ),
    (Trace, {"events": (Event(0, 2, 64),)}, r"Trace\.events\[0\]\.storage: given 2; allowed is an int from 0 to 1"),
    (
        Trace,
        {"events": (Event(0, 0, 63),)},
        r"Trace\.events\[0\]\.size_bytes: given 63; allowed is 64 to allocate storage 0",
    ),
    (Trace, {"events": (Event(0, 0, 0),)}, r"Trace\.events\[0\]\.size_bytes: given 0"),
    (Trace, {"events": (Event(0, 0, -64),)}, r"Trace\.events\[0\]: given .*; allowed is one free of storage 0, after"),
    (
        Trace,
        {"events": (Event(0, 0, 64),) * 2},
        r"Trace\.events\[1\]: given .*; allowed is one allocation of storage 0",
    ),
    (
        Trace,
        {"events": (Event(0, 0, 64), Event(0, 0, -64), Event(0, 0, -64))},
        r"Trace\.events\[2\]: given \(0, 0, -64\); allowed is one free of storage 0",
    ),
    (
        Trace,
        {"events": (Event(0, 0, 64), Event(0, 0, -64), Event(0, 0, 64))},
        r"Trace\.events\[2\]: given \(0, 0, 64\); allowed is one allocation of storage 0",
    ),
    (
        Trace,
        {"saves": (Save(**but(SAVE, storage=2)),)},
        r"Trace\.saves\[0\]\.storage: given 2; allowed is an int from 0 to 1",
    ),
    (
        Trace,
        {"saves": (Save(**but(SAVE, read_at=(3,))),)},
        r"Trace\.saves\[0\]\.read_at\[0\]: given 3; allowed .* 0 to 2",
    ),
    (Trace, {"saves": (Save(**but(SAVE, idle_from=3)),)}, r"Trace\.saves\[0\]\.idle_from: given 3; allowed .* 0 to 2"),
    (
        Trace,
        {"saves": (Save(**SAVE), Save(**but(SAVE, saved_at=0)))},
        r"Trace\.saves\[1\]\.saved_at: given 0; allowed is an int from 1 to 2",
    ),
    (Trace, {"steps": ()}, r"Trace\.steps: given \(\); allowed is at least one step"),
    (Trace, {"steps": (Step(0, 3),)}, r"Trace\.steps\[0\]\.end_op: given 3; allowed is an int from 0 to 2"),
    (Trace, {"steps": (Step(1, 0),)}, r"Trace\.steps\[0\]\.end_op: given 0; allowed is an int from 1 to 2"),
    (Trace, {"steps": (Step(-1, 0),)}, r"Trace\.steps\[0\]\.first_op: given -1; allowed is an int from 0 to 2"),
    (
        Trace,
        {"steps": (Step(0, 0), Step(1, 2))},
        r"Trace\.steps\[1\]\.first_op: given 1; allowed is an int from 0 to 0",
    ),
    # machines
    (Tier, {"name": "tape"}, r"Tier\.name: given 'tape'; allowed is one of 'device', 'host', 'disk'"),
    (Tier, {"capacity_bytes": -1}, rf"Tier\.capacity_bytes: given -1; allowed is {INT}"),
    (
        Link,
        {"lower": "device"},
        r"Link\.lower: given 'device'; allowed is a tier below 'device', in the order device, host, disk",
    ),
    (Link, {"out_bytes_per_s": 0}, r"Link\.out_bytes_per_s: given 0; allowed is an int from 1 to"),
    (Link, {"back_bytes_per_s": 0}, r"Link\.back_bytes_per_s: given 0; allowed is an int from 1 to"),
    (Link, {"latency_ns": -1}, rf"Link\.latency_ns: given -1; allowed is {INT}"),
    (Link, {"shared_by": 0}, r"Link\.shared_by: given 0; allowed is an int from 1 to"),
    (Machine, {"tiers": ()}, r"Machine\.tiers: given \(\); allowed is 'device' first"),
    (Machine, {"tiers": (HOST, DISK)}, r"Machine\.tiers: given \('host', 'disk'\); allowed is 'device' first"),
    (Machine, {"tiers": (DEVICE, DISK, HOST)}, r"Machine\.tiers: given .*; allowed is 'device' first"),
    (Machine, {"tiers": (DEVICE, DEVICE)}, r"Machine\.tiers: given .*; allowed is 'device' first"),
    (
        Machine,
        {"tiers": (DEVICE, HOST, DISK)},
        r"Machine\.links\[0\]: given \('device', 'disk'\); allowed is a link between",
    ),
    (
        Machine,
        {"links": (Link(**LINK),) * 2},
        r"Machine\.links\[1\]: given \('device', 'disk'\); allowed is a value that does",
    ),
    (Machine, {"outside_bytes": -1}, rf"Machine\.outside_bytes: given -1; allowed is {INT}"),
    (Machine, {"flops_per_s": 1e12}, r"Machine\.flops_per_s: given 1000000000000\.0"),
    (Machine, {"memory_bytes_per_s": None}, r"Machine\.memory_bytes_per_s: given None"),
    (Machine, {"allocator": None}, r"Machine\.allocator: given None"),
    # plans
    (Swap, {"tier": "device"}, r"Swap\.tier: given 'device'; allowed is one of 'host', 'disk'"),
    (Swap, {"storage": -1}, rf"Swap\.storage: given -1; allowed is {INT}"),
    (Swap, {"out_after_op": -2}, r"Swap\.out_after_op: given -2; allowed is an int from -1 to"),
    (Swap, {"back_before_op": -1}, rf"Swap\.back_before_op: given -1; allowed is {INT}"),
    (Recompute, {"storages": ()}, r"Recompute\.storages: given \(\); allowed is at least one storage"),
    (Recompute, {"storages": (1, 1)}, r"Recompute\.storages\[1\]: given 1; allowed is a value that does not stand"),
    (Recompute, {"recipe": ()}, r"Recompute\.recipe: given \(\); allowed is at least one op"),
    (Recompute, {"recipe": (1, 0)}, r"Recompute\.recipe\[1\]: given 0; allowed is at least 1, the value before it"),
    (Recompute, {"recipe": (1, 1)}, r"Recompute\.recipe\[1\]: given 1; allowed is a value that does not stand"),
    (Recompute, {"before_op": 1}, r"Recompute\.recipe, last: given 1; allowed is an op before before_op, 1"),
    (Algorithm, {"op": -1}, rf"Algorithm\.op: given -1; allowed is {INT}"),
    (Algorithm, {"choice": None}, r"Algorithm\.choice: given None"),
    (Bound, {"lower_bound_ns": 13}, r"Bound\.lower_bound_ns: given 13; allowed is an int from 0 to 12"),
    (Bound, {"machine": 1}, r"Bound\.machine: given 1"),
    (Choice, {"workspace_bytes": -1}, rf"Choice\.workspace_bytes: given -1; allowed is {INT}"),
    (Choice, {"duration_ns": -1}, rf"Choice\.duration_ns: given -1; allowed is {INT}"),
    (Choice, {"name": None}, r"Choice\.name: given None"),
    (
        Op,
        {"choices": (Choice(**but(CHOICE, duration_ns=8)),)},
        r"Op\.choices\[0\]\.duration_ns: given 8; allowed is the op's duration_ns, 5",
    ),
    (Op, {"choices": (Choice(**CHOICE),) * 2}, r"Op\.choices\.name\[1\]: given 'gemm'; allowed is"),
    (Op, {"choices": [1]}, r"Op\.choices: given \[1\]; allowed is a tuple of Choice"),
    (
        Plan,
        {"recomputes": (Recompute(**but(RECOMPUTE, storages=(1, 3))),)},
        r"Plan\.swaps\.storage and Plan\.recomputes\.storages\[1\]: given 1; allowed is a value",
    ),
    (
        Plan,
        {"recomputes": (Recompute(**RECOMPUTE), Recompute(storages=(5,), recipe=(0,), before_op=1))},
        r"Plan\.recomputes\.before_op\[1\]: given 1; allowed is at least 2, the value before it",
    ),
    (Plan, {"algorithms": (Algorithm(**ALGORITHM),) * 2}, r"Plan\.algorithms\.op\[1\]: given 4; allowed is a value"),
    (Plan, {"bound": 3}, r"Plan\.bound: given 3; allowed is an instance of Bound, or None"),
    (Plan, {"budget_bytes": -1}, rf"Plan\.budget_bytes: given -1; allowed is {INT}"),
    (Plan, {"trace_id": None}, r"Plan\.trace_id: given None"),
    (
        Plan,
        {"swaps": (Swap(**SWAP),) * 2},
        r"Plan\.swaps\[1\]: given \(1, 1\); allowed is a value that does not stand before",
    ),
    (
        Plan,
        {"swaps": (Swap(**SWAP), Swap(**but(SWAP, storage=2, out_after_op=0)))},
        r"Plan\.swaps\.out_after_op\[1\]: given 0; allowed is at least 1, the value before it",
    ),
    # timelines
    (Span, {"lane": "bus"}, r"Span\.lane: given 'bus'; allowed is one of 'compute', 'copy out'"),
    (Span, {"kind": "copy"}, r"Span\.kind: given 'copy'; allowed is one of 'op', 'stall', 'swap_out', 'swap_back'"),
    (Span, {"end_ns": 0}, r"Span\.end_ns: given 0; allowed is at least start_ns, 1"),
    (Span, {"op": -1}, rf"Span\.op: given -1; allowed is {INT}"),
    (Span, {"storage": -1}, rf"Span\.storage: given -1; allowed is {INT}"),
    (Span, {"size_bytes": -1}, rf"Span\.size_bytes: given -1; allowed is {INT}"),
    (
        Curve,
        {"at_ns": ()},
        r"Curve lengths of at_ns and size_bytes: given \(0, 2\); allowed is the same length, at least 1",
    ),
    (Curve, {"at_ns": (), "size_bytes": ()}, r"Curve lengths of at_ns and size_bytes: given \(0, 0\)"),
    (Curve, {"at_ns": (1, 0)}, r"Curve\.at_ns\[1\]: given 0; allowed is at least 1, the value before it"),
    (Curve, {"size_bytes": (1, -1)}, rf"Curve\.size_bytes\[1\]: given -1; allowed is {INT}"),
    (Curve, {"kind": "used"}, r"Curve\.kind: given 'used'; allowed is one of 'allocated', 'reserved'"),
    (
        Timeline,
        {"source": "predicted"},
        r"Timeline\.source: given 'predicted'; allowed is one of 'simulated', 'measured'",
    ),
    (Timeline, {"step_ns": -1}, rf"Timeline\.step_ns: given -1; allowed is {INT}"),
    (
        Timeline,
        {"spans": (Span(**SPAN), Span(**but(SPAN, start_ns=0)))},
        r"Timeline\.spans\.start_ns\[1\]: given 0; allowed is at least 1, the value before it",
    ),
    (
        Timeline,
        {"curves": (Curve(**CURVE),) * 2},
        r"Timeline\.curves\[1\]: given \('device', 'allocated'\); allowed is a value",
    ),
    (Timeline, {"at_peak": (("weight", 1),)}, r"Timeline\.at_peak category: given 'weight'; allowed is one of"),
    (Timeline, {"at_peak": (("input", -1),)}, rf"Timeline\.at_peak bytes: given -1; allowed is {INT}"),
    (
        Timeline,
        {"at_peak": (("input",),)},
        r"Timeline\.at_peak\[0\]: given \('input',\); allowed is a tuple of 2 values",
    ),
    (Timeline, {"at_peak": ("ab",)}, r"Timeline\.at_peak\[0\]: given 'ab'; allowed is a tuple of 2 values"),
    (Timeline, {"at_peak": (("input", 1),) * 2}, r"Timeline\.at_peak category\[1\]: given 'input'; allowed is a value"),
    (
        Timeline,
        {"at_peak": (("input", 1), ("buffer", 2))},
        r"Timeline\.at_peak bytes, from the last\[1\]: given 1; allowed is",
    ),
]


@pytest.mark.parametrize(("kind", "changes", "message"), REFUSED, ids=[f"{k.__name__}-{c}"[:60] for k, c, _ in REFUSED])
def test_a_record_refuses(kind: type, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRecord, match="^" + message):
        kind(**but(FIELDS[kind], **changes))


@pytest.mark.parametrize("kind", FIELDS)
def test_the_records_that_the_cases_start_from_are_allowed(kind: type) -> None:
    assert dataclasses.asdict(kind(**FIELDS[kind])).keys() >= FIELDS[kind].keys()


@pytest.mark.parametrize("kind", FIELDS)
def test_records_are_frozen_slotted_and_keyword_only(kind: type) -> None:
    record = kind(**FIELDS[kind])
    name = next(iter(FIELDS[kind]))

    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, name, None)
    assert not hasattr(record, "__dict__")
    with pytest.raises(TypeError, match="positional"):
        kind(*FIELDS[kind].values())


@pytest.mark.parametrize(
    "allowed",
    [
        lambda: Trace(**but(TRACE, ops=(), events=(), saves=(), steps=(Step(0, 0),))),
        lambda: Trace(**but(TRACE, steps=(Step(1, 2),))),  # recording may begin before the first step
        lambda: Trace(**but(TRACE, saves=(Save(storage=0, saved_at=2, idle_from=None, read_at=()),))),
        lambda: Storage(size_bytes=0, category="temporary"),
        lambda: Plan(**but(PLAN, swaps=())),
        lambda: Timeline(**but(TIMELINE, spans=(), curves=(), at_peak=())),
        lambda: Machine(name="", tiers=(DEVICE,), links=()),
    ],
)
def test_edges_are_allowed(allowed: Callable[[], object]) -> None:
    assert allowed() == allowed()


@pytest.mark.parametrize(
    ("lines", "of_ops", "said"),
    [
        (("a.py:1",), (0, 0, 0), "given '3 values'; allowed is one for each of the 2 ops, or none"),
        (("a.py:1",), (1, None), r"op_source_lines\[0\]: given 1; allowed is an int from 0 to 0"),
        (("a.py:1", "a.py:1"), (0, 0), r"source_lines\[1\]: given 'a.py:1'"),
    ],
)
def test_source_lines_are_one_for_each_op_or_none(lines: tuple[str, ...], of_ops: tuple[int, ...], said: str) -> None:
    with pytest.raises(InvalidRecord, match=said):
        Trace(**but(TRACE, source_lines=lines, op_source_lines=of_ops))


def test_an_op_has_a_source_line_or_an_empty_text() -> None:
    trace = Trace(**but(TRACE, source_lines=("a.py:1",), op_source_lines=(0, None)))
    assert [trace.source_line(op) for op in (0, 1, -1)] == ["a.py:1", "", ""]
    assert Trace(**TRACE).source_line(0) == ""


def test_the_id_of_a_trace_follows_from_its_content_alone() -> None:
    trace, same, other = Trace(**TRACE), Trace(**TRACE), Trace(**but(TRACE, device="cuda:0"))

    assert trace.id == same.id == trace.id
    assert len(trace.id) == 16
    assert dataclasses.replace(trace, device="cuda:0").id == other.id != trace.id
    assert trace == same  # the one that was asked for its id and the one that was not are equal


@pytest.mark.parametrize(("step_ns", "least_ns", "gap"), [(12, 10, 0.2), (0, 0, 0.0), (1, 0, float("inf"))])
def test_the_gap_is_the_time_above_the_lower_bound_as_a_share_of_it(step_ns: int, least_ns: int, gap: float) -> None:
    assert Bound(machine="here", step_ns=step_ns, lower_bound_ns=least_ns).gap == gap


def test_a_refusal_is_an_elbowroom_error_and_a_value_error() -> None:
    with pytest.raises(ElbowroomError) as problem:
        Storage(size_bytes=-1, category="input")
    assert isinstance(problem.value, ValueError)


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(InvalidRecord) as problem:
        Op(**but(OP, phase="x" * 10_000))
    assert len(str(problem.value)) < 200


def test_a_hundred_thousand_ops_are_checked_in_seconds() -> None:
    count = 100_000
    start = time.perf_counter()
    Trace(
        device="cpu",
        torch_version="",
        ops=tuple(Op(**but(OP, reads=(index,), writes=(index,))) for index in range(count)),
        storages=(Storage(size_bytes=1, category="temporary"),) * count,
        events=tuple(Event(index, index, 1) for index in range(count)),
        saves=(),
        steps=(Step(0, count),),
    )
    assert time.perf_counter() - start < 20  # 1 s on the slowest machine seen; the bound only catches quadratic work


def test_the_repr_of_a_record_is_one_short_line_whatever_it_holds() -> None:
    # given 1,000 ops, and what one byte or one op more adds to a line
    many = Trace(**but(TRACE, ops=(Op(**OP),) * 1000, steps=(Step(0, 1000),)))

    # then: 1 byte is 1 B, 2 ns are 2 ns
    assert repr(many) == "<Trace of cpu, torch 2.13.0: 1 steps, 1000 ops, 2 storages, 1 saves>"
    assert repr(Plan(**PLAN)) == "<Plan by x within 1 B: 1 swaps, 0 recomputes, 0 algorithms>"
    assert repr(Machine(**MACHINE)) == "<Machine here: device 1 B, disk 1 B>"
    assert repr(Timeline(**TIMELINE)) == "<Timeline measured: step 2 ns, 1 spans, peak allocated 2 B, reserved 2 B>"
