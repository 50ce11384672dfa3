"""The figures and tables of benchmarks/accuracy, without training anything."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.corpus import read_corpus, read_history
from benchmarks.accuracy.differences import kind_of, report
from benchmarks.accuracy.figures import digest, error_of, figures, first_difference, numbered, percentile, spread
from benchmarks.accuracy.figures import summary as summed
from benchmarks.accuracy.public_figures import KNOWN, LAZY, known_outside, public_summary, public_table
from benchmarks.accuracy.runner import read_records
from benchmarks.accuracy.table import END, START, tables, with_older
from benchmarks.results import replace_between

RIG = Path(__file__).parents[1] / "data" / "rig"


def record(name: str, *, measured: int, simulated: int, equal: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "family": "small",
        "measured": {"allocated": measured, "reserved": measured},
        "simulated": {"allocated": simulated, "reserved": simulated},
        "equal": equal,
        **more,
    }


def test_an_error_is_negative_where_the_estimate_is_too_low() -> None:
    # 90 / 100 - 1 = -0.1
    assert error_of(90, 100) == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([3.0], 95, 3.0),
        ([1.0, 2.0, 3.0, 4.0], 50, 2.0),  # 2 of 4 are not above 2
        (list(range(1, 21)), 95, 19),  # 19 of 20 are not above 19
        (list(range(1, 22)), 95, 20),  # 19 of 21 are 90.5 %, 20 of 21 are 95.2 %
        ([5.0, 1.0], 0, 1.0),
    ],
)
def test_a_percentile_is_the_least_value_that_enough_do_not_exceed(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected


def test_a_spread_is_of_sizes_and_its_worst_keeps_the_sign() -> None:
    # given two errors below and one above, one of them by more than 1 %
    told = spread([-0.03, 0.01, -0.005])

    # then sizes are 0.005, 0.01, 0.03: the median is 0.01, 95 % need all three; 1 of 3 is under
    assert told == {"n": 3, "median": 0.01, "p95": 0.03, "worst": -0.03, "lowest": -0.03, "under_share": 0.3333}


def test_storages_are_numbered_by_first_appearance() -> None:
    assert numbered([("f", 7, 512), ("a", 9, 4), ("f", 9, 4)]) == [("f", 0, 512), ("a", 1, 4), ("f", 1, 4)]


def test_a_digest_is_of_one_line_an_event() -> None:
    assert digest([("a", 0, 4), ("f", 0, 4)]) == hashlib.sha256(b"a 0 4\nf 0 4\n").hexdigest()


def test_the_histories_of_the_corpus_have_the_digests_it_names() -> None:
    # given the smallest histories
    cases = {case.id: case for case in read_corpus(RIG)}
    for name in ("mlp-b256-adam", "rnnlm-LSTM-b20-t35-fp32-0", "tv-alexnet-b128-s224-fp32-sgdm"):
        # when one is read as the digest is made
        events = numbered(read_history(RIG / "hist" / f"{name}.jsonl.gz"))

        # then it is the history whose figures the corpus has
        told = cases[name].result["history"]
        assert digest(events) == told["sha256_steps23"]
        assert len(events) == told["events_steps23"]


def test_runs_with_less_room_are_kept_with_the_job_they_repeat() -> None:
    cases = read_corpus(RIG)

    # 324 runs, 102 of them with less room
    assert (len(cases), sum(len(case.capacities) for case in cases)) == (222, 102)
    assert all(each.spec["base"] == case.id for case in cases for each in case.capacities)


def test_the_first_difference_names_both_events_and_the_op() -> None:
    theirs = [("a", 0, 4), ("a", 1, 8)]
    mine = [("a", 0, 4), ("f", 0, 4), ("a", 1, 8)]

    found = first_difference(theirs, mine, ["one", "two", "three"])

    assert found == {"equal_events": 1, "op": "two", "expected": ["a", 1, 8], "found": ["f", 0, 4]}


def test_a_sequence_that_ends_early_differs_at_its_end() -> None:
    found = first_difference([("a", 0, 4), ("f", 0, 4)], [("a", 0, 4)], ["one"])

    assert found == {"equal_events": 1, "op": "one", "expected": ["f", 0, 4], "found": None}


def test_equal_sequences_have_no_difference() -> None:
    assert first_difference([("a", 0, 4)], [("a", 0, 4)], ["one"]) is None


@pytest.mark.parametrize(
    ("expected", "found", "kind"),
    [
        (["a", 3, 8], ["a", 3, 16], "aten.mm in forward: another size is allocated"),
        (["f", 3, 8], ["f", 2, 8], "aten.mm in forward: another storage is freed"),
        (["a", 3, 8], ["f", 2, 8], "aten.mm in forward: the rig allocates where the virtual device frees"),
        (["f", 3, 8], ["a", 4, 8], "aten.mm in forward: the rig frees where the virtual device allocates"),
        (None, ["a", 4, 8], "aten.mm in forward: one sequence ends"),
    ],
)
def test_differences_fall_into_kinds(expected: list[Any] | None, found: list[Any], kind: str) -> None:
    difference = {"equal_events": 5, "op": "aten.mm [forward] net.0", "expected": expected, "found": found}

    assert kind_of(difference) == kind


def test_the_most_frequent_kind_of_difference_comes_first() -> None:
    # given one case that differs in a free and two in a size
    def differing(name: str, found: list[Any]) -> dict[str, Any]:
        difference = {"equal_events": 1, "op": "aten.mm [forward] net", "expected": ["a", 1, 8], "found": found}
        return record(name, measured=100, simulated=101, equal=False, difference=difference)

    records = [differing("x", ["f", 0, 4]), differing("y", ["a", 1, 9]), differing("z", ["a", 1, 10])]

    text = report([*records, record("same", measured=100, simulated=100)])

    assert text.startswith("1 of 4 sequences equal.\n\n## 2 x aten.mm in forward: another size is allocated\n- y")
    assert "## 1 x aten.mm in forward: the rig allocates where the virtual device frees\n- x (reserved +1.00%)" in text


def test_a_case_that_failed_is_counted_and_has_no_error() -> None:
    told = figures([record("fine", measured=100, simulated=98), {"id": "bad", "family": "small", "error": "no"}])

    # one of two failed; 98 / 100 - 1 = -0.02 is under by more than 1 %
    assert (told["n"], told["failed"], told["equal_share"]) == (2, 1, 1.0)
    assert told["reserved"] == {
        "n": 1, "median": 0.02, "p95": 0.02, "worst": -0.02, "lowest": -0.02, "under_share": 1.0
    }  # fmt: skip


def test_verdicts_are_counted_both_ways() -> None:
    verdicts = [
        {"id": "a", "simulated": True, "measured": True, "step": 1, "measured_step": 2},
        {"id": "b", "simulated": False, "measured": True, "step": None, "measured_step": 1},
        {"id": "c", "simulated": False, "measured": False, "step": None, "measured_step": 3},
    ]

    told = summed([record("x", measured=100, simulated=100, verdicts=verdicts)])["out_of_memory"]

    assert told == {
        "n": 3,
        "right": 2,
        "said_to_fit_but_did_not": 1,
        "said_not_to_fit_but_did": 0,
        "same_step": 0,
        "same_step_n": 1,
        "wrong": ["b"],
    }


def row(model: str, measured: int | None, device: list[int], reserved: list[int], **more: Any) -> dict[str, Any]:
    estimate = {"device": device, "reserved": reserved}
    known = {"id": model, "family": "nets", "gpu": "t4", "level": "device", "rounded_to_bytes": 0, "fits": True}
    return {**known, "model": model, "measured_bytes": measured, "estimate": estimate, **more}


def test_rows_of_measured_tables_are_held_against_their_interval() -> None:
    # given a row within its interval, and one measured above it
    rows = [row("a", 100, [90, 110, 120], [40, 60, 70]), row("b", 200, [90, 100, 120], [40, 50, 70])]

    told = public_summary([{"id": "x", "rows": rows}])["families"]["nets"]

    # errors are +0.1 and -0.5: sizes 0.1 and 0.5 have the median 0.3
    assert (told["median"], told["worst"]) == (0.3, -0.5)
    assert (told["above_interval_share"], told["below_interval_share"]) == (0.5, 0.0)


def test_a_source_that_rounds_is_not_above_an_interval_by_its_rounding() -> None:
    # given 100 rounded to tens, which may be 95, and estimates of at most 95 and 94
    near = row("a", 100, [90, 92, 95], [0, 0, 0], rounded_to_bytes=10)
    below = row("b", 100, [90, 92, 94], [0, 0, 0], rounded_to_bytes=10)

    assert public_summary([{"id": "x", "rows": [near]}])["all"]["above_interval_share"] == 0.0
    assert public_summary([{"id": "x", "rows": [near, below]}])["all"]["above_interval_share"] == 0.5


def test_a_late_reading_widens_the_interval_by_what_it_may_miss_and_add() -> None:
    # given readings of 75 and 155, an estimate of 100 to 120, and a way of reading that adds -20 to 30: 80 to 150
    rows = [row("a", 75, [100, 110, 120], [0, 0, 0], reading_bytes=(-20, 30))]
    rows.append(row("b", 155, [100, 110, 120], [0, 0, 0], reading_bytes=(-20, 30)))
    rows.append(row("c", 80, [100, 110, 120], [0, 0, 0], reading_bytes=(-20, 30)))

    told = public_summary([{"id": "x", "rows": rows}])["families"]["nets"]

    assert (told["above_interval_share"], told["below_interval_share"]) == (0.3333, 0.3333)


def test_what_lies_outside_the_allocator_is_learnt_from_other_models_only() -> None:
    # given a GPU on which model b needs 150 bytes more than it reserves, and model c 170
    rows = [row("a", 100, [0, 0, 0], [1, 2, 3]), row("b", 200, [0, 0, 0], [0, 50, 0])]
    rows.append(row("c", 200, [0, 0, 0], [0, 30, 0]))

    # then a is estimated with (150 + 170) / 2 = 160 bytes outside, at least 150 and at most 170
    assert known_outside(rows[0], rows) == (100, 1 + 150, 2 + 160, 3 + 170, 0)


def test_other_assumptions_have_rows_of_their_own_and_are_not_in_all() -> None:
    # given two nets that are estimated rightly, and with another way of loading at half of it
    pairs = [row(name, 100, [90, 100, 110], [0, 60, 0], lazy_device_bytes=[40, 50, 60]) for name in "ab"]

    told = public_summary([{"id": "x", "rows": pairs}])

    assert told["all"]["worst"] == 0.0
    assert told["families"][f"nets, {LAZY}"]["worst"] == -0.5
    assert told["families"][f"nets, {KNOWN}"]["n"] == 2


def test_rows_that_ran_out_of_memory_and_rows_left_out_are_counted() -> None:
    # given one that failed and is said to fit, one that failed and is not, one that ran, and two left out
    rows = [row("a", None, [0, 0, 0], [0, 0, 0]), row("b", None, [0, 0, 0], [0, 0, 0], fits=False)]
    rows.append(row("c", 100, [90, 100, 110], [0, 0, 0]))
    left_out = [{"id": name, "reason": "no settings"} for name in "de"]

    text = public_table(public_summary([{"id": "x", "rows": rows}, {"id": "y", "family": "t", "left_out": left_out}]))

    assert "Of 2 rows that ran out of memory, 1 are said to; of 1 that did not, 1 are said to fit." in text
    assert "| 2 | t | no settings |" in text
    assert "| nets | 1 | device | 0.0% | 0.0% | +0.0% | +0.0% | 0.0% | 0.0% | 0.0% |" in text


def test_families_that_were_not_run_again_are_kept_and_said_to_be() -> None:
    # given a family that was run, and another one in an earlier file
    new = public_summary([{"id": "x", "rows": [row("a", 100, [90, 100, 110], [0, 0, 0])]}])
    old = public_summary([{"id": "x", "rows": [row("a", 100, [90, 120, 130], [0, 0, 0], family="words")]}])

    rivals = {"words": {"other": {"n": 1}}, "nets": {"other": {"n": 2}}}
    both = with_older(new, {**old, "rivals": rivals, "versions": {"commit": "abc"}})

    assert both["rivals"] == {"words": rivals["words"]}
    assert (both["families"]["nets"], both["families"]["words"]["median"]) == (new["families"]["nets"], 0.2)
    text = public_table({**both, "rivals": {}})
    assert "| words (kept from abc) | 1 |" in text
    assert "**all**" not in text
    assert with_older(new, None) == new


def test_what_other_tools_predicted_stands_beside_our_estimate_of_the_same_rows() -> None:
    # given two rows of 100 bytes: a rival said 90 and 80, we said 110 and 100
    rows = [row("a", 100, [0, 110, 0], [0, 0, 0], rivals={"DNNMem": 90})]
    rows.append(row("b", 100, [0, 100, 0], [0, 0, 0], rivals={"DNNMem": 80}))

    told = public_summary([{"id": "x", "rows": rows}])

    assert told["rivals"]["nets"]["DNNMem"]["median"] == 0.15
    assert told["rivals"]["nets"]["elbowroom"]["median"] == 0.05
    assert "| nets | DNNMem | 2 | 15.0% | 20.0% | -20.0% | 100.0% |" in public_table(told)


def test_a_line_cut_short_by_an_interruption_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rig.jsonl"
    path.write_text(json.dumps({"id": "a", "n": 1}) + "\n" + json.dumps({"id": "a", "n": 2}) + '\n{"id": "b", "n')

    assert read_records(path) == {"a": {"id": "a", "n": 2}}


def test_tables_are_written_between_their_markers() -> None:
    rig = summed([record("x", measured=1000, simulated=1001)])

    text = replace_between(
        f"before\n{START}\nold\n{END}\nafter", START, END, tables({"rig": rig, "versions": {"torch": "2"}})
    )

    # 1001 / 1000 - 1 = 0.1 %
    assert "| small | 1 | 0 | 100% of 1 | 0.100% | 0.10% | +0.10% | 0.0% |" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter")
    assert "old" not in text


def test_a_document_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="given no pair of markers; put <!-- accuracy"):
        replace_between("no markers", START, END, "table")
