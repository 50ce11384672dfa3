"""--vary: what a name is in a script, and how a value gets there."""

from __future__ import annotations

from pathlib import Path

import pytest

from elbowroom.capture.script.script_knobs import Knob, Range, Variation, find_knob
from elbowroom.errors import UsageError

SCRIPT = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--width", type=int)
LENGTH = 128
WIDTH = 3
hidden = os.environ.get("HIDDEN", "64")
heads = os.environ["HEADS"]
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def knob(vary: str, script: str, *arguments: str) -> Knob:
    return find_knob(Range.of(f"{vary}=1..64"), script, arguments)


def turned(vary: str, script: str, *arguments: str) -> tuple[str, ...]:
    return knob(vary, script, *arguments).turned(arguments, 16).arguments


def test_a_range_is_a_name_and_two_numbers() -> None:
    assert Range.of("batch_size=1..4096") == Range(kind=None, name="batch_size", least=1, most=4096)
    assert Range.of("env:BATCH=8..8") == Range(kind="env", name="BATCH", least=8, most=8)
    assert Range.of("const:model.width=1..2") == Range(kind="const", name="model.width", least=1, most=2)


@pytest.mark.parametrize("text", ["batch_size", "batch_size=", "batch_size=1", "=1..2", "b=2..1", "b=1..2.5", "b=a..b"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--vary: given .*; allowed is NAME=A\.\.B .*; write for example"):
        Range.of(text)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("--batch-size", "8"), ("--batch-size", "16")),
        (("--batch_size=8", "-x"), ("--batch_size=16", "-x")),
        (("data", "batch_size=8"), ("data", "batch_size=16")),
        (("--batch-size", "4", "--batch-size", "8"), ("--batch-size", "4", "--batch-size", "16")),
    ],
)
def test_a_given_word_is_replaced_where_it_stands(
    given: tuple[str, ...], expected: tuple[str, ...], script: str
) -> None:
    assert turned("batch_size", script, *given) == expected


def test_an_option_that_the_script_names_is_added_as_it_spells_it(script: str) -> None:
    assert turned("batch_size", script, "--epochs", "1") == ("--epochs", "1", "--batch-size", "16")
    assert knob("batch_size", script).how == "batch_size is the argument --batch-size"


def test_a_constant_is_found_in_any_case(script: str) -> None:
    found = knob("length", script)

    assert (found.kind, found.name, found.how) == ("const", "LENGTH", "length is the constant LENGTH = 128")
    assert found.turned(("a",), 16) == Variation(arguments=("a",), constants={"LENGTH": 16})


@pytest.mark.parametrize("name", ["HIDDEN", "HEADS"])
def test_an_environment_variable_that_the_script_asks_for_is_found(name: str, script: str) -> None:
    found = knob(name, script)

    assert found.kind == "env"
    assert found.turned((), 16) == Variation(arguments=(), environment={name: "16"})


def test_a_name_that_could_be_two_things_is_refused_unless_its_kind_is_said(script: str) -> None:
    with pytest.raises(
        UsageError,
        match=r"width, which could be arg:width \(the argument --width\), const:WIDTH \(the constant WIDTH\)",
    ):
        knob("width", script)
    assert knob("arg:width", script).name == "--width"
    assert knob("const:width", script).name == "WIDTH"
    # a word that was given says it too
    assert turned("width", script, "--width", "3") == ("--width", "16")


def test_a_name_the_script_does_not_mention_is_tried_as_an_argument_and_that_is_said(script: str) -> None:
    found = knob("per_device_train_batch_size", script)

    assert (found.kind, found.name) == ("arg", "--per_device_train_batch_size")
    assert found.how.endswith(
        "does not mention per_device_train_batch_size: it is tried as the argument --per_device_train_batch_size"
    )
    assert knob("arg:per-device", script).how == ""


def test_a_variable_that_a_library_reads_can_be_named(script: str) -> None:
    assert knob("env:OTHER", script).turned((), 3).environment == {"OTHER": "3"}


def test_a_constant_that_is_not_there_is_refused_with_those_that_are(script: str) -> None:
    with pytest.raises(UsageError, match=r"const:depth, and .* binds no number to it .*; allowed are LENGTH, WIDTH;"):
        knob("const:depth", script)


def test_a_script_that_is_no_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def (:")

    with pytest.raises(UsageError, match="is no Python"):
        knob("a", str(tmp_path / "train.py"))
