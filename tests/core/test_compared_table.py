"""The table of ops that were compared with the rig is made from cases whose events were equal, and from no others."""

from __future__ import annotations

import json

from benchmarks.accuracy.compared import rendered, table_of
from benchmarks.accuracy.single_ops import cases
from benchmarks.accuracy.singles import record_of


def test_only_ops_of_equal_cases_are_in_the_table() -> None:
    # given two jobs that were equal, on two kinds of GPU, and one that was not
    records = [
        {"equal": True, "capability": 90, "compared": ["aten.mm.default float32", "aten.add.Tensor any"]},
        {"equal": True, "capability": 80, "compared": ["aten.mm.default float32", "aten.mm.default float16"]},
        {"equal": False, "capability": 90, "compared": ["aten.sort.default float32"]},
        {"error": "no answer within 600 s"},
    ]

    # when the table is made
    table = table_of(records)

    # then each op has its dtypes, with how often and where it was equal
    assert table == {
        "aten.add.Tensor": {"any": {"cases": 1, "capabilities": [90]}},
        "aten.mm.default": {
            "float16": {"cases": 1, "capabilities": [80]},
            "float32": {"cases": 2, "capabilities": [80, 90]},
        },
    }
    assert json.loads(rendered(table))["ops"] == table


def test_a_case_is_equal_only_where_both_ran_and_did_the_same() -> None:
    # given what a case did on either side
    done = {"events": [["a", 0, 512], ["f", 0, 512]], "problem": "", "compared": ["aten.mm.default float32"]}
    more = {**done, "events": [["a", 0, 512], ["a", 1, 4], ["f", 1, 4], ["f", 0, 512]]}
    raised = {**done, "problem": "RuntimeError: no"}

    # then the same events are equal, others are shown, and a case that was raised in is not compared at all
    assert record_of("mm", 90, done, done)["equal"]
    told = record_of("mm", 90, more, done)
    assert (told["equal"], told["rig"], told["virtual"]) == (False, "a0:512 a1:4 f1 f0", "a0:512 f0")
    assert not record_of("mm", 90, raised, raised)["equal"]
    assert record_of("mm", 90, done, raised)["problem"] == "virtual device: RuntimeError: no"


def test_cases_have_names_of_their_own() -> None:
    assert len(cases()) > 1000
