"""`elbowroom run`: a training script inside a budget, without a change to it."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elbowroom.cli import choosing, failures, launch, merged_figures, output, started
from elbowroom.cli.answer_types import RunAnswer
from elbowroom.cli.ending import Ending
from elbowroom.cli.run_settings import DEFAULTS, RunSettings, settings_of
from elbowroom.errors import Infeasible, UsageError
from elbowroom.hardware.launched_rank import launched_rank
from elbowroom.hardware.ram import hard_limits
from elbowroom.plan import Plan
from elbowroom.report import ENDINGS
from elbowroom.trace import Trace
from elbowroom.units import format_bytes, format_exact_bytes, parse_budget

if TYPE_CHECKING:
    from elbowroom.run.beforehand import Verdict
    from elbowroom.run.room import Room
    from elbowroom.run.training import TrainingRun

    Shown = Callable[[TrainingRun], AbstractContextManager[None]]

CAPTURE_BYTES = 400 << 20
"""Memory that the capture of a small script takes while its training waits: 390 MiB, mostly torch's."""
HELD_MORE = 3
"""Exit code of a run whose script ended well but exceeded its budget, or trained outside of it.

One rank of many ends with its script's code: a launcher takes any other for a failure, ends the other ranks, which may
be writing a checkpoint, and starts all of them again (`torchrun --max-restarts`).
"""
USAGE = "elbowroom run [--budget BUDGET] [options] [-m] script.py [--] [ARGS]"
EPILOG = (
    "Budgets: 8GiB, 8GB (decimal), 90%, auto (what is free now, less a margin; on the CPU, what a container's limit "
    "leaves), or per tier as in device=8GiB,disk=200GiB. Settings not given here are taken from ELBOWROOM_BUDGET, "
    "ELBOWROOM_SPILL_DIR and ELBOWROOM_MIN_SIZE, then from [tool.elbowroom] in pyproject.toml. A step ends when an "
    "optimizer's step() returns. The exit code is the script's; 3 where that is 0 and more than the budget was held "
    "(not for one rank of many), 1 where no plan meets it."
)


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("run", help="run a training script inside a memory budget", usage=USAGE, epilog=EPILOG)
    parser.add_argument("--budget", help=f"memory the training may hold (default: {DEFAULTS['budget']})")
    parser.add_argument("--plan", metavar="FILE", help="a plan to run instead of making one")
    parser.add_argument("--trace", metavar="FILE", help="the trace that the plan was made from, if not by a run")
    parser.add_argument("--report", metavar="FILE", help=f"write a report at the end: {', '.join(ENDINGS)}")
    parser.add_argument("--spill-dir", metavar="DIR", help="directory of the disk tier (default: TMPDIR)")
    parser.add_argument("--min-size", metavar="SIZE", help="keep smaller storages (default: follows the budget)")
    parser.add_argument("--planner", metavar="NAME", help="which planner makes the plans")
    choosing.add_options(parser)
    parser.add_argument("--gds", action="store_true", help="to the disk past the host, by GPUDirect Storage (CUDA)")
    parser.add_argument("--managed", metavar="SIZE", help="so much beyond the budget may lie in managed memory (CUDA)")
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        help="plan before the script starts, from a capture without its numbers as estimate makes it (the default for "
        "one process on a GPU, and on the CPU with a budget or below a container's limit); --check says why there is "
        "none; --no-check: observe the first steps instead",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the figures of all steps to a file; -: to standard output, and what the script prints to standard "
        "error",
    )
    parser.add_argument("--live", action="store_true", help="keep lines on the run at the bottom of the terminal")
    parser.add_argument(
        "--live-port",
        type=int,
        metavar="PORT",
        help="serve a page on the run, and metrics for Prometheus, on this port of 127.0.0.1; 0: any free one",
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="the script is a module, as in python -m")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="script.py [--] [ARGS]", help="what to run")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Run the script; its exit code and errors go on to the caller."""
    if arguments.json == output.STDOUT:
        arguments.json = output.keep_stdout()
    settings = settings_of({name: getattr(arguments, name) for name in DEFAULTS})
    started.refuse(arguments.command, _options_of(arguments), is_module=arguments.is_module)
    command = launch.Command.of(arguments.command, is_module=arguments.is_module)
    output.check_report(arguments.report)
    shared = [name for name in (arguments.report, arguments.json) if isinstance(name, str)]
    asked, begun_s, process = arguments.json, time.time(), os.getpid()
    _own_files(arguments)
    shown = _live(arguments, command)
    ending = Ending()
    room = _room(arguments, settings)
    children = started.Children()
    outcome = _trained(room, command, shown, arguments, settings, ending)
    children.close()
    code = outcome.exit_code()
    _leave_fork(process, code)
    if outcome.error is not None:
        failures.write_error(outcome.error, code, arguments)
    ended_early = outcome.error is not None or code == failures.INTERRUPTED
    if outcome.room is None or (ended_early and not outcome.room.steps):
        return code
    sys.stdout.flush()
    print(outcome.room.summary(), file=sys.stderr)
    if outcome.error is not None:
        return code
    _say_files(shared)
    not_held = _run_of(outcome.room).over_bytes or _trained_outside(outcome.room, children, command)
    if code == 0 and not_held and not launched_rank().of_many:
        code = HELD_MORE
    _write(outcome.room, command, code, arguments)
    if isinstance(asked, str):
        merged_figures.merge(asked, launched_rank(), begun_s)
    return code


def _trained(
    room: AbstractContextManager[Room],
    command: launch.Command,
    shown: Shown,
    arguments: argparse.Namespace,
    settings: RunSettings,
    ending: Ending,
) -> launch.ScriptEnd:
    """Run the script in a room; return how it ended."""
    with launch.as_python_would(command) as outcome:
        try:
            with room as inside:
                outcome.room = inside
                _run_of(inside).ends_process = True
                with shown(_run_of(inside)):
                    _check(inside, command, arguments.check, may_be_short=_may_be_short(inside, settings.budget))
                    launch.execute(command, outcome)
        except Infeasible as refused:
            if arguments.check is not False and not launched_rank().of_many:
                ending.become(_looking_later(outcome.room, command, refused.exit_code))
            raise
    return outcome


def _leave_fork(process: int, code: int) -> None:
    """End a process that the script has forked from this one: the summary is its parent's.

    It ends past the libraries: torch's profiler would wait there for a thread of its parent.
    """
    if os.getpid() == process:
        return
    atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _live(arguments: argparse.Namespace, command: launch.Command) -> Shown:
    """Return what shows a run while it goes on, if that was asked for. It is loaded before memory is counted.

    The ranks of one computer share a terminal, so the first of all has the lines. Each has a page of its own.
    """
    port, rank = arguments.live_port, launched_rank()
    if not arguments.live and port is None:
        return lambda _: nullcontext()
    from elbowroom.live import live

    if port:
        port += rank.rank % max(1, rank.local_ranks)
    lines = arguments.live and rank.rank == 0
    return lambda run: live(run.now, command.label, lines=lines, port=port)


def _own_files(arguments: argparse.Namespace) -> None:
    """Name the files of one rank of many, which were all given the same names."""
    for name in ("report", "json"):
        if isinstance(given := getattr(arguments, name), str):
            setattr(arguments, name, launched_rank().path_of(given))


def _say_files(shared: Sequence[str]) -> None:
    """Say once for all ranks where their files are."""
    rank = launched_rank()
    for name in shared if rank.of_many and rank.rank == 0 else ():
        print(f"elbowroom: each rank wrote a file of its own in place of {name}: {rank.path_of(name)}", file=sys.stderr)


def _room(arguments: argparse.Namespace, settings: RunSettings) -> AbstractContextManager[Room]:
    """Make the room in which the script runs."""
    plan = Plan.load(arguments.plan) if arguments.plan else None
    if not hard_limits():
        # torch reads it on import: storages of 2 MiB and more then begin at a page and go to disk without a copy.
        # Huge pages take up to 2 MiB more for each, which a hard limit would count.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

    from elbowroom.run import within

    return within(
        arguments.budget if plan else settings.budget,
        plan=plan,
        trace=Trace.load(arguments.trace) if arguments.trace else None,
        spill_dir=settings.spill_dir,
        min_size=settings.min_size_bytes,
        measure=arguments.report is not None or (bool(arguments.json) and launched_rank().of_many),
        planner=arguments.planner,
        options=choosing.options(arguments.option),
        include=arguments.include or (),
        exclude=arguments.exclude or (),
        gds=arguments.gds,
        managed=arguments.managed or 0,
        allow=choosing.allowed(arguments.allow),
    )


def _check(room: Room, command: launch.Command, asked: bool | None, *, may_be_short: bool) -> None:
    """Have a child plan for the script before it starts.

    Args:
        room: the room in which it will run.
        command: the script.
        asked: whether that is requested; None does it in one process whose memory may be short.
        may_be_short: whether that may be: where `auto` is a computer's whole RAM, a plan costs more than it gains.

    Raises:
        Infeasible: the budget cannot be met, for certain.
        UsageError: this is requested, and cannot be done for this run.
    """
    if asked is False or (asked is None and (launched_rank().of_many or not may_be_short)):
        return
    try:
        child = _run_of(room).ask_beforehand(command.path, command.module, command.arguments)
    except UsageError:
        if asked:
            raise
        return
    verdict = child.wait(patient=bool(asked))
    _run_of(room).begin_with(verdict)
    if verdict.refuses and verdict.sure:
        raise child.refusal(verdict)
    if asked or (verdict.refuses and _run_of(room).device.type == "cuda"):
        _say(verdict)


def _looking_later(room: Room | None, command: launch.Command, exit_code: int) -> Sequence[str]:
    """Return a command that looks for the limit that is enough, if a hard limit has ended the training; else none."""
    limits = hard_limits()
    if room is None or not all(limit.kills and limit.limit_bytes >= CAPTURE_BYTES for limit in limits):
        return ()
    from elbowroom.run.least_limit import command_of

    with suppress(UsageError, OSError, MemoryError):  # the refusal is what has to be said
        asked = _run_of(room).limit_question(command.path, command.module, command.arguments)
        if asked is not None:
            return command_of(asked[0], _run_of(room).machine, asked[1], exit_code)
    return ()


def _may_be_short(room: Room, budget: str) -> bool:
    if _run_of(room).device.type == "cuda":
        return True
    if limits := hard_limits():
        return min(limit.left_bytes() for limit in limits) >= CAPTURE_BYTES
    return not parse_budget(budget).device.is_auto


def _say(verdict: Verdict) -> None:
    """Say what was found, before the script starts."""
    line = f"check: the script starts, as its budget is not refused for certain: {verdict.why}"
    if verdict.course is not None:
        line = f"check: the script starts with a plan that holds {format_bytes(verdict.course.peak_bytes)}"
    if verdict.refuses:
        assumed = f", which assumed values of {', '.join(verdict.assumed[:3])}," if verdict.assumed else ""
        line = (
            f"check: a capture of the script without its numbers{assumed} needs a budget of "
            f"{format_exact_bytes(verdict.least_feasible_bytes)}. The script starts all the same. If it does what the "
            "capture did, it ends in its first step and says what holds the memory."
        )
    print(f"elbowroom: {line}", file=sys.stderr)


def _options_of(arguments: argparse.Namespace) -> list[str]:
    """Return the options of this command line that each process of a launcher needs."""
    given = (("--budget", arguments.budget), ("--spill-dir", arguments.spill_dir), ("--allow", arguments.allow))
    return [word for name, value in given if value for word in (name, value)]


def _trained_outside(room: Room, children: started.Children, command: launch.Command) -> bool:
    """Return whether the script seems to have trained in other processes, where no budget holds; warn if so."""
    same = [script for script in children.scripts if Path(script).name == Path(command.target).name]
    found = same or ([] if room.steps else children.scripts)
    if found:
        print(
            f"elbowroom: the script started {found[0]!r} in {len(found)} processes of its own, which are outside the "
            "budget: have what starts them run `python -m elbowroom run --budget BUDGET SCRIPT` in each",
            file=sys.stderr,
        )
    return bool(found)


def _write(room: Room, command: launch.Command, code: int, arguments: argparse.Namespace) -> None:
    """Write the requested files, the figures last."""
    plan, budget_bytes = room.plan, _run_of(room).budget_bytes
    if plan is not None and plan.budget_bytes > budget_bytes:  # a plan in force may hold 1 % more in RAM
        plan = replace(plan, budget_bytes=budget_bytes)
    records = [room.trace, room.machine, plan, room.simulated, room.measured]
    if arguments.report and any(record is not None for record in records):
        from elbowroom.report import RecordNames, subject_of, write

        names = RecordNames.of_script(command.target, command.arguments, is_module=command.is_module)
        subject = subject_of(*(record for record in records if record is not None))
        write(replace(subject, names=names), arguments.report)
    if (place := output.place_of(arguments)) is not None:
        output.write_answer(figures(room, command.label, code), place)


def figures(room: Room, script: str, code: int) -> RunAnswer:
    """The figures of a run for programs, bytes and nanoseconds."""
    run = _run_of(room)
    return RunAnswer(
        script=script,
        exit_code=code,
        budget_bytes=run.budget_bytes,
        min_size_bytes=run.min_size_bytes,
        keep_all_bytes=run.kinds.keep_all_bytes,
        planned_peak_bytes=run.planned_peak_bytes,
        measured_peak_bytes=run.held_bytes,
        over_budget_bytes=run.over_bytes,
        swaps=len(room.plan.swaps) if room.plan else 0,
        recomputes=len(room.plan.recomputes) if room.plan else 0,
        simulated_peak_allocated_bytes=room.simulated.peak_allocated_bytes if room.simulated else None,
        measured_peak_allocated_bytes=run.kinds.measured_peak_bytes or run.held_bytes,
        measured_wait_ns=room.measured.wait_ns if room.measured else None,
        energy=run.measured_energy,
        simulated_energy=run.simulated_energy,
        kinds=tuple(run.kinds),
        steps=tuple(room.steps),
    )


def _run_of(room: Room) -> TrainingRun:
    from elbowroom.run.room import run_of

    return run_of(room)
