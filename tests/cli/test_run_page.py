"""The page that `elbowroom run --report` writes."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elbowroom.cli import launch, run_verb
from elbowroom.simulate.simulate import simulate
from tests.core.report_case import DISK, chain, measured, swapping

MIB = 2**20


def test_a_page_names_the_budget_that_was_given_where_a_plan_in_force_holds_a_little_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a plan that goes on within 1 % beyond the budget of its run
    trace = chain()
    plan, budget_bytes = swapping(trace), measured(trace, swapping(trace)).peak_reserved_bytes - MIB // 2
    plan = replace(plan, budget_bytes=budget_bytes + MIB)
    room: Any = SimpleNamespace(
        trace=trace, machine=DISK, plan=plan, simulated=simulate(trace, DISK, plan), measured=measured(trace, plan)
    )
    monkeypatch.setattr(run_verb, "_run_of", lambda _: SimpleNamespace(budget_bytes=budget_bytes))
    page, script = tmp_path / "run.html", tmp_path / "train.py"
    script.touch()
    command = launch.Command.of([str(script)], is_module=False)
    # when
    run_verb._write(room, command, 0, argparse.Namespace(report=str(page), json=None))
    # then
    assert f"the budget is {budget_bytes / MIB:.1f} MiB" in page.read_text("utf-8")
