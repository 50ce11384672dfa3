"""`elbowroom report`: a report of records, on the screen or as a page."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from elbowroom.answers.pareto import Pareto
from elbowroom.cli import output
from elbowroom.cli.answer_types import (
    BoundFigures,
    ComparisonAnswer,
    RanksAnswer,
    ReportAnswer,
    RunPairAnswer,
    TimelineFigures,
)
from elbowroom.errors import UsageError
from elbowroom.files.record_files import MAX_FILE_BYTES, load
from elbowroom.machine import Machine
from elbowroom.plan import Bound, Plan
from elbowroom.report import ENDINGS, Record, RecordNames, Subject, subject_of, write, write_file
from elbowroom.report.comparison import RUN_SCHEMA, Sides, comparison_sentences, is_pair, sides_of
from elbowroom.report.figures import energy
from elbowroom.report.subject import kind_of
from elbowroom.step.plan_summary import StorageShare, decided
from elbowroom.timeline import Source, Timeline
from elbowroom.trace import Trace

if TYPE_CHECKING:
    from elbowroom.report.rank_table import RankTimes

HEAD_BYTES = 512
OF_RANK = re.compile(r"\.rank\d+\.[^/]*$")
"""Names of files that the ranks of one job wrote."""


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser(
        "report",
        help="show what records say: a trace, a machine, a plan, timelines; two steps or two runs compared; or ranks",
    )
    parser.add_argument("records", nargs="+", metavar="FILE", help="files of records, in any order")
    parser.add_argument("-o", "--out", metavar="FILE", help=f"write it to a file ending in {', '.join(ENDINGS)}")
    parser.add_argument("--json", action="store_true", help="answer with the figures in JSON")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Report the records of the given files."""
    if arguments.out and not arguments.out.endswith(ENDINGS):
        raise UsageError(f"--out: given {arguments.out!r}; allowed are names ending in {', '.join(ENDINGS)}; rename it")
    if runs := _runs(arguments.records):
        if len(runs) == 2 and not all(OF_RANK.search(path) for path in runs):
            return _runs_compared(runs, arguments)
        from elbowroom.report.rank_table import run_times

        return _ranks_shown(run_times(runs), "measured", arguments)
    records = [load(path, Trace, Machine, Plan, Timeline, Pareto) for path in arguments.records]
    lines = {path: record for path, record in zip(arguments.records, records, strict=True) if _is_line(record)}
    as_page = len(records) == 2 and arguments.out
    if not as_page and len(lines) == len(records) > 1 and len({line.source for line in lines.values()}) < len(lines):
        from elbowroom.report.rank_table import rank_times

        return _ranks_shown(rank_times(lines), next(iter(lines.values())).source, arguments)
    if is_pair(records):
        return _compared(dict(zip(arguments.records, records, strict=True)), arguments)
    subject = subject_of(*records)
    if arguments.out:
        write(replace(subject, names=_names(arguments.records, records)), arguments.out)
    if arguments.json:
        output.write_answer(figures(subject), output.STDOUT)
    elif not arguments.out:
        from elbowroom.report.terminal import rendered

        output.console().print(rendered(subject))
    return 0


def _names(paths: Sequence[str], records: Sequence[Record]) -> RecordNames:
    """Return what the commands of the page call the files."""
    found = {kind_of(record): shlex.quote(path) for path, record in zip(paths, records, strict=True)}
    return RecordNames(**{kind: path for kind, path in found.items() if kind in ("trace", "plan")})


def _compared(named: dict[str, Record], arguments: argparse.Namespace) -> int:
    """Compare two steps.

    Raises:
        UsageError: a form that a comparison does not have, or one file twice.
        FormatError: the page cannot be written.
    """
    _check_page(arguments, "steps")
    if len(named) < len(arguments.records):
        twice = next(path for path in arguments.records if arguments.records.count(path) > 1)
        raise UsageError(f"report: given {twice} twice; allowed are two steps to compare; name the other one")
    sides = sides_of(named)
    if arguments.out:
        from elbowroom.report.compare_page import compare_page

        write_file(arguments.out, compare_page(sides))
    if arguments.json:
        output.write_answer(comparison_figures(sides), output.STDOUT)
    elif not arguments.out:
        from elbowroom.report.compare_page import compare_rendered

        output.console().print(compare_rendered(sides))
    return 0


def _check_page(arguments: argparse.Namespace, what: str) -> None:
    """Refuse a form that a comparison of two steps or runs does not have."""
    if arguments.out and not arguments.out.endswith(".html"):
        raise UsageError(
            f"--out: given {arguments.out!r} with two {what} to compare; allowed is a name ending in .html; rename it, "
            f"or give the records of one {what[:-1]}"
        )


def _runs_compared(runs: dict[str, dict[str, Any]], arguments: argparse.Namespace) -> int:
    """Compare two runs.

    Raises:
        UsageError: a form that a comparison does not have.
        FormatError: a run has no steps, or the page cannot be written.
    """
    from elbowroom.report.run_comparison import run_pair, run_sentences, runs_page, runs_rendered

    _check_page(arguments, "runs")
    pair = run_pair(runs)
    if arguments.out:
        write_file(arguments.out, runs_page(pair))
    if arguments.json:
        made = RunPairAnswer(names=pair.names, answer=run_sentences(pair), figures=pair.figures)
        output.write_answer(made, output.STDOUT)
    elif not arguments.out:
        output.console().print(runs_rendered(pair))
    return 0


def comparison_figures(sides: Sides) -> ComparisonAnswer:
    """The figures of two steps for programs."""
    first, second = sides
    return ComparisonAnswer(
        source=first.line.source,
        names=(first.name, second.name),
        answer=comparison_sentences(sides),
        budgets_bytes=tuple(None if side.subject.plan is None else side.subject.plan.budget_bytes for side in sides),
        steps=tuple(line_figures(side.line, side.subject) for side in sides),
    )


def _is_line(record: object) -> TypeGuard[Timeline]:
    return isinstance(record, Timeline)


def _runs(paths: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what `elbowroom run --json` wrote for several ranks; nothing if a file is something else."""
    found: dict[str, dict[str, Any]] = {}
    if len(paths) < 2 or not all(map(os.path.isfile, paths)):  # a pipe can be read once
        return {}
    for path in paths:
        try:
            if os.path.getsize(path) > MAX_FILE_BYTES or not _begins_as_run(path):
                return {}
            content = json.loads(Path(path).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}  # as a record, it is refused with the reason
        if not isinstance(content, dict) or content.get("schema") != RUN_SCHEMA:
            return {}
        found[path] = content
    return found


def _begins_as_run(path: str) -> bool:
    """Whether a file begins as an answer of `elbowroom run`; a record, which may be large, is not read for it."""
    with open(path, "rb") as file:
        return RUN_SCHEMA.encode() in file.read(HEAD_BYTES)


def _ranks_shown(ranks: tuple[RankTimes, ...], source: Source, arguments: argparse.Namespace) -> int:
    """Report the ranks of one job.

    Raises:
        UsageError: a form that ranks do not have.
        FormatError: the page cannot be written.
    """
    from elbowroom.report.rank_page import ranks_page
    from elbowroom.report.rank_table import ranks_rendered, waited_for

    if arguments.out and not arguments.out.endswith(".html"):
        raise UsageError(
            f"--out: given {arguments.out!r} with {len(ranks)} ranks; allowed is a name ending in .html; rename it, or "
            "give the records of one rank"
        )
    if arguments.out:
        write_file(arguments.out, ranks_page(ranks, source))
    if arguments.json:
        late = waited_for(ranks)
        answer = RanksAnswer(source=source, waited_for=None if late is None else late.name, ranks=ranks)
        output.write_answer(answer, output.STDOUT)
    elif not arguments.out:
        output.console().print(ranks_rendered(ranks, source))
    return 0


def figures(subject: Subject) -> ReportAnswer:
    """The figures of a report for programs, bytes and nanoseconds."""
    plan = subject.plan
    return ReportAnswer(
        trace_id=subject.trace.id if subject.trace else None,
        budget_bytes=plan.budget_bytes if plan else None,
        planner=plan.planner if plan else None,
        swaps=len(plan.swaps) if plan else None,
        recomputes=len(plan.recomputes) if plan else None,
        algorithms=len(plan.algorithms) if plan else None,
        decided=shares(subject),
        bound=bound_figures(plan.bound if plan else None),
        everything_kept=line_figures(subject.kept, subject) if subject.kept else None,
        simulated=line_figures(subject.simulated, subject) if subject.simulated else None,
        measured=line_figures(subject.measured, subject) if subject.measured else None,
        pareto=subject.pareto,
    )


def shares(subject: Subject) -> tuple[StorageShare, ...] | None:
    """Return what the plan does with storages; None without plan and trace."""
    if subject.plan is None or subject.trace is None:
        return None
    return decided(subject.trace, subject.plan).shares


def bound_figures(proven: Bound | None) -> BoundFigures | None:
    """Return a bound for programs; None if nothing was proven."""
    if proven is None:
        return None
    return BoundFigures(
        machine=proven.machine,
        step_ns=proven.step_ns,
        lower_bound_ns=proven.lower_bound_ns,
        gap=proven.gap if proven.lower_bound_ns else None,
    )


def line_figures(line: Timeline, subject: Subject) -> TimelineFigures:
    """A timeline of a subject for programs."""
    return TimelineFigures(
        peak_allocated_bytes=line.peak_allocated_bytes,
        peak_reserved_bytes=line.peak_reserved_bytes,
        peak_device_bytes=line.peak_device_bytes,
        step_ns=line.step_ns,
        stall_ns=line.stall_ns,
        utilisation=line.utilisation,
        swapped_out_bytes=line.swapped_out_bytes,
        swapped_back_bytes=line.swapped_back_bytes,
        at_peak=dict(line.at_peak),
        energy=energy(subject, line),
    )
