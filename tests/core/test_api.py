"""The names that `import elbowroom as er` gives, and no others."""

from __future__ import annotations

import importlib
import inspect
from importlib import metadata

import pytest

import elbowroom as er
from elbowroom import errors

FUNCTIONS = {
    "capture",
    "capture_jax",
    "capture_script",
    "check",
    "compare",
    "estimate",
    "largest",
    "layouts",
    "plan",
    "policy",
    "report",
    "simulate",
    "within",
}
RECORDS = {
    "Algorithm",
    "Bound",
    "Estimate",
    "Largest",
    "Layouts",
    "Link",
    "Machine",
    "Plan",
    "Rate",
    "Recompute",
    "Swap",
    "Tier",
    "Timeline",
    "Trace",
}
OF_RUNS = {"Room", "StepFigures"}
"""Their files import torch."""
ERRORS = {
    "CaptureError",
    "DeviceLost",
    "ElbowroomError",
    "FormatError",
    "Infeasible",
    "InvalidPlan",
    "InvalidRecord",
    "RecomputeFailed",
    "TierError",
    "TierFailed",
    "TierFull",
    "TimeOver",
    "UsageError",
}


def test_the_exported_names_are_these() -> None:
    assert sorted(er.__all__) == sorted(FUNCTIONS | RECORDS | OF_RUNS | ERRORS | {"__version__"})


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_an_exported_function_has_a_docstring_and_a_list_of_arguments_leaves_none_out(name: str) -> None:
    function = getattr(er, name)
    assert inspect.isfunction(function)
    assert function.__doc__
    _, has_list, arguments = function.__doc__.partition("Args:")
    assert not has_list or all(parameter in arguments for parameter in inspect.signature(function).parameters)


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_an_exported_record_is_a_class_with_a_docstring(name: str) -> None:
    assert inspect.isclass(getattr(er, name))
    assert getattr(er, name).__doc__


def test_what_a_run_yields_is_exported_for_type_hints() -> None:
    pytest.importorskip("torch", reason="the files of these classes import torch")
    for name in OF_RUNS:
        assert inspect.isclass(getattr(er, name))
        assert getattr(er, name).__doc__


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'elbowroom' has no attribute 'estimates'"):
        getattr(er, "estimates")  # noqa: B009


def test_the_version_is_that_of_the_installed_package() -> None:
    assert er.__version__ == metadata.version("elbowroom")


def test_functions_keep_their_names_when_the_files_of_the_same_name_are_imported() -> None:
    for name in ("capture", "plan", "report", "simulate"):
        importlib.import_module(f"elbowroom.{name}")
        assert inspect.isfunction(getattr(er, name))


def test_every_error_is_exported_and_one_error_catches_all() -> None:
    classes = {n for n, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__}
    assert classes == ERRORS
    assert all(issubclass(getattr(er, name), er.ElbowroomError) for name in ERRORS)


def test_the_tree_in_the_documentation_of_errors_is_the_tree() -> None:
    tree = (errors.__doc__ or "").split("\n\n")[1].splitlines()
    shown = {line.replace("│", " ").strip(" ├└─").split()[0] for line in tree}
    assert shown == ERRORS


def test_only_a_job_that_does_not_fit_exits_with_1() -> None:
    codes = {name: getattr(er, name).exit_code for name in ERRORS}
    assert {name for name, code in codes.items() if code == 1} == {"Infeasible"}
    assert {code for name, code in codes.items() if name != "Infeasible"} == {2}


@pytest.mark.parametrize("name", ["capture", "capture_script", "plan", "within"])
def test_the_least_size_has_one_name_and_is_bytes_or_text(name: str) -> None:
    parameters = inspect.signature(getattr(er, name)).parameters
    assert [each for each in parameters if "min" in each] == ["min_size"]
    assert "int | str" in parameters["min_size"].annotation
