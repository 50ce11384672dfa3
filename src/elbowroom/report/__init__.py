"""Report: records in, text out. The text is for a terminal, or it is an offline HTML page or a Chrome trace.

terminal.py   the figures as tables
html.py       one file with charts, no network needed
chrome.py     a timeline for chrome://tracing and ui.perfetto.dev
snapshot.py   storages for pytorch.org/memory_viz
csv_tables.py curves, spans and storages as tables
"""

from __future__ import annotations

import os
from pathlib import Path

from elbowroom.errors import FormatError, UsageError
from elbowroom.files.record_files import encode
from elbowroom.report.subject import Record, RecordNames, Subject, subject_of

__all__ = ["Record", "RecordNames", "Subject", "compare_runs", "report", "subject_of", "write"]

ENDINGS = (".html", ".trace.json", ".timeline.json", ".txt", ".pickle", ".curves.csv", ".spans.csv", ".storages.csv")


def report(*records: Record, out: str | os.PathLike[str] | None = None) -> str:
    """Report what a training does, what the plan does with it, and what happened.

    Args:
        records: any of a Trace, a Machine, a Plan, a simulated and a measured Timeline, in any order.
        out: file to write as well: .html (one offline page), .trace.json (Chrome trace), .txt (the returned text),
            .timeline.json (the timeline as a record, the measured one if there is one),
            .pickle (a memory snapshot for https://pytorch.org/memory_viz), .curves.csv, .spans.csv or .storages.csv.
            With a plan, the snapshot is that of the plan.

    Returns:
        The report as plain text.

    Raises:
        UsageError: no record, two of a kind, records of different traces, or an ending of `out` that is not known.
        FormatError: `out` cannot be written.
    """
    from elbowroom.report import terminal

    subject = subject_of(*records)
    if out is not None:
        write(subject, out)
    return terminal.as_text(subject)


def compare_runs(
    first: str | os.PathLike[str], second: str | os.PathLike[str], *, out: str | os.PathLike[str] | None = None
) -> str:
    """Compare two runs by what `elbowroom run --json` wrote of each.

    Args:
        first: file of one run.
        second: file of the other one.
        out: file to write an offline page to, whose name ends in .html; None for none.

    Returns:
        The comparison as plain text: which held less, which was faster, and the figures of both.

    Raises:
        UsageError: one file twice, or another ending of `out`.
        FormatError: a file cannot be read, or has no figures of a run; or `out` cannot be written.
    """
    from elbowroom.report import run_comparison, terminal

    pair = run_comparison.run_pair(run_comparison.runs_of([os.fspath(first), os.fspath(second)]))
    if out is not None:
        if not os.fspath(out).endswith(".html"):
            raise UsageError(
                f"compare_runs: given the file {os.fspath(out)!r}; allowed is a name ending in .html; rename it"
            )
        write_file(out, run_comparison.runs_page(pair))
    return terminal.plain_text(run_comparison.runs_rendered(pair))


def write(subject: Subject, out: str | os.PathLike[str]) -> None:
    """Write a report to a file, in the form that its ending names.

    Raises:
        UsageError: an ending that is not known.
        FormatError: the file cannot be written.
    """
    write_file(out, _made(subject, os.fspath(out)))


def write_file(out: str | os.PathLike[str], made: str | bytes) -> None:
    """Write what was made to a file.

    Raises:
        FormatError: it cannot be written.
    """
    try:
        Path(out).write_bytes(made if isinstance(made, bytes) else made.encode())
    except OSError as problem:
        raise FormatError(f"{os.fspath(out)}: cannot be written: {problem.strerror}; name another path") from problem


def _made(subject: Subject, out: str) -> str | bytes:
    from elbowroom.report import chrome, csv_tables, html, snapshot, terminal

    pages = (html.page, chrome.trace_json, _timeline_json, terminal.as_text, snapshot.snapshot_pickle)
    tables = (csv_tables.curves_csv, csv_tables.spans_csv, csv_tables.storages_csv)
    makers = dict(zip(ENDINGS, (*pages, *tables), strict=True))
    for ending, make in makers.items():
        if out.endswith(ending):
            return make(subject)
    raise UsageError(f"report: given the file {out!r}; allowed are names ending in {', '.join(ENDINGS)}; rename it")


def _timeline_json(subject: Subject) -> str | bytes:
    if not subject.timelines:
        raise UsageError("report: given no timeline; this file holds one; give a trace and a machine, or a timeline")
    return encode(subject.timelines[-1][1])
