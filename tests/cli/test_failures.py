"""Whose failure it is: the script's, as python shows it, or elbowroom's, with what to report."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elbowroom.capture.script import script_errors as faults
from elbowroom.cli import main, scripts
from elbowroom.cli.launch import Command, as_python_would, execute
from elbowroom.errors import CaptureError, Infeasible
from elbowroom.units import format_bytes, parse_bytes
from tests.cli.answers import checked

REPORT = (
    r"elbowroom: this is a failure of elbowroom, not of the script; please report it as an issue of elbowroom, with "
    r"the lines above and these: elbowroom \S+, torch .*, Python 3\.\S+, .+; "
    r"elbowroom estimate 'a train\.py' --gpu a100-40gb"
)


def failing(call: Callable[[], Any], path: str = "train.py") -> BaseException:
    """What a script whose line 2 calls this fails with."""
    try:
        exec(compile("# a script\ncall()\n", path, "exec"), {"call": call})
    except Exception as problem:  # noqa: BLE001  whatever it raises
        return problem
    raise AssertionError("it did not fail")


def raises(problem: BaseException) -> Any:
    raise problem


def test_a_failure_is_elbowrooms_where_one_of_its_lines_raised_it() -> None:
    ours: Any = object()

    assert faults.of_elbowroom(failing(lambda: format_bytes(ours)))
    assert not faults.of_elbowroom(failing(lambda: parse_bytes("many")))  # says what is allowed
    assert not faults.of_elbowroom(failing(lambda: int("x")))
    assert not faults.of_elbowroom(ValueError("never raised"))


def test_a_failure_of_a_script_is_shown_as_python_shows_it_and_cut_where_it_is_long() -> None:
    def deep(left: int) -> None:
        return deep(left - 1) if left % 2 else deeper(left)

    def deeper(left: int) -> None:
        return deep(left - 1) if left else raises(ValueError("at the bottom"))

    short = faults.explained(failing(lambda: raises(ValueError("at the bottom"))), "train.py")
    long = faults.explained(failing(lambda: deep(99)), "train.py")

    lines = short.message.splitlines()
    assert lines[0].startswith("train.py:2: the script failed with ValueError: at the bottom (raised in raises, ")
    assert lines[1:3] == ["    Traceback (most recent call last):", '      File "train.py", line 2, in <module>']
    assert lines[-1] == "    ValueError: at the bottom"
    assert not short.ours
    # 12 lines, one that says how many are left out, 12 lines
    assert len(long.message.splitlines()) == 1 + 25
    assert re.fullmatch(r" +\.\.\. \d+ lines \.\.\.", long.message.splitlines()[13])


def test_a_failure_of_elbowroom_in_a_capture_says_what_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a train.py").touch()
    ours: Any = object()
    fault = faults.explained(failing(lambda: format_bytes(ours)), "train.py")
    problem = CaptureError(fault.message, ours=fault.ours)
    monkeypatch.setattr(scripts.Script, "capture", lambda *_, **__: raises(problem))

    assert main(["estimate", "a train.py", "--gpu", "a100-40gb"]) == 2

    said = capsys.readouterr().err
    assert "elbowroom: train.py:2: elbowroom failed with TypeError: " in said
    assert re.search(REPORT, said)


def test_what_nobody_expected_is_shown_with_what_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a train.py").touch()
    monkeypatch.setattr(scripts.Script, "capture", lambda *_, **__: raises(KeyError("odd")))

    assert main(["estimate", "a train.py", "--gpu", "a100-40gb"]) == 2

    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):")
    assert re.search(REPORT, said)


@pytest.mark.parametrize(
    ("line", "code", "own"),
    [
        ("raise ValueError('x')", 1, False),
        ("format_bytes(object())", 1, True),
        ("sys.exit(3)", 3, False),
        ("sys.exit('bye')", 1, False),
    ],
)
def test_a_run_has_the_exit_code_of_its_script_and_says_whose_failure_it_was(
    line: str, code: int, own: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import sys\nfrom elbowroom.units import format_bytes\n{line}\n")
    command = Command.of([str(path)], is_module=False)

    with as_python_would(command) as outcome:
        execute(command, outcome)

    assert outcome.exit_code() == code
    said = capsys.readouterr().err
    assert ("please report it" in said) == own
    if outcome.error is not None:
        assert said.splitlines()[1] == f'  File "{path}", line 3, in <module>'


def test_a_budget_that_no_plan_meets_is_no_failure_of_elbowroom() -> None:
    problem = Infeasible("x", budget_bytes=1, least_feasible_bytes=2)

    assert not faults.of_elbowroom(failing(lambda: raises(problem)))


@pytest.mark.parametrize(
    ("words", "verb", "code"),
    [
        (["estimate", "nowhere.py", "--gpu", "t4", "--json"], "estimate", 2),
        (["largest", "train.py", "--gpu", "t4", "--json"], "largest", 2),
        (["plan", "train.py", "--planner", "best", "--json"], "plan", 2),
        (["report", "nowhere.json", "--json"], "report", 2),
        (["machine", "rtx4091", "--json"], "machine", 2),
        (["run", "--json", "answer.json", "nowhere.py"], "run", 2),
    ],
)
def test_with_json_an_error_is_one_object_and_the_message_stays_on_standard_error(
    words: list[str],
    verb: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()

    assert main(words) == code

    out, err = capsys.readouterr()
    found = checked(Path("answer.json").read_text() if verb == "run" else out)
    assert (found["schema"], found["verb"], found["exit_code"]) == ("elbowroom.answer.error", verb, code)
    assert err == f"elbowroom: {found['error']['message']}\n"
    assert found["error"]["of_elbowroom"] is False


@pytest.mark.parametrize(
    ("problem", "kind"), [(KeyError("odd"), "UnexpectedError"), (CaptureError("x", ours=True), "CaptureError")]
)
def test_an_error_of_elbowrooms_own_says_so_in_json(
    problem: Exception, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    monkeypatch.setattr(scripts.Script, "capture", lambda *_, **__: raises(problem))

    assert main(["estimate", "train.py", "--gpu", "t4", "--json"]) == 2

    found = checked(capsys.readouterr().out)
    assert (found["error"]["type"], found["error"]["of_elbowroom"]) == (kind, True)


def test_a_command_line_that_cannot_be_read_and_ctrl_c_print_no_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    monkeypatch.setattr(scripts.Script, "capture", lambda *_, **__: raises(KeyboardInterrupt()))

    assert main(["estimate", "train.py", "--gpus", "t4", "--json"]) == 2
    assert main(["estimate", "train.py", "--gpu", "t4", "--json"]) == 130
    assert capsys.readouterr().out == ""


def test_a_file_that_cannot_be_written_is_an_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["run", "--json", "no/folder.json", "nowhere.py"]) == 2

    assert "run: given 'nowhere.py', which is not there" in capsys.readouterr().err
