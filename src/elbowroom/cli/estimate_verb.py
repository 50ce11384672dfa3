"""`elbowroom estimate`: does a training script fit a GPU, without the GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from elbowroom.capture.gpu_facts import Facts
from elbowroom.cli import output, scripts
from elbowroom.cli.answer_types import BytesRange, EstimateAnswer, MachineEstimate
from elbowroom.cli.progress import progress
from elbowroom.errors import UsageError
from elbowroom.watch import Watch

if TYPE_CHECKING:
    from elbowroom.answers.estimate import Estimate, Interval
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
    parser.add_argument("-o", "--out", metavar="FILE", help="write the trace to a file that other verbs read")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Estimate a script on every GPU that was named."""
    script = scripts.script_of(arguments, "estimate")
    machines = scripts.machines_of(arguments.gpu)
    if arguments.out and len(machines) > 1:
        raise UsageError(f"--out: given with {len(machines)} GPUs; allowed is one: each has a trace of its own")
    with progress() as say:
        watch = Watch(say, arguments.timeout)
        traces = _traces(script, machines, arguments, watch)
        answers = [_answer(*each, watch) for each in zip(traces, machines, strict=True)]
    if arguments.out:
        traces[0].save(arguments.out)
    if arguments.json:
        output.write_answer(figures(script.label, answers, traces), output.STDOUT)
    else:
        from elbowroom.report.answer import rendered

        output.console().print(rendered(script.label, answers, [trace.remarks for trace in traces]))
    return 0 if all(answer.fits for answer in answers) else 1


def _traces(
    script: scripts.Script, machines: Sequence[Machine], arguments: argparse.Namespace, watch: Watch
) -> list[Trace]:
    """Return a trace for each GPU.

    One capture serves all GPUs with the same facts, unless the script read a value in which they differ.
    """
    if script.path.endswith(scripts.RECORD):
        return [_recorded(script.path)] * len(machines)
    traces: list[Trace] = []
    shared: dict[Facts, Trace] = {}
    for machine in machines:
        facts = Facts.of(machine)
        trace = shared.get(facts)
        if trace is None:
            asked: set[str] = set()
            trace = scripts.captured(script, machine, arguments, watch, on_asked=asked.update, compiled=True)
            if not asked:
                shared[facts] = trace
        traces.append(trace)
    return traces


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
    return estimate(trace, machine)


def figures(script: str, answers: Sequence[Estimate], traces: Sequence[Trace]) -> EstimateAnswer:
    """The answer for programs: bytes, and places in the training."""
    return EstimateAnswer(
        script=script,
        fits=all(answer.fits for answer in answers),
        estimates=tuple(_figures(answer, trace) for answer, trace in zip(answers, traces, strict=True)),
    )


def _figures(answer: Estimate, trace: Trace) -> MachineEstimate:
    return MachineEstimate(
        machine=answer.machine,
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
        remarks=trace.remarks,
    )


def _range(interval: Interval) -> BytesRange:
    return BytesRange(low=interval.low_bytes, likely=interval.likely_bytes, high=interval.high_bytes)
