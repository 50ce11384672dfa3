"""The figures of public tables: errors, how often the stated interval did not hold, verdicts. Pure; no torch."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.accuracy.figures import error_of, spread

Record = dict[str, Any]
Told = tuple[int, int, int, int, int]
"""Measured bytes, low, likely and high of the estimate, and what the source rounds to."""

LAZY = "if kernels were loaded lazily"
KNOWN = "outside the allocator known"


def public_summary(records: Sequence[Record]) -> Record:
    """Figures of each family of rows and of all.

    Tables whose kernels are taken to be loaded at once have two rows more, under other assumptions; `all` is without.
    """
    rows = [row for record in records for row in record.get("rows", ())]
    measured = [row for row in rows if row["measured_bytes"] is not None]
    told: dict[str, list[Told]] = {}
    for row in measured:
        told.setdefault(row["family"], []).append(as_estimated(row))
    everything = [each for members in told.values() for each in members]
    for source in dict.fromkeys(_source(row) for row in measured if "lazy_device_bytes" in row):
        rows_of = [row for row in measured if _source(row) == source]
        told[f"{source}, {LAZY}"] = [
            (row["measured_bytes"], *row["lazy_device_bytes"], row["rounded_to_bytes"]) for row in rows_of
        ]
        told[f"{source}, {KNOWN}"] = [known_outside(row, rows_of) for row in rows_of]
    return {
        "failed": [record["id"] for record in records if "error" in record],
        "families": {name: {"level": _level(name, measured), **_of_rows(members)} for name, members in told.items()},
        "all": _of_rows(everything) if everything else None,
        "rivals": _rivals(measured),
        "out_of_memory": _verdicts(rows),
        "left_out": _left_out(records),
        "tables": sorted({record["family"] for record in records if "family" in record}),
    }


def _source(row: Record) -> str:
    """The table of a row, which may have several families: "Qwen" of "Qwen, LoRA"."""
    return row["family"].split(",")[0]


def _rivals(measured: Sequence[Record]) -> Record:
    """Errors of what other tools predicted, by family and tool; and of ours on the same rows."""
    found: Record = {}
    for family in dict.fromkeys(row["family"] for row in measured if row.get("rivals")):
        rows = [row for row in measured if row["family"] == family]
        told = {tool: [(row["rivals"][tool], row["measured_bytes"]) for row in rows] for tool in rows[0]["rivals"]}
        told["elbowroom"] = [(row["estimate"][row["level"]][1], row["measured_bytes"]) for row in rows]
        found[family] = {tool: spread([error_of(*pair) for pair in pairs]) for tool, pairs in told.items()}
    return found


def as_estimated(row: Record) -> Told:
    """A row held against the level that was measured, and against what the way of reading may have added to it."""
    low, likely, high = row["estimate"][row["level"]]
    less, more = row.get("reading_bytes", (0, 0))
    return (row["measured_bytes"], low + less, likely, high + more, row["rounded_to_bytes"])


def known_outside(row: Record, rows: Iterable[Record]) -> Told:
    """A row as it would be estimated if the GPU's bytes outside the allocator were known.

    They are learnt from all other models on that GPU, as measured bytes less the reserved ones: least, median and most.
    """
    others = [each for each in rows if each["gpu"] == row["gpu"] and each["model"] != row["model"]]
    outside = [each["measured_bytes"] - each["estimate"]["reserved"][1] for each in others]
    low, likely, high = row["estimate"]["reserved"]
    interval = low + min(outside), likely + round(statistics.median(outside)), high + max(outside)
    return (row["measured_bytes"], *interval, row["rounded_to_bytes"])


def _level(family: str, rows: Sequence[Record]) -> str:
    return next((row["level"] for row in rows if row["family"] == family), "device")


def _of_rows(rows: Sequence[Told]) -> Record:
    errors = [error_of(likely, measured) for measured, _, likely, _, _ in rows]
    return {
        **spread(errors),
        "median_signed": round(statistics.median(errors), 4),
        "above_interval_share": _share(measured - unit / 2 > high for measured, _, _, high, unit in rows),
        "below_interval_share": _share(measured + unit / 2 < low for measured, low, _, _, unit in rows),
    }


def _share(found: Iterable[bool]) -> float:
    marks = list(found)
    return round(sum(marks) / len(marks), 4)


def _verdicts(rows: Sequence[Record]) -> Record:
    """Whether a job was rightly said to fit, of those whose source says that it did not, or that it did."""
    failed = [row for row in rows if row["measured_bytes"] is None]
    ran = [row for row in rows if row["measured_bytes"] is not None]
    return {
        "failed": len(failed),
        "said_to_fit": [row["id"] for row in failed if row["fits"]],
        "ran": len(ran),
        "said_not_to_fit": [row["id"] for row in ran if not row["fits"]],
    }


def _left_out(records: Sequence[Record]) -> list[Record]:
    """Rows that were not scored, by table and reason."""
    counted = Counter((record["family"], row["reason"]) for record in records for row in record.get("left_out", ()))
    return [{"table": table, "reason": reason, "rows": number} for (table, reason), number in counted.items()]


def public_table(public: Record) -> str:
    """All of it as Markdown."""
    head = "| measured tables | rows | level | median | p95 | worst | median with sign | under by > 1 % "
    lines = [f"{head}| above the interval | below it |", "|---|" + "---|" * 9]
    rows = dict(public["families"])
    others = {name: rows.pop(name) for name in [*rows] if name.endswith((LAZY, KNOWN))}
    every = [("**all**", {"level": "", **public["all"]})] if public["all"] else []
    for name, row in [*rows.items(), *every, *others.items()]:
        cells = [f"{name} (kept from {row['kept']})" if "kept" in row else name, str(row["n"]), row["level"]]
        cells += [f"{row['median']:.1%}", f"{row['p95']:.1%}", f"{row['worst']:+.1%}", f"{row['median_signed']:+.1%}"]
        cells += [f"{row[f'{share}_share']:.1%}" for share in ("under", "above_interval", "below_interval")]
        lines.append(f"| {' | '.join(cells)} |")
    again = "In the tables that were run again: of" if any("kept" in row for row in rows.values()) else "Of"
    parts = [_rival_table(public.get("rivals", {})), _verdict_line(public["out_of_memory"], again)]
    return "\n\n".join(["\n".join(lines), *filter(None, parts), _left_out_table(public["left_out"])])


def _rival_table(rivals: Record) -> str:
    if not rivals:
        return ""
    lines = ["| rows of | predicted by | rows | median | p95 | worst | under by > 1 % |", "|---|" + "---|" * 6]
    for family, tools in rivals.items():
        for tool, row in tools.items():
            cells = [family, tool, str(row["n"]), f"{row['median']:.1%}", f"{row['p95']:.1%}", f"{row['worst']:+.1%}"]
            lines.append(f"| {' | '.join(cells)} | {row['under_share']:.1%} |")
    return "\n".join(lines)


def _verdict_line(told: Record, of: str) -> str:
    wrong = len(told["said_to_fit"]), len(told["said_not_to_fit"])
    return (
        f"{of} {told['failed']} rows that ran out of memory, {told['failed'] - wrong[0]} are said to; "
        f"of {told['ran']} that did not, {told['ran'] - wrong[1]} are said to fit."
    )


def _left_out_table(left_out: Sequence[Record]) -> str:
    lines = ["| rows not scored | of | why |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row['rows']} | {row['table']} | {row['reason']} |" for row in left_out)])
