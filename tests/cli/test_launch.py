"""A launched script sees what python would show it, and so does whoever started it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elbowroom.cli.launch import Command, ScriptEnd, as_python_would, execute
from elbowroom.errors import Infeasible, UsageError


def launched(path: Path, *arguments: str) -> ScriptEnd:
    command = Command.of([str(path), *arguments], is_module=False)
    with as_python_would(command) as outcome:
        execute(command, outcome)
    return outcome


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_script_sees_its_own_arguments_name_and_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(tmp_path, "import sys, beside\nprint(__name__, sys.argv[1:], sys.path[0], beside.HERE)")
    script(tmp_path, "HERE = 'imported'", "beside.py")
    before = (list(sys.argv), list(sys.path))

    outcome = launched(path, "--budget", "-m")

    assert capsys.readouterr().out == f"__main__ ['--budget', '-m'] {tmp_path} imported\n"
    assert outcome.exit_code() == 0
    assert (sys.argv, sys.path) == before


def test_a_module_runs_as_with_python_m(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script(tmp_path, "import sys\nprint(__name__, sys.argv[1:])", "a_module_of_ours.py")
    monkeypatch.chdir(tmp_path)
    command = Command.of(["a_module_of_ours", "x"], is_module=True)

    with as_python_would(command) as outcome:
        execute(command, outcome)

    assert capsys.readouterr().out == "__main__ ['x']\n"


@pytest.mark.parametrize(
    ("statement", "code", "said"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("exit(3)", 3, ""),
    ],
)
def test_the_exit_code_is_the_scripts(
    statement: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = launched(script(tmp_path, f"import sys\n{statement}\n"))

    assert outcome.error is None
    assert outcome.exit_code() == code
    assert capsys.readouterr().err == said


def test_an_exit_leaves_what_surrounds_the_script_in_the_regular_way(tmp_path: Path) -> None:
    path = script(tmp_path, "import sys\nsys.exit(7)")
    seen: list[str] = []
    command = Command.of([str(path)], is_module=False)

    with as_python_would(command) as outcome:
        execute(command, outcome)
        seen.append("after the script")

    assert seen == ["after the script"]


def test_an_uncaught_error_is_shown_without_our_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(tmp_path, "def step():\n    raise ValueError('of the script')\nstep()\n")

    outcome = launched(path)

    assert outcome.error is not None
    assert (outcome.error.message, outcome.exit_code()) == ("ValueError: of the script", 1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{path}", line 3, in <module>'
    assert lines[-1] == "ValueError: of the script"


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = launched(script(tmp_path, "def (:\n"))

    assert outcome.exit_code() == 1
    said = capsys.readouterr().err
    assert "SyntaxError: invalid syntax" in said
    assert "launch.py" not in said


def test_errors_of_elbowroom_go_on(tmp_path: Path) -> None:
    infeasible = (
        "from elbowroom.errors import Infeasible\nraise Infeasible('x', budget_bytes=1, least_feasible_bytes=2)"
    )
    with pytest.raises(Infeasible):
        launched(script(tmp_path, infeasible))


def test_an_interrupt_is_an_end_of_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launched(script(tmp_path, "raise KeyboardInterrupt")).exit_code() == 130
    assert capsys.readouterr().err == "\nelbowroom: interrupted\n"


def test_a_command_is_what_follows_the_options(tmp_path: Path) -> None:
    path = str(script(tmp_path, ""))

    assert Command.of(["--", path, "-x"], is_module=False) == Command(target=path, arguments=("-x",), is_module=False)
    # as the other verbs need it; a script that takes "--" itself gets a second one
    assert Command.of([path, "--", "-x"], is_module=False).arguments == ("-x",)
    assert Command.of([path, "--", "--", "-x"], is_module=False).arguments == ("--", "-x")
    assert Command.of([path, "-x", "--", "y"], is_module=False).arguments == ("-x", "--", "y")
    with pytest.raises(UsageError, match="given no script; allowed is a path, or -m and a module"):
        Command.of([], is_module=False)
    with pytest.raises(UsageError, match=r"given 'nope\.py', which is not there"):
        Command.of(["nope.py"], is_module=False)
