"""`elbowroom plan`: what to keep, swap and recompute so that a script fits a budget, and what that costs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elbowroom.cli import choosing, failures, output, ranks, scripts
from elbowroom.cli.answer_types import FileKind, PlanAnswer, TimelineFigures, WrittenFile
from elbowroom.cli.progress import progress
from elbowroom.cli.report_verb import bound_figures, line_figures, shares
from elbowroom.cli.run_settings import DEFAULTS, settings_of
from elbowroom.errors import Infeasible, UsageError
from elbowroom.planners import OBJECTIVES, requested
from elbowroom.step.least_size import least_size, said
from elbowroom.watch import Watch

if TYPE_CHECKING:
    from elbowroom.answers.pareto import Pareto
    from elbowroom.capture.job_rank import JobRank
    from elbowroom.machine import Machine
    from elbowroom.report import Subject
    from elbowroom.trace import Trace

USAGE = (
    "elbowroom plan (script.py | trace.json | -m MODULE) [--gpu NAME] [--budget BUDGET] [-o plan.json] [options] "
    "[-- ARGS]"
)
DESCRIPTION = (
    "Runs a training script on a virtual GPU, or reads a trace that was recorded, and plans what to keep, to swap and "
    "to recompute so that a step stays within a budget of device memory. Says what that costs, compared with the step "
    "that keeps everything. Exit code 0: planned; 1: no plan meets the budget, and the least that can be met is said; "
    "2: there is no answer."
)
CURVES = (".json", ".html", ".txt")
PAGES = (".html", ".txt")
NEEDS_TRACE = (
    "a run that follows {plan} needs its trace too, as the GPU was not there: write it with --trace trace.json, and "
    "start `elbowroom run --plan {plan} --trace trace.json`"
)
"""Said where a plan of a captured script is written without its trace."""


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    short = "plan a training inside a memory budget"
    parser = scripts.add_verb(
        verbs, "plan", short=short, usage=USAGE, description=DESCRIPTION, timeout_s=scripts.SEARCH_TIMEOUT_S
    )
    parser.add_argument("--gpu", metavar="NAME", help="GPU by name (`elbowroom machine --list`)")
    ranks.add(parser)
    parser.add_argument(
        "--budget",
        help=f"device memory a step may hold, per tier too (host=24GiB), or least (default: {DEFAULTS['budget']})",
    )
    parser.add_argument(
        "--slowdown", type=float, metavar="X", help="with --budget least: the step may take X times as long"
    )
    parser.add_argument(
        "--objective", metavar="WHAT", help=f"what plans are chosen by, of {','.join(OBJECTIVES)} (default: time)"
    )
    parser.add_argument("--planner", metavar="NAME", help=f"which planner makes it (default: {scripts.PLANNER})")
    choosing.add_options(parser)
    parser.add_argument("--min-size", metavar="SIZE", help="keep smaller storages (default: follows the budget)")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help="seconds a planner may search for one plan (default: 60, and 1 for each point of --pareto)",
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="write the plan to a file that `elbowroom run` reads")
    parser.add_argument("--trace", metavar="FILE", help="write the trace to a file: a second plan needs no capture")
    parser.add_argument("--report", metavar="FILE", help="write a report: .html, .trace.json or .txt")
    parser.add_argument(
        "--pareto", metavar="FILE", help=f"also write the curve of budget against step time: {', '.join(CURVES)}"
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Plan, and say what was planned."""
    _check(arguments)
    script = scripts.script_of(arguments, "plan")
    job = ranks.job_of(arguments, "plan")
    ranks.refuse_trace(script.path, job)
    asked = _asked(arguments)
    with progress() as say:
        watch = Watch(say, arguments.timeout)
        trace, machine = _given((script, job), arguments, asked, watch)
        written = _kept(trace, arguments)
        try:
            subject = _planned(trace, machine, asked, watch)
        except Infeasible as problem:
            if not arguments.json:
                raise
            answer = _infeasible(script.label, (trace, machine), asked, problem, written)
            output.write_answer(answer, output.STDOUT)
            return failures.say(problem)
        curve = _curve(trace, machine, asked, watch) if arguments.pareto and not watch.early else None
    names = script.names(trace=arguments.trace, plan=arguments.out)
    written += _write(replace(subject, names=names), curve, arguments)
    _show(script.label, subject, asked.get("min_size"), watch.early, written, as_json=arguments.json)
    if arguments.out and not (arguments.trace or script.path.endswith(scripts.RECORD)):
        print(f"elbowroom: {NEEDS_TRACE.format(plan=arguments.out)}", file=sys.stderr)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise before the capture for errors that would come after minutes of it."""
    from elbowroom.planners import PLANNERS

    if arguments.planner and arguments.planner not in PLANNERS:
        raise UsageError(f"--planner: given {arguments.planner!r}; allowed is one of {', '.join(PLANNERS)}")
    requested(arguments.planner or scripts.PLANNER, objective=arguments.objective or "time")
    output.check_report(arguments.report)
    if arguments.pareto and not arguments.pareto.endswith(CURVES):
        raise UsageError(f"--pareto: given {arguments.pareto!r}; allowed are names ending in {', '.join(CURVES)}")


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `elbowroom.plan`, without those that were not given."""
    given = {"budget": arguments.budget, "min_size": arguments.min_size}
    settings = settings_of({name: given.get(name) for name in DEFAULTS})
    asked: dict[str, Any] = {
        "budget": settings.budget,
        "min_size": settings.min_size_bytes,
        "slowdown": arguments.slowdown,
        "planner": arguments.planner or scripts.PLANNER,
        "options": choosing.options(arguments.option),
        "include": arguments.include,
        "exclude": arguments.exclude,
        "allow": choosing.allowed(arguments.allow),
        "time_limit_s": arguments.time_limit,
        "objective": arguments.objective,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _given(
    what: tuple[scripts.Script, JobRank | None], arguments: argparse.Namespace, asked: Mapping[str, Any], watch: Watch
) -> tuple[Trace, Machine]:
    """Return the trace, read or captured, and the machine: this computer for a trace of its CPU.

    Collectives of a trace from a file keep their times if no interconnect is given.
    """
    from elbowroom.machine import Machine
    from elbowroom.planners import means_of, parts_for
    from elbowroom.planners.budget.budgets import device_bytes
    from elbowroom.step.exchange_times import with_exchange_times
    from elbowroom.trace import Trace
    from elbowroom.units import parse_budget

    script, job = what
    trace = Trace.load(script.path) if script.path.endswith(scripts.RECORD) else None
    if trace is not None and trace.device == "cpu" and not arguments.gpu:
        return trace, Machine.here(device="cpu")
    machine = scripts.machine_of(arguments.gpu)
    follows = least_size(device_bytes(machine, parse_budget(asked["budget"])))
    means = means_of(asked.get("allow"))
    wires = ranks.wires_of(arguments, machine)
    if trace is not None:
        return trace if arguments.interconnect is None else with_exchange_times(trace, wires), machine
    own = {} if job is None else {"job": job, "interconnect": arguments.interconnect}
    parts = parts_for(means, asked.get("min_size", follows))
    return scripts.captured(script, machine, arguments, watch, **parts, **own), machine


def _planned(trace: Trace, machine: Machine, asked: Mapping[str, Any], watch: Watch) -> Subject:
    from elbowroom.planners import plan
    from elbowroom.report import subject_of
    from elbowroom.simulate.simulate import simulate

    watch.say(f"planning {len(trace.storages)} storages for {asked['budget']}")
    made = plan(trace, machine, **asked, watch=watch)
    return subject_of(trace, machine, made, simulate(trace, machine, made))


def _curve(trace: Trace, machine: Machine, asked: Mapping[str, Any], watch: Watch) -> Pareto:
    from elbowroom.answers.pareto import pareto

    watch.say("planning for other budgets")
    left = {name: value for name, value in asked.items() if name not in ("planner", "slowdown")}
    return pareto(trace, machine, (asked["planner"],), watch=watch, **left)


def _kept(trace: Trace, arguments: argparse.Namespace) -> list[tuple[FileKind, str]]:
    """Save the trace if that was requested; return what was written."""
    if not arguments.trace:
        return []
    trace.save(arguments.trace)
    return [("trace", arguments.trace)]


def _write(subject: Subject, curve: Pareto | None, arguments: argparse.Namespace) -> list[tuple[FileKind, str]]:
    """Write the requested files; return the kind and the name of each."""
    from elbowroom.report import write

    written: list[tuple[FileKind, str]] = []
    if arguments.out and subject.plan is not None:
        subject.plan.save(arguments.out)
        written.append(("plan", arguments.out))
    if arguments.report:
        # The curve has a page of its own if one is requested.
        of_curve = curve if curve is not None and not arguments.pareto.endswith(PAGES) else None
        write(replace(subject, pareto=of_curve), arguments.report)
        written.append(("report", arguments.report))
    if curve is None:
        return written
    if arguments.pareto.endswith(".json"):
        curve.save(arguments.pareto)
    else:
        write(replace(subject, pareto=curve), arguments.pareto)
    return [*written, ("curve", arguments.pareto)]


def _show(
    script: str,
    subject: Subject,
    given_bytes: int | None,
    early: str,
    written: Sequence[tuple[FileKind, str]],
    *,
    as_json: bool,
) -> None:
    """Show the answer; `given_bytes` is the least size of a storage that may move, if it was given."""
    assert subject.plan is not None
    follows = least_size(subject.plan.budget_bytes)
    if as_json:
        output.write_answer(figures(script, subject, given_bytes or follows, early, written), output.STDOUT)
        return
    from elbowroom.report.terminal import plan_rendered

    may_move = "" if given_bytes else said(follows)
    output.console().print(plan_rendered(script, subject, early=early, may_move=may_move, written=written))


def figures(
    script: str, subject: Subject, min_size_bytes: int, early: str, written: Sequence[tuple[FileKind, str]]
) -> PlanAnswer:
    """The answer for programs: what `elbowroom report --json` says, and what the plan does."""
    from elbowroom.answers.moved_bytes import moved_bytes

    plan, trace, machine = subject.plan, subject.trace, subject.machine
    assert plan is not None
    assert trace is not None
    assert machine is not None
    return PlanAnswer(
        script=script,
        feasible=True,
        machine=machine.name,
        trace_id=trace.id,
        budget_bytes=plan.budget_bytes,
        least_feasible_bytes=None,
        message=None,
        planner=plan.planner,
        min_size_bytes=min_size_bytes,
        swaps=len(plan.swaps),
        recomputes=len(plan.recomputes),
        algorithms=len(plan.algorithms),
        decided=shares(subject),
        bound=bound_figures(plan.bound),
        everything_kept=_kept_figures(subject),
        simulated=line_figures(subject.simulated, subject) if subject.simulated else None,
        moved=moved_bytes(trace, subject.simulated) if subject.simulated else (),
        early=early,
        files=_files(written),
    )


def _infeasible(
    script: str,
    given: tuple[Trace, Machine],
    asked: Mapping[str, Any],
    problem: Infeasible,
    written: Sequence[tuple[FileKind, str]],
) -> PlanAnswer:
    """Return the answer if no plan meets the budget."""
    from elbowroom.report import subject_of

    trace, machine = given
    return PlanAnswer(
        script=script,
        feasible=False,
        machine=machine.name,
        trace_id=trace.id,
        budget_bytes=problem.budget_bytes,
        least_feasible_bytes=problem.least_feasible_bytes,
        message=str(problem),
        planner=asked["planner"],
        min_size_bytes=asked.get("min_size") or least_size(problem.budget_bytes),
        swaps=None,
        recomputes=None,
        algorithms=None,
        decided=None,
        bound=None,
        everything_kept=_kept_figures(subject_of(trace, machine)),
        simulated=None,
        moved=None,
        early="",
        files=_files(written),
    )


def _kept_figures(subject: Subject) -> TimelineFigures:
    assert subject.kept is not None, "there are a trace and a machine"
    return line_figures(subject.kept, subject)


def _files(written: Sequence[tuple[FileKind, str]]) -> tuple[WrittenFile, ...]:
    return tuple(WrittenFile(what=what, file=name) for what, name in written)
