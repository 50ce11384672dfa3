"""Planners of other packages, found by their entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elbowroom.planners.installed import installed

MODULE = """
from elbowroom.planners.baselines.keep_all import keep_all

def mine(problem, *, spare: int = 0):
    return keep_all(problem)

none = 3
"""
SOURCES = Path(__file__).parents[2] / "src"


def package(folder: Path, *lines: str) -> None:
    """A package as pip would install it."""
    (folder / "other_planners.py").write_text(MODULE)
    facts = folder / "other_planners-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: other-planners\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("\n".join(["[elbowroom.planners]", *lines]) + "\n")


def test_a_planner_of_another_package_has_its_name_and_its_options(tmp_path: Path) -> None:
    package(tmp_path, "mine = other_planners:mine")
    code = (
        "from elbowroom.planners import PLANNERS, requested; from elbowroom.planners.knobs import options_of\n"
        "print(list(PLANNERS)[-1], list(options_of(PLANNERS['mine'])), requested('mine').planner)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SOURCES), str(tmp_path)))}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert (done.stdout, done.stderr) == ("mine ['spare'] mine\n", "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("optimal = other_planners:mine", "the name is taken"),
        ("gone = other_planners:gone", "AttributeError: .*; mend or uninstall its package"),
        ("broken = no_such_module:mine", "ModuleNotFoundError: No module named 'no_such_module'; mend"),
        ("none = other_planners:none", "it cannot be called; allowed is a function of one Problem"),
    ],
)
def test_a_planner_that_cannot_be_used_is_left_out_with_a_warning(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, line)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.warns(UserWarning, match=f"the planner '{line.split()[0]}' .* is left out: {said}"):
        assert installed(("optimal",)) == {}
