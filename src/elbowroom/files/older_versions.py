"""Files of older versions, brought to the newest one: what was added since is put in with the value it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

Content = dict[str, object]


def to_newest(name: str, version: int, content: Content) -> Content:
    """The content of a record's file as the newest version would hold it.

    Args:
        name: of the record, such as "plan".
        version: of the file.
        content: its fields. What does not look like that version is left as it is, to be refused by the reader.
    """
    for change in CHANGES.get(name, ())[version - 1 :]:
        content = change(content)
    return content


def _plan_of_1(content: Content) -> Content:
    """Before there were recomputes, algorithms and a bound."""
    recomputes = {"columns": ["storages", "recipe", "before_op"], "rows": []}
    algorithms = {"columns": ["op", "choice"], "rows": []}
    return content | {"recomputes": recomputes, "algorithms": algorithms, "bound": None}


def _trace_of_1(content: Content) -> Content:
    """Before ops had choices."""
    ops = content.get("ops")
    if not isinstance(ops, dict):
        return content
    table = cast("dict[str, object]", ops)
    columns, rows = table.get("columns"), table.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list):
        return content
    longer: list[object] = [_with_no_choices(row) for row in cast("list[object]", rows)]
    return content | {"ops": table | {"columns": [*cast("list[object]", columns), "choices"], "rows": longer}}


def _with_no_choices(row: object) -> object:
    if not isinstance(row, list):
        return row
    values: list[object] = [*cast("list[object]", row), []]
    return values


def _trace_of_2(content: Content) -> Content:
    """Before optimizers' steps had parts."""
    return content | {"parts": {"columns": ["first_op", "end_op", "storages"], "rows": []}}


def _trace_of_3(content: Content) -> Content:
    """Before workspaces had intervals, and the emptying of the cache was recorded."""
    added: dict[str, object] = {
        "workspaces": {"columns": ["storage", "least_bytes", "most_bytes"], "rows": []},
        "empties": [],
    }
    return content | added


def _trace_of_4(content: Content) -> Content:
    """Before streams were recorded."""
    return content | {"streams": {"columns": ["storage", "stream"], "rows": []}}


def _as_it_is(content: Content) -> Content:
    """Only a new name for a value came in."""
    return content


CHANGES: Mapping[str, tuple[Callable[[Content], Content], ...]] = {
    "plan": (_plan_of_1,),
    "trace": (_trace_of_1, _trace_of_2, _trace_of_3, _trace_of_4),
    "timeline": (_as_it_is,),
}
"""By record: what leads from each version to the next, from version 1 on."""
