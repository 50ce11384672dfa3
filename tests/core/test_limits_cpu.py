"""benchmarks.limits.cpu without training: limits, outcomes and the table."""

from __future__ import annotations

from typing import Any

from benchmarks.limits import cpu, sweeps

MIB = 2**20


def ended(exit_code: int, *, lines: list[str] | None = None, said: list[str] | None = None, broke: bool = False) -> Any:
    return {"exit_code": exit_code, "lines": lines or [], "said": said or [], "broke": broke}


def point(limit: int, outcome: str, steps: int = 0) -> Any:
    return {"limit_bytes": limit * MIB, "outcome": outcome, "steps": steps, "commit": "abc"}


def test_how_a_training_ended_is_one_word() -> None:
    assert cpu.outcome_of(ended(0, lines=["loss 1"]), ["loss 1"]) == "trained"
    assert cpu.outcome_of(ended(0, lines=["loss 2"]), ["loss 1"]) == "other numbers"
    assert cpu.outcome_of(ended(-9), []) == "killed"
    assert cpu.outcome_of(ended(1, said=["elbowroom: memory"]), []) == "refused"
    assert cpu.outcome_of(ended(1, said=["elbowroom: memory"], broke=True), []) == "failed"
    assert cpu.outcome_of(ended(1), []) == "failed"


def test_twelve_limits_go_from_45_percent_to_all_of_what_plain_training_takes() -> None:
    limits = sweeps.at_equal_ratios(cpu.LOWEST * 1000 * MIB, 1000 * MIB)

    assert (len(limits), limits[0], limits[-1]) == (12, 450 * MIB, 1000 * MIB)


def test_the_table_names_each_bad_end() -> None:
    points = [point(100, "killed", 1), point(200, "trained", 4), point(300, "refused", 2), point(400, "trained", 4)]
    known = {"plain_bytes": 400 * MIB, "ways": {"auto": points}}

    text = cpu.table({"torch": "2.13", "date": "2026-11-24", "workloads": {"lstm": known}})

    assert "2 trained with" in text
    assert "1 were refused (1 of these after their first step), 1 ended otherwise. 1 failed above" in text
    assert "| 8 LSTM layers | 400 | 200, of 4 |" in text
    assert "- 8 LSTM layers, auto, 100 MiB: killed after 1 steps (abc)" in text
    assert "- 8 LSTM layers, auto, 300 MiB: refused after 2 steps (abc)" in text
