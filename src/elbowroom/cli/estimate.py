"""`elbowroom estimate`: does a training script fit a GPU, without the GPU."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from elbowroom.cli import output, scripts
from elbowroom.errors import UsageError

if TYPE_CHECKING:
    from elbowroom.estimate import Estimate, Interval, Moment
    from elbowroom.machine import Machine
    from elbowroom.trace import Trace

USAGE = "elbowroom estimate (script.py | -m MODULE) [--gpu NAME[,NAME...]] [options] [-- ARGS]"
DESCRIPTION = (
    "Runs a training script on a virtual GPU (no GPU needed, nothing is computed) for a few steps, and says whether it "
    "fits, what it needs and what holds the memory. Exit code 0: it fits every GPU that was named; 1: it does not; 2: "
    "that could not be told."
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
    answers: list[Estimate] = []
    traces: list[Trace] = []
    with scripts.progress() as say:
        for machine in machines:
            trace, answer = _answer(script, machine, arguments, say)
            traces.append(trace)
            answers.append(answer)
    if arguments.out:
        traces[0].save(arguments.out)
    if arguments.json:
        print(output.as_json(figures(script.label, answers, traces)))
    else:
        from elbowroom.report.answer import rendered

        output.console().print(rendered(script.label, answers, [trace.remarks for trace in traces]))
    return 0 if all(answer.fits for answer in answers) else 1


def _answer(
    script: scripts.Script, machine: Machine, arguments: argparse.Namespace, say: Callable[[str], None]
) -> tuple[Trace, Estimate]:
    from elbowroom.estimate import estimate

    trace = scripts.captured(script, machine, arguments, say)
    say(f"{script.label} on a virtual {machine.name}: replaying {len(trace.events)} allocations and frees")
    return trace, estimate(trace, machine)


def figures(script: str, answers: Sequence[Estimate], traces: Sequence[Trace]) -> dict[str, object]:
    """The answer for programs: bytes, and places in the training."""
    return {
        "script": script,
        "fits": all(answer.fits for answer in answers),
        "estimates": [_figures(answer, trace) for answer, trace in zip(answers, traces, strict=True)],
    }


def _figures(answer: Estimate, trace: Trace) -> dict[str, object]:
    return {
        "machine": answer.machine,
        "trace_id": trace.id,
        "fits": answer.fits,
        "sure": answer.sure,
        "capacity_bytes": answer.capacity_bytes,
        "needed_bytes": answer.needed_bytes,
        "free_bytes": answer.free_bytes,
        "retries": answer.retries,
        "outside_bytes": _interval(answer.outside),
        "peak_allocated_bytes": _interval(answer.peak_allocated),
        "peak_reserved_bytes": _interval(answer.peak_reserved),
        "peak_reserved_within_bytes": answer.peak_reserved_within_bytes,
        "peak_device_bytes": _interval(answer.peak_device),
        "steps": answer.steps,
        "peak": _moment(answer.peak),
        "failure": None if answer.failure is None else _moment(answer.failure),
        "categories": dict(answer.categories),
        "modules": [share._asdict() for share in answer.modules],
        "other_modules_bytes": answer.other_modules_bytes,
        "rounding_bytes": answer.rounding_bytes,
        "remarks": [{"kind": each.kind, "name": each.name, "count": each.count} for each in trace.remarks],
    }


def _interval(interval: Interval) -> dict[str, int]:
    return {"low": interval.low_bytes, "likely": interval.likely_bytes, "high": interval.high_bytes}


def _moment(moment: Moment) -> dict[str, object]:
    return moment._asdict()
