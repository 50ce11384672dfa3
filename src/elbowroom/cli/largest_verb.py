"""`elbowroom largest`: the largest batch size, resolution or sequence length with which a script fits a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, final

from elbowroom.capture.script.layout_knobs import is_layout
from elbowroom.capture.script.script_knobs import Knob, Range, find_knob
from elbowroom.cli import choosing, layouts_answer, output, ranks, scripts
from elbowroom.cli.answer_types import LargestAnswer, PlannedValue, ProbedValue
from elbowroom.cli.progress import progress
from elbowroom.errors import UsageError
from elbowroom.step.least_size import least_size
from elbowroom.watch import Watch

if TYPE_CHECKING:
    from elbowroom.answers.largest import Largest
    from elbowroom.answers.slowdown import SlowdownNeed
    from elbowroom.capture.job_rank import JobRank
    from elbowroom.machine import Machine
    from elbowroom.trace import Trace

USAGE = "elbowroom largest (script.py | -m MODULE) --vary NAME=(A..B | A,B,C)... [--gpu NAME] [options] [-- ARGS]"
DESCRIPTION = (
    "Finds the largest value of an argument, environment variable or constant of a training script with which it fits "
    "a GPU, by a few runs on a virtual one, and says what the next value needs. Exit code 0: found; 1: not even the "
    "smallest value fits; 2: there is no answer, as where the value changes nothing. With --within 1.2x, storages "
    "may be swapped and recomputed, as `elbowroom plan` does, as long as the step takes at most 1.2 times what the "
    "same step, with the same value, would take on the same GPU with memory for everything. Both do the same work, so "
    "that is the slowdown of each sample, pixel or token; the answer also has the step time divided by the value. With "
    "--vary ranks=1..64, dp, tp, pp or cp, or with several --vary: a table of layouts of a torchrun script, each as "
    "one of its ranks, with the cheapest one that fits."
)


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    short = "find the largest batch size, resolution or length that fits"
    parser = scripts.add_verb(
        verbs, "largest", short=short, usage=USAGE, description=DESCRIPTION, timeout_s=scripts.SEARCH_TIMEOUT_S
    )
    parser.add_argument(
        "--vary",
        action="append",
        metavar="NAME=A..B",
        help="what to vary; arg:NAME, env:NAME or const:NAME says what it is; several make a table of layouts",
    )
    parser.add_argument("--multiple-of", type=int, default=1, metavar="M", help="look at multiples of M only")
    parser.add_argument("--gpu", metavar="NAME", help="GPU by name (`elbowroom machine --list`)")
    parser.add_argument("--within", metavar="Xx", help="plan, and allow a step to take X times as long, as in 1.2x")
    parser.add_argument("--planner", metavar="NAME", help=f"with --within: who plans (default: {scripts.PLANNER})")
    choosing.add_allow(parser)
    ranks.add(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Search, and say what was found."""
    script = scripts.script_of(arguments, "largest")
    if arguments.vary is None:
        raise UsageError("largest: given no --vary; allowed is one; write for example --vary batch_size=1..4096")
    varied = [Range.of(each) for each in arguments.vary]
    if is_layout(varied):
        return layouts_answer.execute(arguments, script, varied)
    vary, job = varied[0], _job(arguments)
    if vary.values and arguments.multiple_of != 1:
        raise UsageError("--multiple-of: given with a list of values; allowed is it with a range; leave it out")
    machine = scripts.machine_of(arguments.gpu)
    slowdown = _slowdown(arguments)
    knob = find_knob(vary, script.path, script.arguments)
    with progress() as say:
        trials = Trials(script, machine, knob, arguments, Watch(say, arguments.timeout), slowdown, job)
        found = _searched(trials, vary, arguments.multiple_of)
    if found.has_no_effect and knob.guessed:
        raise UsageError(
            f"--vary: {knob.how}, and it has no effect: {trials.the_same(found)}; allowed are arguments, environment "
            "variables and constants of the script; write arg:NAME, env:NAME or const:NAME to say which it is"
        )
    _show(trials, found, as_json=arguments.json)
    return 2 if found.has_no_effect else 0 if found.fits else 1


def _job(arguments: argparse.Namespace) -> JobRank | None:
    """Return the process that is looked at; None if no job of many was asked for.

    Raises:
        UsageError: there is no such process, or there are several.
    """
    jobs = ranks.jobs_of(arguments)
    if len(jobs) > 1:
        raise UsageError(f"--rank: given {len(jobs)} ranks; allowed is one in this search; run it once for each")
    return jobs[0]


def _searched(trials: Trials, vary: Range, multiple_of: int) -> Largest:
    from elbowroom.answers.largest import largest, largest_of

    capacity_bytes = trials.machine.tiers[0].capacity_bytes
    tried = trials.tried
    others = {"same": tried.is_same, "slowdown": tried.slowdown, "watch": trials.watch}
    if vary.values:
        return largest_of(vary.values, tried.needed_bytes, capacity_bytes, **others)
    ends = {"least": vary.least, "most": vary.most, "multiple_of": multiple_of}
    return largest(tried.needed_bytes, capacity_bytes, **ends, **others)


def _slowdown(arguments: argparse.Namespace) -> float | None:
    """Return the factor of --within; None without it.

    Raises:
        UsageError: it is not a factor, or --planner or --allow is given without it.
    """
    from elbowroom.planners import PLANNERS

    if arguments.planner and not arguments.within:
        raise UsageError("--planner: given without --within, and so nothing is planned; add for example --within 1.2x")
    if arguments.allow and not arguments.within:
        raise UsageError("--allow: given without --within, and so nothing is planned; add for example --within 1.2x")
    if arguments.planner and arguments.planner not in PLANNERS:
        raise UsageError(f"--planner: given {arguments.planner!r}; allowed is one of {', '.join(PLANNERS)}")
    if not arguments.within:
        return None
    number = arguments.within.strip().lower().removesuffix("x")
    try:
        slowdown = float(number)
    except ValueError:
        slowdown = 0.0
    if not 1 <= slowdown < float("inf"):
        raise UsageError(
            f"--within: given {arguments.within!r}; allowed is a factor of 1 or more on the step time; write for "
            "example 1.2x"
        )
    return slowdown


@final
class Trials:
    """Estimates of a script by the value of its knob, each made once.

    Attributes:
        captures: number of captures so far.
    """

    def __init__(
        self,
        script: scripts.Script,
        machine: Machine,
        knob: Knob,
        arguments: argparse.Namespace,
        watch: Watch,
        slowdown: float | None = None,
        job: JobRank | None = None,
    ) -> None:
        self.script = script
        self.machine = machine
        self.knob = knob
        self.slowdown = slowdown
        self.watch = watch
        self.captures = 0
        self._arguments = arguments
        self._job = job
        from elbowroom.answers.tried_values import TriedValues
        from elbowroom.planners import means_of, parts_for

        size_bytes = least_size(machine.tiers[0].capacity_bytes)
        parts = parts_for(means_of(choosing.allowed(arguments.allow)), size_bytes)
        self.tried = TriedValues(
            self._captured,
            machine,
            None if slowdown is None else self._plan,
            partial(self._captured, parts=parts) if parts["in_parts"] else None,
        )

    def _plan(self, value: int, trace: Trace) -> SlowdownNeed:
        from elbowroom.answers.slowdown import within_slowdown

        assert self.slowdown is not None, "nothing is planned without one"
        self.watch.say(f"{self._looked_at()}planning for {self.knob.name} = {value}")
        planner = self._arguments.planner or scripts.PLANNER
        allow = choosing.allowed(self._arguments.allow)
        return within_slowdown(trace, self.machine, self.slowdown, planner, self.watch, allow=allow)

    def the_same(self, found: Largest) -> str:
        """Say which values have the same capture, in words."""
        looked = sorted({probe.value for probe in found.probes if probe.value >= (found.same_from or 0)})
        values = ", ".join(map(str, looked[:-1]))
        return f"the captures of {values} and {looked[-1]} are the same"

    def _captured(self, value: int, parts: Mapping[str, Any] | None = None) -> Trace:
        """Capture the script with a value.

        Args:
            value: the value.
            parts: options that show what plans move; None for the script as it is.

        Raises:
            CaptureError: it could not be captured; the message names the value.
            TimeOver: the time is over.
        """
        self.captures += 1
        given, name = self._arguments, f"{self.knob.name} = {value}"
        return scripts.captured_in_time(
            self.script,
            self.machine,
            given,
            self.watch,
            failing=f"with {self.knob.label} = {value}{self._guessed()}",
            what=f"{self._looked_at()}now {name}{', for its plan' if parts else ''}",
            turned=self.knob.turned(self.script.arguments, value),
            job=self._job,
            interconnect=given.interconnect,
            **(parts or {}),
        )

    def _looked_at(self) -> str:
        verdicts = {value: answer.fits for value, answer in self.tried.answers.items() if self.slowdown is None}
        verdicts |= {value: within.fits for value, within in self.tried.planned.items()}
        values = (f"{value} {'fits' if fits else 'does not fit'}" for value, fits in verdicts.items())
        return ", ".join([*values, ""])

    def _guessed(self) -> str:
        return f" ({self.knob.how})" if self.knob.how else ""


def _show(trials: Trials, found: Largest, *, as_json: bool) -> None:
    if as_json:
        output.write_answer(figures(trials, found), output.STDOUT)
        return
    from elbowroom.report.answer import search_rendered

    output.console().print(
        search_rendered(
            trials.script.label,
            trials.knob.label,
            trials.knob.how,
            trials.tried.answers,
            found,
            trials.machine.name,
            trials.tried.planned,
            same="" if found.same_from is None else trials.the_same(found),
        )
    )


def figures(trials: Trials, found: Largest) -> LargestAnswer:
    """The answer for programs."""
    return LargestAnswer(
        script=trials.script.label,
        machine=trials.machine.name,
        kind=trials.knob.kind,
        name=trials.knob.name,
        capacity_bytes=found.capacity_bytes,
        largest=found.fits,
        next=found.too_large,
        failed=found.failed,
        too_slow=found.too_slow,
        fast_from=found.fast_from,
        changes_anything=not found.has_no_effect,
        same_from=found.same_from,
        early=found.early,
        captures=trials.captures,
        within=trials.slowdown,
        probes=tuple(_probed(trials, value) for value, _ in found.probes),
    )


def _probed(trials: Trials, value: int) -> ProbedValue:
    answer, planned = trials.tried.answers[value], trials.tried.planned.get(value)
    return ProbedValue(
        value=value,
        fits=answer.fits,
        sure=answer.sure,
        needed_bytes=answer.needed_bytes,
        peak_allocated_bytes=answer.peak_allocated_bytes,
        peak_reserved_bytes=answer.peak_reserved_bytes,
        retries=answer.retries,
        planned=None if planned is None else _planned(planned, value),
    )


def _planned(planned: SlowdownNeed, value: int) -> PlannedValue:
    return PlannedValue(
        fits=planned.fits,
        needed_bytes=planned.needed_bytes,
        kept_step_ns=planned.kept_step_ns,
        step_ns=planned.step_ns,
        step_ns_per_value=None if planned.step_ns is None or not value else planned.step_ns / value,
        slowdown=planned.slowdown,
    )
