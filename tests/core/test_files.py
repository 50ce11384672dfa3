"""Records as files: what is written reads back the same, and what is not a record is one clear error."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.errors import FormatError
from elbowroom.files import codec, older_versions
from elbowroom.files import record_files as files
from elbowroom.machine import Link, Machine, Tier
from elbowroom.plan import Algorithm, Bound, Plan, Recompute, Swap
from elbowroom.timeline import Curve, Span, Timeline
from elbowroom.trace import Choice, Event, OnStream, Op, Save, Step, Storage, Trace, Workspace
from tests.core import strategies

TRACE = Trace(
    device="cpu",
    torch_version="2.13.0",
    ops=(
        Op(name="aten.mm.default", module="Net.0", phase="forward", reads=(0,), writes=(1,), duration_ns=5),
        Op(name="aten.mm.default", module="Net.0", phase="backward", reads=(1,), writes=(), duration_ns=7, flops=9),
        Op(
            name="aten.convolution",
            module="Net.1",
            phase="backward",
            reads=(1,),
            writes=(),
            duration_ns=7,
            choices=(
                Choice(name="gemm", duration_ns=7, workspace_bytes=0),
                Choice(name="fft", duration_ns=3, workspace_bytes=64),
            ),
        ),
    ),
    storages=(
        Storage(size_bytes=64, category="parameter", dtype="float32"),
        Storage(size_bytes=32, category="activation"),
        Storage(size_bytes=16, category="workspace"),
    ),
    events=(Event(-1, 0, 64), Event(0, 1, 32), Event(1, 1, -32)),
    saves=(Save(storage=1, saved_at=1, idle_from=None, read_at=(1,)),),
    steps=(Step(0, 3),),
    workspaces=(Workspace(storage=2, least_bytes=0, most_bytes=64),),
    empties=(2,),
    streams=(OnStream(1, 3),),
    source_lines=("train.py:4 in Net.forward",),
    op_source_lines=(0, 0, None),
)
MACHINE = Machine(
    name="here",
    tiers=(Tier(name="device", capacity_bytes=2**30), Tier(name="disk", capacity_bytes=2**40)),
    links=(Link(upper="device", lower="disk", out_bytes_per_s=1, back_bytes_per_s=2, latency_ns=3),),
)
PLAN = Plan(
    trace_id=TRACE.id,
    planner="swap_greedy",
    budget_bytes=80,
    swaps=(Swap(storage=1, tier="disk", out_after_op=0, back_before_op=1),),
    recomputes=(Recompute(storages=(2, 3), recipe=(0,), before_op=1),),
    algorithms=(Algorithm(op=1, choice="gemm"),),
    bound=Bound(machine="here", step_ns=12, lower_bound_ns=10),
)
TIMELINE = Timeline(
    source="simulated",
    trace_id=TRACE.id,
    step_ns=12,
    spans=(Span(lane="compute", kind="op", name="aten.mm.default", start_ns=0, end_ns=5, op=0),),
    curves=(Curve(tier="device", kind="allocated", at_ns=(0, 5), size_bytes=(64, 96)),),
    at_peak=(("parameter", 64), ("activation", 32)),
)
RECORDS = [TRACE, MACHINE, PLAN, TIMELINE]


@given(st.one_of(strategies.traces(), strategies.machines(), strategies.plans, strategies.timelines))
def test_every_record_reads_back_the_same(record: Trace | Machine | Plan | Timeline) -> None:
    data = files.encode(record)

    again = files.decode(data, type(record))

    assert again == record
    assert files.encode(again) == data


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_saved_and_loaded_by_its_own_methods(record: Trace, tmp_path: Path) -> None:
    record.save(tmp_path / "record.json")

    assert type(record).load(tmp_path / "record.json") == record
    assert files.load(tmp_path / "record.json", Trace, Machine, Plan, Timeline) == record


def test_a_plan_as_a_file_is_this_text() -> None:
    swaps = '{"columns":["storage","tier","out_after_op","back_before_op"],"rows":[[1,"disk",0,1]]}'
    recomputes = '{"columns":["storages","recipe","before_op"],"rows":[[[2,3],[0],1]]}'
    algorithms = '{"columns":["op","choice"],"rows":[[1,"gemm"]]}'
    bound = '{"machine":"here","step_ns":12,"lower_bound_ns":10}'
    assert files.encode(PLAN).decode() == (
        f'{{"magic":"elbowroom.plan","version":2,"trace_id":"{TRACE.id}","planner":"swap_greedy","budget_bytes":80,'
        f'"swaps":{swaps},"recomputes":{recomputes},"algorithms":{algorithms},"bound":{bound}}}\n'
    )


def test_the_choices_of_an_op_are_rows_inside_its_row() -> None:
    rows = json.loads(files.encode(TRACE))["ops"]["rows"]
    assert [row[-1] for row in rows] == [[], [], [["gemm", 7, 0], ["fft", 3, 64]]]


def test_a_file_of_an_older_version_is_read_where_a_change_leads_to_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    # given plans of version 1, which had no bound
    monkeypatch.setattr(older_versions, "CHANGES", {"plan": {1: lambda content: content | {"bound": None}}})
    content = json.loads(files.encode(PLAN)) | {"version": 1}
    del content["bound"]

    # then
    assert files.decode(json.dumps(content).encode(), Plan) == replace(PLAN, bound=None)


@pytest.mark.parametrize(("record", "version"), [(PLAN, 1), (TRACE, 6), (TRACE, 0)])
def test_a_version_that_no_release_wrote_is_refused(record: Plan | Trace, version: int) -> None:
    content = json.loads(files.encode(record))
    newest = content["version"]
    with pytest.raises(FormatError, match=rf"^version: given {version}; allowed is {newest}; make the file again"):
        files.decode(json.dumps(content | {"version": version}).encode(), Plan, Trace)


def test_the_id_of_a_trace_is_the_start_of_its_files_sha256(tmp_path: Path) -> None:
    TRACE.save(tmp_path / "trace.json")

    assert TRACE.id == hashlib.sha256((tmp_path / "trace.json").read_bytes()).hexdigest()[:16]
    assert Trace.load(tmp_path / "trace.json").id == TRACE.id


def test_a_file_replaces_the_one_before_it_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a file, and a disk that fails at the last moment
    path = tmp_path / "plan.json"
    PLAN.save(path)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)

    # when another record is saved there, then it fails with the path, and the file is what it was
    with pytest.raises(
        FormatError, match=r"plan\.json: cannot be written: No space left on device; name another path$"
    ):
        MACHINE.save(path)
    assert Plan.load(path) == PLAN
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_file_has_mode_0644_less_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        PLAN.save(tmp_path / "plan.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "plan.json")
    PLAN.save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert Plan.load(tmp_path / "plan.json") == PLAN


def test_a_pipe_is_written_to_and_not_waited_for_where_nobody_writes(tmp_path: Path) -> None:
    # given
    pipe, found = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    with pytest.raises(FormatError, match="it is a named pipe"):
        Plan.load(pipe)
    # when
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    PLAN.save(pipe)
    reader.join(10)
    # then
    (tmp_path / "plan.json").write_bytes(found[0])
    assert Plan.load(tmp_path / "plan.json") == PLAN


@pytest.mark.parametrize("name", ["", "gone/plan.json"])
def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        FormatError, match=r"cannot be written: (it is a directory|No such file or directory); name another path$"
    ):
        PLAN.save(tmp_path / name)


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
    with pytest.raises(
        FormatError, match=r"the plan takes \d{3} bytes as a file; allowed are 100: record fewer steps$"
    ):
        PLAN.save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


# Hostile files. Each entry: what is done to the text of a good plan or trace, and what the error says.


def plan_with(**changes: Any) -> bytes:
    return json.dumps(json.loads(files.encode(PLAN)) | changes).encode()


def swaps_with(rows: Any, columns: Any = ("storage", "tier", "out_after_op", "back_before_op")) -> bytes:
    return plan_with(swaps={"columns": columns, "rows": rows})


GOOD = files.encode(PLAN)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", r"the file is empty; make the file again"),
    "spaces": (b" \n\t ", r"the file is empty"),
    "truncated": (GOOD[:-20], r"not JSON: .* \(char \d+\); make the file again"),
    "trailing": (GOOD + b"{}", r"not JSON: Extra data"),
    "not json": (b"PK\x03\x04", r"not JSON: Expecting value"),
    "pickle": (b"\x80\x04\x95\x10.", r"not UTF-8 text \(byte 0\)"),
    "not utf-8": (GOOD.replace(b"swap_greedy", b"swap\xff"), r"not UTF-8 text \(byte \d+\)"),
    "utf-16": (GOOD.decode().encode("utf-16"), r"not UTF-8 text \(byte 0\)"),
    "byte order mark": (b"\xef\xbb\xbf" + GOOD, r"not JSON: Unexpected UTF-8 BOM"),
    "array": (b"[]", r"holds \[\]; allowed is a JSON object"),
    "number": (b"7", r"holds 7; allowed is a JSON object"),
    "null": (b"null", r"holds None; allowed is a JSON object"),
    "deep array": (b"[" * 200_000, r"nested more deeply than any record is|not JSON"),
    "deep object": (b'{"a":' * 200_000, r"nested more deeply than any record is"),
    "deep value": (
        plan_with(swaps=0).replace(b'"swaps": 0', b'"swaps":' + b"[" * 400 + b"]" * 400),
        r"swaps: given \[\[\[",
    ),
    "an answer": (
        b'{"schema": "elbowroom.answer.machine", "version": 1}',
        r"given the answer of `elbowroom machine --json`; allowed is a record: .*; write one with -o \(two answers",
    ),
    "an answer of a failure": (
        b'{"schema": "elbowroom.answer.error"}',
        r"given the answer of a command that failed; allowed is a record: .*; write one with -o \(two answers",
    ),
    "no magic": (b"{}", r"magic: there is none; allowed is 'elbowroom.plan'; check that this is the file you meant"),
    "magic of another record": (files.encode(TRACE), r"magic: given 'elbowroom.trace'; allowed is 'elbowroom.plan'"),
    "magic of another type": (plan_with(magic=[1]), r"magic: given \[1\]"),
    "newer": (plan_with(version=3), r"version: given 3, written by a newer elbowroom; allowed is 2: upgrade"),
    "version zero": (plan_with(version=0), r"version: given 0; allowed is 2"),
    "version true": (plan_with(version=True), r"version: given True"),
    "version text": (plan_with(version="1"), r"version: given '1'"),
    "no version": (b'{"magic":"elbowroom.plan"}', r"version: given None"),
    "unknown field": (
        plan_with(notes="x"),
        r"unknown field 'notes'; allowed are trace_id, planner, budget_bytes, swaps, recomputes",
    ),
    "private field": (plan_with(_id="x"), r"unknown field '_id'"),
    "missing field": (
        b'{"magic":"elbowroom.plan","version":2}',
        r"field 'trace_id' is missing; all of trace_id, planner",
    ),
    "duplicate name": (GOOD[:-2] + b',"planner":"x"}', r"the name 'planner' stands twice in one object"),
    "wrong type": (plan_with(planner=7), r"planner: given 7; allowed is a string"),
    "text for int": (plan_with(budget_bytes="80"), r"budget_bytes: given '80'; allowed is an int of at most 63 bits"),
    "float for int": (plan_with(budget_bytes=80.0), r"budget_bytes: given 80\.0"),
    "true for int": (plan_with(budget_bytes=True), r"budget_bytes: given True"),
    "null for int": (plan_with(budget_bytes=None), r"budget_bytes: given None"),
    "negative size": (
        plan_with(budget_bytes=-1),
        r"Plan\.budget_bytes: given -1; allowed is an int from 0 to 2\*\*63 - 1",
    ),
    "64 bits": (
        plan_with(budget_bytes=2**63),
        r"budget_bytes: given 9223372036854775808; allowed is an int of at most 63",
    ),
    "5000 digits": (plan_with(budget_bytes=0).replace(b": 0", b":" + b"9" * 5000, 1), r"not JSON: Exceeds the limit"),
    "nan": (plan_with(budget_bytes=float("nan")), r"not JSON: NaN is not a number that records hold"),
    "infinity": (plan_with(budget_bytes=float("-inf")), r"not JSON: -Infinity is not a number"),
    "1e999": (plan_with(budget_bytes=0).replace(b": 0", b":1e999", 1), r"budget_bytes: given inf"),
    "lone surrogate": (plan_with(planner="\ud800"), r"planner: given '\\ud800'; allowed is a string of Unicode text"),
    "table of another type": (
        plan_with(swaps=[]),
        r"swaps: given \[\]; allowed is a table, an object of columns and rows",
    ),
    "table without rows": (plan_with(swaps={"columns": []}), r"swaps: field 'rows' is missing"),
    "table with counts": (
        plan_with(swaps={"columns": [], "rows": [], "count": 10**12}),
        r"swaps: unknown field 'count'",
    ),
    "unknown column": (
        swaps_with([], ["storage", "tier", "out", "back"]),
        r"swaps: columns: .* allowed is exactly storage, tier",
    ),
    "column order": (swaps_with([], ["tier", "storage", "out_after_op", "back_before_op"]), r"swaps: columns: "),
    "columns twice": (swaps_with([], ["storage"] * 4), r"swaps: columns: "),
    "rows of another type": (swaps_with({}), r"swaps: given \{\}; allowed is a JSON array"),
    "row of another type": (swaps_with(["abcd"]), r"swaps: row 0: given 'abcd'; allowed is a JSON array"),
    "short row": (swaps_with([[1, "disk", 0, 1], [1]]), r"swaps: row 1: given 1 values; allowed is 4: storage, tier"),
    "wrong value in a row": (
        swaps_with([[1, "disk", None, 1]]),
        r"swaps: row 0: out_after_op: given None; allowed is an int",
    ),
    "unknown tier": (
        swaps_with([[1, "tape", 0, 1]]),
        r"row 0: tier: given 'tape'; allowed is one of 'device', 'host', 'disk'",
    ),
    "contradiction in a row": (
        swaps_with([[1, "device", 3, 1]]),
        r"swaps: row 0: Swap\.tier: given 'device'; allowed is one of 'host', 'disk'",
    ),
    "contradiction of rows": (
        swaps_with([[1, "disk", 0, 1]] * 2),
        r"Plan\.swaps\[1\]: given \(1, 0\); allowed is a value",
    ),
    "bound of another type": (plan_with(bound=[1]), r"bound: given \[1\]; allowed is a JSON object"),
    "bound with an unknown field": (
        plan_with(bound={"machine": "", "step_ns": 1, "lower_bound_ns": 1, "gap": 0}),
        r"bound: unknown field 'gap'; allowed are machine, step_ns, lower_bound_ns",
    ),
    "bound above the step": (
        plan_with(bound={"machine": "", "step_ns": 1, "lower_bound_ns": 2}),
        r"Bound\.lower_bound_ns: given 2; allowed is an int from 0 to 1",
    ),
}


@pytest.mark.parametrize(("data", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_one_clear_error_that_names_it(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message) as problem:
        Plan.load(path)
    text = str(problem.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert len(text) < 600


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, r": cannot be read: No such file or directory; check the path$"),
        (lambda path: path.mkdir(), r": it is a folder; allowed is the path of a file; check the path$"),
        (lambda path: path.symlink_to(path), r": cannot be read: Too many levels of symbolic links; check the path$"),
    ],
    ids=["missing", "directory", "loop"],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "trace.json")
    with pytest.raises(FormatError, match=message):
        Trace.load(tmp_path / "trace.json")


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", len(GOOD) - 1)
    path = tmp_path / "plan.json"
    path.write_bytes(GOOD)
    with pytest.raises(
        FormatError, match=rf"larger than the {len(GOOD) - 1} bytes that are allowed; record fewer steps$"
    ):
        Plan.load(path)


def test_reading_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    TRACE.save(path)
    tracemalloc.start()
    try:
        Trace.load(path)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 2**22, "below a container's limit a request for the largest file may fail"


def test_a_device_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 2**20)
    with pytest.raises(FormatError, match=r"^/dev/zero: larger than the 1048576 bytes"):
        Plan.load("/dev/zero")


def test_many_duplicate_names_are_found_at_once() -> None:
    # quadratic work on a million names would run into the time limit of the tests
    data = "{" + ",".join(f'"{name}":0' for name in range(500_000)) + ',"0":1}'
    with pytest.raises(FormatError, match=r"the name '0' stands twice"):
        files.decode(data.encode(), Plan)


@given(st.data())
def test_a_changed_byte_is_an_error_or_another_record(data: st.DataObject) -> None:
    # given a trace's file with some bytes overwritten
    content = bytearray(files.encode(TRACE))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))

    # then reading it gives a record or a FormatError, nothing else
    with contextlib.suppress(FormatError):
        assert isinstance(files.decode(bytes(content), Trace), Trace)


@given(st.integers(0, len(files.encode(TRACE)) - 3))
def test_a_truncated_file_is_an_error(length: int) -> None:
    with pytest.raises(FormatError):
        files.decode(files.encode(TRACE)[:length], Trace)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda values: st.lists(values) | st.dictionaries(st.text(max_size=5), values),
        max_leaves=10,
    )
)
def test_any_json_in_a_field_is_an_error_or_a_value(value: Any) -> None:
    for name in ("trace_id", "budget_bytes", "swaps", "recomputes", "bound"):
        with contextlib.suppress(FormatError):
            assert isinstance(files.decode(plan_with(**{name: value}), Plan), Plan)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_the_documentation_has_the_columns_of_every_table(record: object) -> None:
    text = (Path(__file__).parents[2] / "docs" / "formats.md").read_text("utf-8")
    kind = type(record).__name__.lower()
    content = json.loads(files.encode(record))
    tables = {name: value for name, value in content.items() if isinstance(value, dict) and "columns" in value}
    assert tables
    for name, table in tables.items():
        assert f"| {kind} | `{name}` | {', '.join(table['columns'])} |" in text


def test_a_hint_without_a_rule_is_an_error_of_the_author() -> None:
    with pytest.raises(TypeError, match=r"no codec for <class 'float'>; add one"):
        codec.codec_of(float)
