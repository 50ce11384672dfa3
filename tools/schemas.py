"""Makes the JSON Schemas of answers and record files, and the tables of fields of docs/json.md, from the records.

    python -m tools.schemas write     # write src/elbowroom/schemas/*.json and the tables
    python -m tools.schemas check     # exit 1 if one of them is old

A field's type gives its schema, and the "Attributes:" of its class the description. The end of a field's name gives its
unit. So a new field needs a word on it, and these files written anew.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, final

from elbowroom.answers.estimate import Moment
from elbowroom.answers.exchange_memory import ExchangeMemory
from elbowroom.answers.exchanges import Collectives
from elbowroom.answers.largest import Failed, Probe
from elbowroom.answers.link_study import StudiedLink
from elbowroom.answers.memory_by_module import ModuleShare
from elbowroom.answers.pareto import Pareto
from elbowroom.answers.study_points import StudyPoint
from elbowroom.cli.answer_types import SCHEMAS
from elbowroom.files.record_files import VERSIONS
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.report.rank_table import RankTimes
from elbowroom.report.run_comparison import RunFigure
from elbowroom.run.account import MeasuredEnergy, StepFigures
from elbowroom.run.kind_totals import Kind
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src" / "elbowroom" / "schemas"
PAGE = ROOT / "docs" / "json.md"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
RECORDS = (Trace, Machine, Plan, Timeline, Pareto)
LATER = {
    kind.__name__: kind
    for kind in (
        *(Collectives, ExchangeMemory, Moment, Failed, Probe, ModuleShare, Pareto, RankTimes, StepFigures, Kind),
        *(StudyPoint, StudiedLink, MeasuredEnergy, RunFigure),
    )
}
"""What answer_types.py imports for type checkers alone, as its verbs load no torch for --help."""

UNITS = (
    ("bytes_per_s", "bytes a second"),
    ("flops_per_s", "operations a second"),
    ("bytes", "bytes"),
    ("ns", "nanoseconds"),
)
"""Units by the end of a name."""

TABLE = re.compile(r"(<!-- fields: (\S+) -->\n).*?(<!-- fields end -->)", re.DOTALL)
ATTRIBUTE = re.compile(r"^    (\w+(?:, \w+)*): ", re.MULTILINE)
Schema = dict[str, Any]


def fields_of(kind: type) -> dict[str, object]:
    """Names and types of the fields that are written."""
    hints = typing.get_type_hints(kind, localns=LATER)
    if dataclasses.is_dataclass(kind):
        return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
    return hints


def is_record(hint: object) -> typing.TypeGuard[type]:
    """Whether a type is a record: a dataclass or a named tuple."""
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"))


def described(kind: type) -> dict[str, str]:
    """What the docstring of a record says of each field."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):  # of a record that adds fields to another one
        parts = ATTRIBUTE.split((inspect.cleandoc(each.__doc__ or "")).partition("Attributes:\n")[2])
        for names, words in zip(parts[1::2], parts[2::2], strict=True):
            said = " ".join(words.split())
            found |= dict.fromkeys(names.split(", "), re.sub(r"\bNone\b", "null", said))
    return found


def description(kind: type, name: str) -> str:
    """What a field means, with its unit.

    Raises:
        SystemExit: nothing is said of it, or not what null means.
    """
    said = described(kind).get(name, "")
    if not said:
        sys.exit(f"{kind.__name__}.{name}: its class says nothing of it; add it to the Attributes of the docstring")
    if may_be_null(fields_of(kind)[name]) and "null" not in said:
        sys.exit(f"{kind.__name__}.{name}: its description does not say what None means; add it to the docstring")
    unit = next((unit for end, unit in UNITS if name == end or name.endswith(f"_{end}")), "")
    words = said[:1].upper() + said[1:].rstrip(".") + "."
    return f"{words} In {unit}." if unit and unit not in said else words


def may_be_null(hint: object) -> bool:
    """Whether a type allows None."""
    return isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint)


@final
class Shapes:
    """The schemas of types, those of records kept by name.

    Args:
        tables: whether a tuple of records is a table of columns and rows, as in record files.
    """

    def __init__(self, *, tables: bool) -> None:
        self.kept: dict[str, Schema] = {}
        self._tables = tables

    def of(self, hint: Any, *, in_row: bool = False) -> Schema:
        """The schema of a type; `in_row` says that it stands in a row of a table."""
        origin, inside = typing.get_origin(hint), typing.get_args(hint)
        if is_record(hint):
            return self._referred(hint, row=in_row)
        if origin is Literal:
            return {"enum": list(inside)}
        if may_be_null(hint):
            return self._or_null(self.of(inside[0], in_row=in_row))
        if origin is dict:
            return self._mapping(inside)
        if origin is tuple and inside[-1] is Ellipsis:
            return self._array(inside[0], in_row=in_row)
        if origin is tuple:
            return fixed([self.of(each, in_row=in_row) for each in inside])
        names = {bool: "boolean", int: "integer", float: "number", str: "string"}
        return {"type": names[hint]}

    def object_of(self, kind: type, head: Mapping[str, Schema] | None = None) -> Schema:
        """A record as an object of its fields, which may begin with others."""
        properties = dict(head or {})
        for name, hint in fields_of(kind).items():
            properties[name] = self.of(hint) | {"description": description(kind, name)}
        return {
            "description": summary(kind),
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    def _referred(self, kind: type, *, row: bool) -> Schema:
        name = f"{kind.__name__}Row" if row else kind.__name__
        if name not in self.kept:
            self.kept[name] = {}  # its place
            self.kept[name] = self._row(kind) if row else self.object_of(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _row(self, kind: type) -> Schema:
        """A record as the array of its values."""
        columns = []
        for name, hint in fields_of(kind).items():
            columns.append(self.of(hint, in_row=True) | {"title": name, "description": description(kind, name)})
        return {"description": summary(kind), **fixed(columns)}

    def _array(self, hint: Any, *, in_row: bool) -> Schema:
        if not (self._tables and is_record(hint)):
            return {"type": "array", "items": self.of(hint, in_row=in_row)}
        rows = {"type": "array", "items": self._referred(hint, row=True)}
        if in_row:
            return rows
        columns = {"const": list(fields_of(hint))}
        return {
            "type": "object",
            "properties": {"columns": columns, "rows": rows},
            "required": ["columns", "rows"],
            "additionalProperties": False,
        }

    def _mapping(self, inside: tuple[Any, ...]) -> Schema:
        names = {} if inside[0] is str else {"propertyNames": self.of(inside[0])}
        return {"type": "object", **names, "additionalProperties": self.of(inside[1])}

    @staticmethod
    def _or_null(schema: Schema) -> Schema:
        if isinstance(schema.get("type"), str) and set(schema) == {"type"}:
            return {"type": [schema["type"], "null"]}
        return {"anyOf": [schema, {"type": "null"}]}


def fixed(items: list[Schema]) -> Schema:
    """An array of as many values as there are schemas."""
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def summary(kind: type) -> str:
    """What a record is: the first paragraph of its docstring."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def document(name: str, version: int, kind: type, *, tables: bool) -> Schema:
    """The schema of one kind of answer or file."""
    shapes = Shapes(tables=tables)
    first = "magic" if tables else "schema"
    head = {
        first: {"const": f"elbowroom.{name}", "description": "Name of this kind of object."},
        "version": {"const": version, "description": "Version of this kind of object."},
    }
    body = shapes.object_of(kind, head)
    top = {"$schema": DIALECT, "$id": f"urn:elbowroom:{name}:{version}", "title": f"elbowroom.{name}"}
    return {**top, **body, "$defs": {each: shapes.kept[each] for each in sorted(shapes.kept)}}


def documents() -> Iterator[tuple[str, Schema]]:
    """Every schema by the name of its file."""
    for kind, (name, version) in SCHEMAS.items():
        yield f"answer.{name}.json", document(f"answer.{name}", version, kind, tables=False)
    for kind in RECORDS:
        name = kind.__name__.lower()
        yield f"{name}.json", document(name, VERSIONS[name], kind, tables=True)


def rows_of(schema: Schema, kept: Mapping[str, Schema]) -> Iterator[tuple[str, str, str]]:
    """Path, type and meaning of each field of an object and of those in it; an object that comes again is named."""
    seen: dict[str, str] = {}

    def rows(of: Schema, path: str) -> Iterator[tuple[str, str, str]]:
        for name, inner in of["properties"].items():
            (below, way), here = nested(inner), f"{path}{name}"
            again = f" Its fields are those of `{seen[below]}`." if below in seen else ""
            yield here, type_of(inner), f"{inner.get('description', '')}{again}"
            if below and not again:
                seen[below] = f"{here}{way}"
                yield from rows(kept[below], f"{here}{way}.")

    yield from rows(schema, "")


def nested(schema: Schema) -> tuple[str, str]:
    """Name of the object that a field holds, and the way to it: "[]" of an array, ".NAME" of names that differ."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2], ""
    for each in schema.get("anyOf", ()):
        if (found := nested(each))[0]:
            return found
    for key, way in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(schema.get(key), dict):
            found, further = nested(schema[key])
            return found, way + further
    return "", ""


def type_of(schema: Schema) -> str:
    """The type of a field, in words."""
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    if "$ref" in schema:
        return "object"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(type_of(each) for each in schema["anyOf"]))
    if "prefixItems" in schema:
        return f"array of {len(schema['prefixItems'])}"
    if isinstance(schema["type"], list):
        return " or ".join(schema["type"])
    items = schema.get("items", schema.get("additionalProperties"))
    if isinstance(items, dict) and not nested(items)[0]:
        return f"{schema['type']} of {type_of(items)}"
    return schema["type"]


def table(schema: Schema) -> str:
    """The fields of a schema as a table."""
    lines = ["| field | type | meaning |", "|---|---|---|"]
    lines += [f"| `{path}` | {kind} | {meaning} |" for path, kind, meaning in rows_of(schema, schema["$defs"])]
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """A page with the tables that it asks for."""
    by_name = dict(documents())
    return TABLE.sub(lambda found: f"{found[1]}{table(by_name[f'{found[2]}.json'])}{found[3]}", text)


def files() -> dict[Path, str]:
    """What every file should hold."""
    found = {FOLDER / name: json.dumps(schema, indent=2) + "\n" for name, schema in documents()}
    return {**found, PAGE: page(PAGE.read_text("utf-8"))}


def main() -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description="Make the JSON Schemas and the tables of docs/json.md.")
    parser.add_argument("action", choices=["write", "check"])
    action = parser.parse_args().action
    old = [path for path, text in files().items() if not path.exists() or path.read_text("utf-8") != text]
    extra = sorted(set(FOLDER.glob("*.json")) - set(files()))
    if action == "check" and old + extra:
        sys.exit(f"out of date: {', '.join(map(str, old + extra))}; run python -m tools.schemas write")
    for path in extra:
        path.unlink()
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
