"""JSON of verbs, held to the schemas of the package."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator


def schema_of(name: str) -> dict[str, Any]:
    """The schema in the package for what calls itself so, as in "elbowroom.answer.plan"."""
    path = files("elbowroom").joinpath("schemas", f"{name.removeprefix('elbowroom.')}.json")
    return json.loads(path.read_text("utf-8"))


def checked(text: str) -> dict[str, Any]:
    """The answer in a text, which is one object that its schema allows."""
    answer = json.loads(text)
    assert list(answer)[:2] == ["schema", "version"]
    Draft202012Validator(schema_of(answer["schema"])).validate(answer)
    return answer


def answered(text: str, verb: str) -> dict[str, Any]:
    """As `checked`; it is the answer of a verb, and no error."""
    answer = checked(text)
    assert (answer["schema"], answer["version"]) == (f"elbowroom.answer.{verb}", 1)
    return answer
