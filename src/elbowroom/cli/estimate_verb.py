"""`elbowroom estimate`: does a training script fit a GPU, without the GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elbowroom.capture.gpu_facts import Facts
from elbowroom.cli import output, ranks, scripts
from elbowroom.cli.answer_types import BytesRange, EstimateAnswer, MachineEstimate, PlannedFigures
from elbowroom.cli.progress import progress
from elbowroom.errors import ElbowroomError, UsageError
from elbowroom.step.exchange_times import with_exchange_times
from elbowroom.step.least_size import least_size
from elbowroom.step.partners import with_partners
from elbowroom.watch import Watch

if TYPE_CHECKING:
    from elbowroom.answers.estimate import Estimate, Interval
    from elbowroom.answers.planned_training import PlannedTraining
    from elbowroom.capture.job_rank import JobRank
    from elbowroom.hardware.interconnects import Interconnect
    from elbowroom.machine import Machine
    from elbowroom.trace import Trace

USAGE = "elbowroom estimate (script.py | trace.json | -m MODULE) [--gpu NAME[,NAME...]] [options] [-- ARGS]"
DESCRIPTION = (
    "Runs a training script on a virtual GPU (no GPU needed, nothing is computed) for a few steps, and says whether it "
    "fits, what it needs and what holds the memory. Exit code 0: it fits every GPU that was named; 1: it does not; 2: "
    "there is no answer."
)


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    short = "say what a training script needs on a GPU, without one"
    parser = scripts.add_verb(verbs, "estimate", short=short, usage=USAGE, description=DESCRIPTION)
    parser.add_argument("--gpu", metavar="NAME", help="GPU by name, or several: a,b,c (`elbowroom machine --list`)")
    ranks.add(parser)
    parser.add_argument("-o", "--out", metavar="FILE", help="write the trace to a file that other verbs read")
    parser.add_argument("--report", metavar="FILE", help="write a report: .html, .txt or another form of `report -o`")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Estimate a script on every GPU that was named, as every rank that was named."""
    script = scripts.script_of(arguments, "estimate")
    cases = [(machine, job) for machine in scripts.machines_of(arguments.gpu) for job in ranks.jobs_of(arguments)]
    _check(script, cases, arguments)
    wires = [ranks.wires_of(arguments, machine) for machine, _ in cases]
    with progress() as say:
        watch = Watch(say, arguments.timeout)
        found = _traces(script, cases, arguments, watch)
        timed = [with_exchange_times(trace, each) for trace, each in zip(found, wires, strict=True)]
        traces = _together(timed, cases)
        answers = [_answer(trace, machine, watch) for trace, (machine, _) in zip(traces, cases, strict=True)]
        answers = _planned(script, answers, traces, cases, arguments, watch)
    if arguments.out:
        traces[0].save(arguments.out)
    if arguments.report:
        from elbowroom.report import subject_of, write

        subject = subject_of(traces[0], cases[0][0], answers[0])
        write(replace(subject, names=script.names(trace=arguments.out)), arguments.report)
    jobs = [job for _, job in cases]
    if arguments.json:
        output.write_answer(figures(script.label, answers, traces, jobs, wires), output.STDOUT)
    else:
        from elbowroom.report.answer import rendered

        numbers = [job.rank for job in jobs if job is not None]
        label = script.label if jobs[0] is None else f"{script.label}, {_ranks(jobs[0], len(numbers))}"
        output.console().print(rendered(label, answers, traces, numbers, wires))
    return 0 if all(answer.fits for answer in answers) else 1


Case = tuple["Machine", "JobRank | None"]
"""A GPU, and the process of a job of many that it is the GPU of."""


def _ranks(job: JobRank, count: int) -> str:
    return f"rank {job.rank} of {job.ranks}" if count == 1 else f"as one of {job.ranks} ranks"


def _check(script: scripts.Script, cases: Sequence[Case], arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageError: one file is to be written and there are several traces, a report has no such form, or a trace is
            to be of another rank.
    """
    for name in ("out", "report"):
        if getattr(arguments, name) and len(cases) > 1:
            raise UsageError(
                f"--{name}: given with {len(cases)} GPUs or ranks; allowed is one: each has its own trace; name one"
            )
    output.check_report(arguments.report)
    ranks.refuse_trace(script.path, cases[0][1])


def _traces(script: scripts.Script, cases: Sequence[Case], arguments: argparse.Namespace, watch: Watch) -> list[Trace]:
    """Return a trace for each GPU and rank.

    One capture serves all GPUs with the same facts, unless the script read a value in which they differ.
    """
    if script.path.endswith(scripts.RECORD):
        return [_recorded(script.path)] * len(cases)
    traces: list[Trace] = []
    shared: dict[tuple[Facts, JobRank | None], Trace] = {}
    for machine, job in cases:
        facts = Facts.of(machine)
        trace = shared.get((facts, job))
        if trace is None:
            asked: set[str] = set()
            own: dict[str, Any] = {} if job is None else {"job": job}
            trace = scripts.captured(script, machine, arguments, watch, on_asked=asked.update, compiled=True, **own)
            if not asked:
                shared[facts, job] = trace
        traces.append(trace)
    return traces


def _together(traces: Sequence[Trace], cases: Sequence[Case]) -> list[Trace]:
    """Return the traces of ranks of one job on one GPU with how late the others are for what each receives."""
    by_machine: dict[str, dict[int, int]] = {}
    for index, (machine, job) in enumerate(cases):
        if job is not None:
            by_machine.setdefault(machine.name, {})[job.rank] = index
    found = list(traces)
    for places in by_machine.values():
        if len(places) > 1:
            for rank, trace in with_partners({rank: traces[index] for rank, index in places.items()}).items():
                found[places[rank]] = trace
    return found


def _recorded(path: str) -> Trace:
    """Load a trace that was written before.

    Raises:
        UsageError: it is a trace of a CPU.
    """
    from elbowroom.trace import Trace

    trace = Trace.load(path)
    if not trace.device.startswith("cuda"):
        raise UsageError(
            f"{path}: given a trace of device {trace.device}; allowed is one of a GPU; estimate the script in its place"
        )
    return trace


def _answer(trace: Trace, machine: Machine, watch: Watch) -> Estimate:
    from elbowroom.answers.estimate import estimate

    watch.say(f"replaying {len(trace.events)} allocations and frees on {machine.name}")
    return estimate(trace, machine, plans=False)


def _planned(
    script: scripts.Script,
    answers: Sequence[Estimate],
    traces: Sequence[Trace],
    cases: Sequence[Case],
    arguments: argparse.Namespace,
    watch: Watch,
) -> list[Estimate]:
    """Return the answers, those that do not fit with how the script trains there under a plan.

    A plan needs optimizers' steps in parts. So a script that does not fit is captured once more, once for GPUs that
    share a trace.
    """
    found = list(answers)
    in_parts: dict[int, Trace] = {}
    for i, (answer, trace, (machine, job)) in enumerate(zip(answers, traces, cases, strict=True)):
        if answer.fits:
            continue
        with suppress(ElbowroomError):  # then the answer is what it was
            if id(trace) not in in_parts:
                in_parts[id(trace)] = _in_parts(script, trace, (machine, job), arguments, watch)
            from elbowroom.answers.planned_training import planned_training

            watch.left_s()
            watch.say(f"planning what does not fit on {machine.name}")
            found[i] = replace(answer, planned=planned_training(in_parts[id(trace)], machine))
    return found


def _in_parts(script: scripts.Script, trace: Trace, case: Case, arguments: argparse.Namespace, watch: Watch) -> Trace:
    """Return the trace of a script whose optimizers' steps are carried out in parts; a trace from a file as it is."""
    if script.path.endswith(scripts.RECORD):
        return trace
    machine, job = case
    own: dict[str, Any] = {} if job is None else {"job": job, "interconnect": arguments.interconnect}
    least_bytes = least_size(machine.tiers[0].capacity_bytes)
    made = scripts.captured(
        script, machine, arguments, watch, in_parts=True, parameters=True, min_size=least_bytes, **own
    )
    return replace(made, remarks=trace.remarks)


def figures(
    script: str,
    answers: Sequence[Estimate],
    traces: Sequence[Trace],
    jobs: Sequence[JobRank | None],
    wires: Sequence[Interconnect],
) -> EstimateAnswer:
    """The answer for programs: bytes, and places in the training."""
    return EstimateAnswer(
        script=script,
        fits=all(answer.fits for answer in answers),
        ranks=None if jobs[0] is None else jobs[0].ranks,
        local_ranks=None if jobs[0] is None else jobs[0].local_ranks,
        estimates=tuple(_figures(*each) for each in zip(answers, traces, jobs, wires, strict=True)),
    )


def _figures(answer: Estimate, trace: Trace, job: JobRank | None, wires: Interconnect) -> MachineEstimate:
    from elbowroom.answers.exchange_memory import exchange_memory
    from elbowroom.answers.exchanges import collectives_of, step_times

    own, times = exchange_memory(trace, wires), step_times(trace)

    return MachineEstimate(
        machine=answer.machine,
        rank=None if job is None else job.rank,
        trace_id=trace.id,
        fits=answer.fits,
        sure=answer.sure,
        capacity_bytes=answer.capacity_bytes,
        needed_bytes=answer.needed_bytes,
        free_bytes=answer.free_bytes,
        retries=answer.retries,
        outside_bytes=_range(answer.outside),
        peak_allocated_bytes=_range(answer.peak_allocated),
        peak_reserved_bytes=_range(answer.peak_reserved),
        peak_reserved_within_bytes=answer.peak_reserved_within_bytes,
        peak_device_bytes=_range(answer.peak_device),
        steps=answer.steps,
        peak=answer.peak,
        failure=answer.failure,
        categories=dict(answer.categories),
        modules=answer.modules,
        other_modules_bytes=answer.other_modules_bytes,
        rounding_bytes=answer.rounding_bytes,
        planned=_planned_figures(answer.planned),
        collectives=collectives_of(trace),
        interconnect=None if own is None else wires.name,
        step_ns=None if times is None else times.step_ns,
        wait_ns=None if times is None else times.wait_ns,
        nccl=own,
        energy=answer.energy,
        remarks=trace.remarks,
    )


def _planned_figures(planned: PlannedTraining | None) -> PlannedFigures | None:
    if planned is None:
        return None
    return PlannedFigures(
        fits=planned.fits,
        means=planned.means,
        slowdown=planned.slowdown if planned.fits else None,
        step_ns=planned.step_ns if planned.fits else None,
        kept_step_ns=planned.kept_step_ns if planned.fits else None,
        host_bytes=planned.host_bytes if planned.fits else None,
        disk_bytes=planned.disk_bytes if planned.fits else None,
        needed_bytes=planned.needed_bytes,
    )


def _range(interval: Interval) -> BytesRange:
    return BytesRange(low=interval.low_bytes, likely=interval.likely_bytes, high=interval.high_bytes)
