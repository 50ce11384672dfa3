"""What a script's failure is explained as: what was seen and where, what is allowed, what to do next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elbowroom.capture.script import script_errors as faults
from elbowroom.capture.script.constants import compiled, constants_of
from elbowroom.errors import UsageError


class DynamicOutputShapeException(RuntimeError):
    """As torch's, by name: `func` is the operator."""

    def __init__(self, func: str) -> None:
        super().__init__(func)
        self.func = func


class UnsupportedOperatorException(RuntimeError):
    def __init__(self, func: str) -> None:
        super().__init__(func)
        self.func = func


def failing(raises: Callable[[], object]) -> faults.Fault:
    """The explanation of what a script train.py that calls `raises` in its line 2 fails with."""
    names = {"raises": raises}
    try:
        exec(compile("# a script\nraises()\n", "train.py", "exec"), names)
    except BaseException as problem:  # noqa: BLE001  a script may raise anything
        return faults.explained(problem, "train.py")
    raise AssertionError("it did not fail")


def throws(problem: BaseException) -> Callable[[], object]:
    def throw() -> None:
        raise problem

    return throw


@pytest.mark.parametrize(
    ("problem", "seen", "to_do"),
    [
        (
            FileNotFoundError(2, "No such file or directory", "data/train.bin"),
            "train.py:2: it needs 'data/train.bin': No such file or directory",
            "a small stand-in of the same form will do",
        ),
        (
            ModuleNotFoundError("No module named 'apex.normalization'", name="apex.normalization"),
            "train.py:2: it imports apex.normalization, and that failed: No module named",
            "use what PyTorch has of it: torch.optim with fused=True",
        ),
        (
            ModuleNotFoundError("No module named 'json._six'", name="json._six"),
            "train.py:2: it imports json._six, and that failed: No module named",
            "the json that is installed here has no json._six; install the version the script was written for",
        ),
        (
            ModuleNotFoundError("No module named 'mpi4py'", name="mpi4py"),
            "train.py:2: it imports mpi4py, and that failed: No module named",
            "install mpi4py into the environment",
        ),
        (
            ImportError("sox not installed. Please follow the instructions"),
            "train.py:2: an import failed: sox not installed.",
            "install what it names into the environment",
        ),
        (
            DynamicOutputShapeException("aten.nonzero.default"),
            "train.py:2: aten.nonzero.default gives a shape or a choice that depends on values",
            "allowed are ops whose shapes follow from shapes; put a bound in its place",
        ),
        (
            UnsupportedOperatorException("mine.scan.default"),
            "train.py:2: the operator mine.scan.default has no fake implementation",
            "torch.library.register_fake; register one",
        ),
        (
            RuntimeError("Cannot access data pointer of Tensor (e.g. FakeTensor, FunctionalTensor)."),
            "train.py:2: a kernel or a library asked for the memory of a tensor on the GPU",
            "wrap the kernel with torch.library.custom_op and register_fake",
        ),
        (
            SystemExit(2),
            "train.py:2: the script refused its arguments (it exited with code 2)",
            "write its arguments after --",
        ),
        (SystemExit("no data"), "train.py:2: the script exited with the message no data", "run it with the arguments"),
        (
            KeyError("lr"),
            "train.py:2: the script failed with KeyError: 'lr' (raised in throw, ",
            "run it as it is to see whether it does",
        ),
    ],
)
def test_each_failure_says_what_was_seen_and_what_to_do(problem: BaseException, seen: str, to_do: str) -> None:
    message = failing(throws(problem)).message

    assert message.startswith(seen)
    assert "; allowed " in message
    assert to_do in message


def test_a_failure_that_came_from_another_is_explained_by_that_one() -> None:
    def wrapped() -> None:
        try:
            raise DynamicOutputShapeException("aten.masked_select.default")
        except DynamicOutputShapeException as problem:
            raise RuntimeError("the trainer failed") from problem

    assert "aten.masked_select.default gives a shape" in failing(wrapped).message


def test_what_fails_later_is_said_in_a_line_with_the_steps_that_were_done() -> None:
    assert "KeyError: 'a' (raised in throw" in failing(throws(KeyError("a"))).message
    assert faults.later(KeyError("a"), "train.py", 1, 3) == "train.py: KeyError: 'a', after 1 of 3 steps"
    assert faults.later(SystemExit(4), "train.py", 4, 3) == "train.py: sys.exit(4), after 4 of 4 steps"


def test_the_output_of_the_script_is_shown_where_the_error_alone_does_not_say_enough() -> None:
    assert failing(throws(SystemExit(2))).show_output
    assert failing(throws(KeyError("a"))).show_output
    assert not failing(throws(FileNotFoundError(2, "x", "y"))).show_output
    assert faults.no_steps("train.py").show_output


def test_long_messages_are_cut() -> None:
    assert max(len(line) for line in failing(throws(ValueError("x" * 10_000))).message.splitlines()) < 1000


def test_an_exit_without_an_error_is_a_regular_end() -> None:
    assert faults.is_regular_end(SystemExit())
    assert faults.is_regular_end(SystemExit(0))
    assert not faults.is_regular_end(SystemExit(1))
    assert not faults.is_regular_end(KeyError())


def test_a_script_that_is_no_python_is_told_by_its_line() -> None:
    with pytest.raises(SyntaxError) as raised:
        compiled("a = 1\ndef (:\n", "train.py", {})

    assert faults.explained(raised.value, "train.py").message.startswith("train.py:2: the script failed with SyntaxErr")


SCRIPT = """
BATCH_SIZE = 32
lr: float = 0.1
name = "x"
flag = True
if True:
    width = height = 64
def f():
    hidden = 3
print(BATCH_SIZE, lr, width, height)
"""


def run(constants: dict[str, int | float], capsys: pytest.CaptureFixture[str]) -> str:
    exec(compiled(SCRIPT, "train.py", constants), {})
    return capsys.readouterr().out.strip()


def test_constants_are_the_numbers_that_are_bound_at_the_top_level() -> None:
    import ast

    assert constants_of(ast.parse(SCRIPT)) == {"BATCH_SIZE": 32, "lr": 0.1, "width": 64, "height": 64}


def test_a_constant_is_replaced_in_the_code_and_the_file_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run({}, capsys) == "32 0.1 64 64"
    assert run({"BATCH_SIZE": 7, "lr": 1}, capsys) == "7 1 64 64"


def test_a_name_that_is_no_constant_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="given the constant hidden; allowed are BATCH_SIZE, lr, width, height,"):
        compiled(SCRIPT, "train.py", {"hidden": 1})


def test_a_script_that_had_nothing_on_cuda_is_told_so() -> None:
    told = faults.nothing_on_cuda("train.py", "did you mean --accel?")
    assert told.show_output
    assert "nothing was on cuda" in told.message
    assert told.message.endswith("did you mean --accel?")
