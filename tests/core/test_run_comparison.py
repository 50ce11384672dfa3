"""Two runs side by side: figures by hand, their page, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elbowroom.cli import main
from elbowroom.errors import FormatError, UsageError
from elbowroom.report import compare_runs
from elbowroom.report.run_comparison import run_pair, run_sentences, runs_page

MIB = 2**20


def run(step_ns: tuple[int, ...], peak_bytes: int, energy: dict[str, Any] | None = None) -> dict[str, Any]:
    """What `elbowroom run --json` writes, as far as a comparison reads it."""
    names = ("swapped_out_bytes", "swapped_back_bytes", "recomputed_bytes", "stall_ns", "mismatches")
    steps = [{"step_ns": each, **dict.fromkeys(names, number)} for number, each in enumerate(step_ns)]
    return {
        "schema": "elbowroom.answer.run",
        "version": 1,
        "budget_bytes": 8 * MIB,
        "keep_all_bytes": 16 * MIB,
        "planned_peak_bytes": 8 * MIB,
        "measured_peak_bytes": peak_bytes,
        "measured_peak_allocated_bytes": peak_bytes,
        "over_budget_bytes": 0,
        "energy": energy,
        "steps": steps,
    }


FIRST = run((9_000_000, 4_000_000, 4_000_000), 8 * MIB, {"step_millijoules": 2000})
SECOND = run((6_000_000, 5_000_000, 5_000_000, 5_000_000, 5_000_000), 6 * MIB)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "plain.json", tmp_path / "swapped.json"]
    for path, answer in zip(paths, (FIRST, SECOND), strict=True):
        path.write_text(json.dumps(answer))
    return [str(path) for path in paths]


def test_times_are_medians_and_what_neither_run_has_is_left_out() -> None:
    pair = run_pair({"a/plain.json": FIRST, "b/swapped.json": SECOND})
    found = {figure.name: (figure.first, figure.second) for figure in pair.figures}

    assert pair.names == ("plain", "swapped")
    assert found["step time"] == (4_000_000, 5_000_000)
    # the n-th step stalls n ns and has n mismatches: 0, 1, 2 and 0 to 4
    assert found["stall"] == (1, 2)
    assert found["saved tensors that a plan did not expect"] == (3, 10)
    assert found["energy of a step, measured"] == (2000, None)
    assert "beyond the budget" not in found


def test_the_answer_says_which_run_held_less_and_which_was_faster() -> None:
    pair = run_pair({"plain.json": FIRST, "swapped.json": SECOND})

    assert run_sentences(pair) == (
        "swapped held 2.0 MiB less than plain: 6.0 MiB against 8.0 MiB, measured.",
        "A step of swapped took 1.250 times as long: 5.0 ms against 4.0 ms, the median of its steps.",
    )


def test_two_files_of_one_name_are_named_by_their_paths() -> None:
    assert run_pair({"a/run.json": FIRST, "b/run.json": SECOND}).names == ("a/run.json", "b/run.json")


def test_the_page_has_both_runs_and_a_line_of_few_points_for_a_long_one() -> None:
    long = run(tuple(range(1_000_000, 1_004_000)), 8 * MIB)
    page = runs_page(run_pair({"<plain>.json": FIRST, "long.json": long}))

    assert "&lt;plain&gt; held" not in page
    assert "Both held 8.0 MiB at most, measured." in page
    assert "<plain>" not in page
    assert page.count("<polyline") == 2
    assert page.count("<circle") == 3 + 200


def test_runs_are_compared_in_python(files: list[str], tmp_path: Path) -> None:
    text = compare_runs(*files, out=tmp_path / "both.html")

    assert text.startswith("swapped held 2.0 MiB less than plain")
    assert "Step by step" in (tmp_path / "both.html").read_text()
    with pytest.raises(UsageError, match=r"allowed is a name ending in \.html"):
        compare_runs(*files, out=tmp_path / "both.csv")
    with pytest.raises(UsageError, match="twice"):
        compare_runs(files[0], files[0])


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "elbowroom.answer.plan"}'])
def test_what_is_no_run_is_refused(files: list[str], tmp_path: Path, content: str) -> None:
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(FormatError, match=r"other\.json: no figures of a run"):
        compare_runs(files[0], tmp_path / "other.json")
    with pytest.raises(FormatError, match="cannot be read"):
        compare_runs(files[0], tmp_path / "gone.json")


def test_a_run_without_steps_is_refused(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text(json.dumps(run((), MIB)))
    with pytest.raises(FormatError, match=r"none\.json: no figures of a run with steps in it"):
        compare_runs(files[0], tmp_path / "none.json")


def test_the_command_compares_two_runs_and_lists_the_ranks_of_one(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *files]) == 0
    assert "swapped held 2.0 MiB less than plain" in capsys.readouterr().out

    assert main(["report", *files, "--json", "-o", str(tmp_path / "both.html")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["names"]) == ("elbowroom.answer.run-pair", ["plain", "swapped"])
    assert (tmp_path / "both.html").exists()

    assert main(["report", *files, "-o", str(tmp_path / "both.txt")]) == 2
    assert "with two runs to compare" in capsys.readouterr().err

    ranks = [tmp_path / f"run.rank{number}.json" for number in range(2)]
    for path, answer in zip(ranks, (FIRST, SECOND), strict=True):
        path.write_text(json.dumps(answer))
    assert main(["report", *map(str, ranks)]) == 0
    assert "2 ranks, measured" in capsys.readouterr().out
