"""The JSON Schemas of answers and record files: made from the records, and of the dialect they name."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from elbowroom.answers.pareto import Pareto, Point
from elbowroom.cli import VERBS, answer_types
from elbowroom.files.record_files import VERSIONS, encode
from elbowroom.machine import Machine
from elbowroom.simulate.simulate import simulate
from tests.cli.answers import schema_of
from tests.core.report_case import DISK, chain, measured, swapping

pytest.importorskip("torch", reason="the records of a run import it")
from tools import schemas

NAMES = sorted(path.name for path in files("elbowroom").joinpath("schemas").iterdir())
TRACE = chain()
PLAN = swapping(TRACE)
POINT = Point(
    planner="optimal",
    budget_bytes=2,
    step_ns=3,
    lower_bound_ns=None,
    stall_ns=0,
    peak_allocated_bytes=1,
    peak_reserved_bytes=1,
    swapped_out_bytes=1,
    swapped_back_bytes=1,
)
RECORDS = {
    "trace": TRACE,
    "machine": Machine.of("rtx4090"),
    "here": DISK,
    "plan": PLAN,
    "simulated": simulate(TRACE, DISK, PLAN),
    "measured": measured(TRACE, PLAN),
    "pareto": Pareto(trace_id=TRACE.id, machine="here", kept_peak_bytes=1, kept_step_ns=1, points=(POINT,)),
}


def test_schemas_and_tables_are_those_that_the_records_make() -> None:
    stale = [path.name for path, text in schemas.files().items() if not path.exists() or path.read_text() != text]

    assert stale == [], "run python -m tools.schemas write"
    assert sorted(name for name, _ in schemas.documents()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one_of_its_dialect_and_says_what_each_field_means(name: str) -> None:
    schema = schema_of(name.removesuffix(".json"))

    Draft202012Validator.check_schema(schema)
    for field, _, meaning in schemas.rows_of(schema, schema["$defs"]):
        assert meaning, f"{name}: {field}"


def objects(schema: Any) -> list[dict[str, Any]]:
    """All objects with named fields in a schema."""
    inside = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    own = [schema] if isinstance(schema, dict) and "properties" in schema and "type" in schema else []
    return [*own, *(found for each in inside for found in objects(each))]


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_allows_no_field_that_it_does_not_name(name: str) -> None:
    for each in objects(schema_of(name.removesuffix(".json"))):
        assert each["additionalProperties"] is False
        assert each["required"] == list(each["properties"])


def test_every_verb_has_a_schema_and_every_record_that_is_a_file() -> None:
    verbs = {verb.__name__.rpartition(".")[2].removesuffix("_verb") for verb in VERBS}
    names = {name for name, _ in answer_types.SCHEMAS.values()}

    assert names == verbs | {
        *("machine-list", "layouts", "ranks", "study-links", "demo-weights", "error", "comparison", "run-pair")
    }
    assert {name for name in NAMES if not name.startswith("answer.")} == {f"{name}.json" for name in VERSIONS}


@pytest.mark.parametrize("name", RECORDS)
def test_a_records_file_is_what_its_schema_says(name: str) -> None:
    content = json.loads(encode(RECORDS[name]))
    validator = Draft202012Validator(schema_of(content["magic"]))

    validator.validate(content)
    with pytest.raises(ValidationError, match="Additional properties are not allowed"):
        validator.validate(content | {"colour": "red"})


def test_a_row_with_a_wrong_value_is_none() -> None:
    content = json.loads(encode(PLAN))
    content["swaps"]["rows"][0][1] = "attic"

    with pytest.raises(ValidationError, match="'attic' is not one of"):
        Draft202012Validator(schema_of("plan")).validate(content)


def test_a_field_that_nothing_is_said_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a record whose docstring does not name its fields
    monkeypatch.setattr(Point, "__doc__", "A point.")

    with pytest.raises(SystemExit, match=r"Point\.planner: its class says nothing of it"):
        schemas.Shapes(tables=False).object_of(Point)
