"""Tables of a report as CSV: the curves of memory, the bars of the lanes, and the storages with what the plan does.

Bytes and times are whole bytes and nanoseconds, as in JSON. What is not known is an empty cell.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from elbowroom.errors import UsageError
from elbowroom.report import figures
from elbowroom.report.subject import Subject

CURVES = ("timeline", "tier", "kind", "at_ns", "size_bytes")
SPANS = (
    *("timeline", "lane", "kind", "name", "start_ns", "end_ns"),
    *("op", "module", "phase", "storage", "size_bytes"),
)
STORAGES = ("storage", "size_bytes", "dtype", "category", "made_by", "module", "idle_ns", "action", "detail")


def curves_csv(subject: Subject) -> str:
    """Make a row for each change of each curve of memory.

    Raises:
        UsageError: there is no timeline.
    """
    _check_timelines(subject)
    return table_text(
        CURVES,
        (
            (title, curve.tier, curve.kind, at_ns, size_bytes)
            for title, line in subject.timelines
            for curve in line.curves
            for at_ns, size_bytes in zip(curve.at_ns, curve.size_bytes, strict=True)
        ),
    )


def spans_csv(subject: Subject) -> str:
    """Make a row for each op, stall and copy of each timeline.

    Raises:
        UsageError: there is no timeline.
    """
    _check_timelines(subject)
    ops = subject.trace.ops if subject.trace else ()
    rows: list[tuple[object, ...]] = []
    for title, line in subject.timelines:
        for span in line.spans:
            op = ops[span.op] if span.op is not None and span.op < len(ops) else None
            of_op = (span.op, op.module if op else "", op.phase if op else "")
            place = (title, span.lane, span.kind, span.name, span.start_ns, span.end_ns)
            rows.append((*place, *of_op, span.storage, span.size_bytes))
    return table_text(SPANS, rows)


def storages_csv(subject: Subject) -> str:
    """Make a row for each storage of the step, the largest first.

    Raises:
        UsageError: there is no trace.
    """
    if subject.trace is None:
        raise UsageError("report: given no trace; a table of storages shows those of one; give a trace")
    rows = figures.largest_storages(subject, len(subject.trace.storages))
    return table_text(STORAGES, ([getattr(row, name) for name in STORAGES] for row in rows))


def table_text(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV, its names in the first line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()


def _check_timelines(subject: Subject) -> None:
    if not subject.timelines:
        raise UsageError("report: given no timeline; this table shows timelines; give a simulated or measured one")
