"""The command line's surface: verbs, options, help, version, errors."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elbowroom.cli import main, parser_of_all
from elbowroom.errors import UsageError
from tests.cli.list_options import FILE, lines

SOURCES = Path(__file__).parents[2] / "src"


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-m", "elbowroom", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd)


def test_the_verbs_and_their_options_are_those_of_the_list() -> None:
    listed = FILE.read_text(encoding="utf-8").splitlines()

    assert lines() == listed, "where a change is meant: python -m tests.cli.list_options, and a line in CHANGELOG.md"


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["demo", "--help"],
        ["estimate", "--help"],
        ["largest", "--help"],
        ["study", "--help"],
        ["study", "gpu", "--help"],
        ["plan", "--help"],
    ],
)
def test_help_and_version_import_neither_torch_nor_rich(words: list[str]) -> None:
    code = (
        "import sys\nfrom elbowroom.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as leaving:\n    assert leaving.code == 0\n"
        "print([name for name in ('torch', 'rich', 'monai', 'nibabel') if name in sys.modules], file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)

    assert done.stdout.startswith(("usage: elbowroom", "elbowroom "))
    assert done.stderr == "[]\n"


def test_no_verb_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "required: VERB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["estimat", "train.py"], "given 'estimat'; allowed is one of estimate, largest, "),
        (["estimat", "train.py"], "; did you mean estimate?"),
        (["plan", "train.py", "--buget", "8G"], "given '--buget', which is no option here; "),
        (["plan", "train.py", "--buget", "8G"], "did you mean --budget? The script's own arguments follow after --"),
        (["estimate", "train.py", "--side", "4"], "`elbowroom estimate --help` lists. The script's own"),
        (["estimate", "train.py", "--side", "4"], "arguments follow after --, as in -- --side 4"),
        (["largest", "train.py", "--vari", "b=1..8"], "did you mean --vary?"),
        (["machine", "--lst"], "given '--lst', which is no option here; "),
        (["plan", "train.py", "--gpu"], "--gpu: expected one argument; `elbowroom plan --help` says what is allowed"),
    ],
)
def test_a_word_that_is_not_allowed_is_named_with_what_was_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    message, *usage = err.splitlines()
    assert (out, said in message) == ("", True)
    shown = "" if words[0] == "estimat" else f"usage: elbowroom {words[0]} "
    assert "".join(usage[:1]).startswith(shown)
    assert bool(usage) == bool(shown)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("study train.py", "study: given 'train.py'; allowed is one of budget, batch, resolution, gpu, links"),
        ("study gpus train.py", "allowed is one of budget, batch, resolution, gpu, links; did you mean gpu?"),
        ("study", "given no kind of study; allowed is one of budget, batch, resolution, gpu, links"),
        ("plan train.py --budget -3GiB --gpu t4", "budget: given '-3GiB'; allowed is 8GiB"),
        ("run --budget -3GiB train.py", "budget: given '-3GiB'; allowed is 8GiB"),
        ("plan train.py --budget 12 --gpu t4", "'12', which is 12 bytes; allowed is a size with its unit; write for"),
        ("run --budget 12 train.py", "example 12GiB"),
        ("study budget train.py --gpu t4 --more 12", "given '12', which is 12 bytes"),
    ],
)
def test_what_strangers_type_is_answered_with_what_to_type(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('it does not come to this')\n")

    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert (out, said in err) == ("", True)


def parsed(*words: str) -> argparse.Namespace:
    return parser_of_all().parsed(words, argparse.Namespace(script_arguments=("--last",)))


def test_options_that_stand_in_the_script_are_the_scripts_without_dashes_before_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("parser.add_argument('--side'); parser.add_argument(\"-b\", '--batch-size')\n")

    found = parsed("estimate", str(script), "--side", "-4", "--gpu", "t4", "-b", "8", "--batch-size=3")

    assert found.gpu == "t4"
    assert found.script_arguments == ("--side", "-4", "-b", "8", "--batch-size=3", "--last")
    kind = parsed("study", "budget", str(script), "--gpu", "t4", "--side", "3")
    assert kind.script_arguments == ("--side", "3", "--last")


@pytest.mark.parametrize("words", [["--bugdet", "8GiB"], ["--side", "4", "--bugdet", "8GiB"], ["extra"]])
def test_other_words_are_refused_though_the_script_has_some(tmp_path: Path, words: list[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("parser.add_argument('--side')\n")

    with pytest.raises(UsageError, match="which is no option here"):
        parsed("plan", str(script), "--gpu", "t4", *words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_shell_can_complete_verbs_options_and_gpus(shell: str) -> None:
    done = run("--completion", shell)

    assert (done.returncode, done.stderr) == (0, "")
    for word in ("estimate", "pareto", "rtx4090", "swap_greedy"):
        assert word in done.stdout


def test_bash_completes_what_was_printed_for_it(tmp_path: Path) -> None:
    # given the completion, and `elbowroom plan --gpu rtx409`
    (tmp_path / "completion").write_text(run("--completion", "bash").stdout)
    asked = "COMP_WORDS=(elbowroom plan --gpu rtx409); COMP_CWORD=3; COMP_LINE='elbowroom plan --gpu rtx409'"
    name = "$(complete -p elbowroom | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
    script = f'source {tmp_path}/completion; {asked}; {name}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["rtx4090", "rtx4090d"]


def test_an_error_of_elbowroom_is_one_message_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["report", "nowhere.json"])

    assert code == 2
    assert capsys.readouterr() == (
        "",
        "elbowroom: nowhere.json: cannot be read: No such file or directory; check the path\n",
    )


def test_python_m_elbowroom_is_the_command() -> None:
    done = run("report", "nowhere.json")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("elbowroom: nowhere.json: cannot be read")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    # given `elbowroom machine --json | true`: the pipe is closed before anything is written
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "elbowroom", "machine", "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    os.close(writing)

    assert (done.returncode, done.stderr) == (0, "")
