"""Subject: the records a report is about, sorted by kind, with the timeline of keeping everything derived from them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elbowroom.answers.estimate import Estimate
from elbowroom.answers.pareto import Pareto
from elbowroom.errors import InvalidPlan, UsageError
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.simulate.simulate import simulate
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace

KEPT = "everything kept, simulated"
"""Title of the timeline that is never measured; it says so, as readers could take its seconds for measured ones."""
NO_NAME = "train.py"
"""Stands in commands for a script whose name is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordNames:
    """What the commands that a report suggests call the script and the files.

    Attributes:
        script: the script, module or ONNX graph with its options, as in a command line.
        arguments: the script's own words behind it, as in a command line; "" for none.
        trace: file of the trace.
        plan: file of the plan.
    """

    script: str = NO_NAME
    arguments: str = ""
    trace: str = "trace.json"
    plan: str = "plan.json"

    @classmethod
    def of_script(cls, target: str, arguments: Sequence[str], *, is_module: bool, **files: str) -> RecordNames:
        """Return the names of a script or module, quoted for a command line, and of its files, which are quoted."""
        script = f"-m {target}" if is_module else shlex.quote(target)
        return cls(script=script, arguments=shlex.join(arguments), **files)

    @property
    def training(self) -> str:
        """The script with its arguments; "" if it is not known."""
        return "" if self.script == NO_NAME else f"{self.script} {self.arguments}".rstrip()

    def of(self, command: str, options: str = "") -> str:
        """Return a command line of `elbowroom` for the script."""
        after = f" -- {self.arguments}" if self.arguments else ""
        return f"elbowroom {command} {self.script}{options}{after}"


Record = Trace | Machine | Plan | Timeline | Pareto | Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The records that a report is about; None for a record that was not given.

    Attributes:
        kept: simulated timeline with every storage kept; derived if trace and machine are there.
        simulated: the plan's simulated timeline; derived if trace and machine are there, and no timeline is.
        measured: the measured timeline.
        pareto: step times by budget.
        estimate: what the training needs on the machine.
        names: what the commands that the report suggests call the script and the files.
    """

    trace: Trace | None = None
    machine: Machine | None = None
    plan: Plan | None = None
    kept: Timeline | None = None
    simulated: Timeline | None = None
    measured: Timeline | None = None
    pareto: Pareto | None = None
    estimate: Estimate | None = None
    names: RecordNames = RecordNames()

    @property
    def timelines(self) -> tuple[tuple[str, Timeline], ...]:
        """The timelines that were given or derived, each with its title in every report."""
        named = ((KEPT, self.kept), ("simulated", self.simulated), ("measured", self.measured))
        return tuple((title, timeline) for title, timeline in named if timeline is not None)


def subject_of(*records: Record) -> Subject:
    """Sort records by kind and derive the timeline of keeping everything, to compare with.

    Raises:
        UsageError: no record, another object, two of a kind, or records of different traces.
    """
    if not records:
        raise UsageError("report: given no record; allowed are a trace, a machine, a plan and timelines; give one")
    given: dict[str, Record] = {}
    for record in records:
        kind = kind_of(record)
        if kind in given:
            raise UsageError(
                f"report: given two records of the kind {kind}; allowed is one of each; leave one out, or compare two "
                "steps with `elbowroom report`"
            )
        given[kind] = record
    subject = Subject(**given)  # pyright: ignore[reportArgumentType]
    _check_same_trace(subject)
    return _with_kept(_with_simulated(subject))


def kind_of(record: object) -> str:
    """Return the kind of a record; that of a timeline is its source.

    Raises:
        UsageError: another object.
    """
    if isinstance(record, Timeline):
        return record.source
    for kind in (Trace, Machine, Plan, Pareto, Estimate):
        if isinstance(record, kind):
            return kind.__name__.lower()
    raise UsageError(
        f"report: given {type(record).__name__}; allowed are Trace, Machine, Plan, Timeline and Pareto "
        "records, and an Estimate; load files with Trace.load and its like first"
    )


def _check_same_trace(subject: Subject) -> None:
    ids = {
        "the trace": subject.trace.id if subject.trace else "",
        "the plan": subject.plan.trace_id if subject.plan else "",
        "the simulated timeline": subject.simulated.trace_id if subject.simulated else "",
        "the measured timeline": subject.measured.trace_id if subject.measured else "",
        "the curve": subject.pareto.trace_id if subject.pareto else "",
    }
    named = [(what, trace_id) for what, trace_id in ids.items() if trace_id]
    for what, trace_id in named[1:]:
        if trace_id != named[0][1]:
            raise UsageError(
                f"report: {named[0][0]} is of trace {named[0][1]}, {what} of trace {trace_id}; allowed are records "
                "of one trace; report them apart"
            )


def _with_simulated(subject: Subject) -> Subject:
    """Add the timeline of the plan, if trace and machine are there and no timeline is."""
    trace, machine, plan = subject.trace, subject.machine, subject.plan
    if (
        trace is None
        or machine is None
        or plan is None
        or subject.simulated is not None
        or subject.measured is not None
    ):
        return subject
    try:
        return replace(subject, simulated=simulate(trace, machine, plan))
    except InvalidPlan:  # the plan is for another machine: there is no such step
        return subject


def _with_kept(subject: Subject) -> Subject:
    """Add the timeline of keeping everything, unless the simulated one is just that."""
    if subject.trace is None or subject.machine is None:
        return subject
    plan = subject.plan
    decides = plan is not None and plan.decides
    if subject.simulated is not None and not decides and not subject.simulated.swapped_out_bytes:
        return subject
    return replace(subject, kept=simulate(subject.trace, subject.machine))
