"""`elbowroom largest`: the largest batch size, resolution or sequence length with which a script fits a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from elbowroom.cli import output, scripts
from elbowroom.cli.knobs import Knob, Range, find_knob
from elbowroom.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from elbowroom.estimate import Estimate
    from elbowroom.largest import Largest
    from elbowroom.machine import Machine

USAGE = "elbowroom largest script.py --vary NAME=A..B [--gpu NAME] [options] [-- ARGS]"
DESCRIPTION = (
    "Finds the largest value of an argument, environment variable or constant of a training script with which it fits "
    "a GPU, by a few runs on a virtual one, and says what the next value needs. Exit code 0: found; 1: not even the "
    "smallest value fits; 2: that could not be told."
)


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    short = "find the largest batch size, resolution or length that fits"
    parser = scripts.add_verb(verbs, "largest", short=short, usage=USAGE, description=DESCRIPTION)
    parser.add_argument(
        "--vary",
        metavar="NAME=A..B",
        required=True,
        help="what to vary; arg:NAME, env:NAME or const:NAME says what it is",
    )
    parser.add_argument("--multiple-of", type=int, default=1, metavar="M", help="look at multiples of M only")
    parser.add_argument("--gpu", metavar="NAME", help="GPU by name (`elbowroom machine --list`)")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Search, and say what was found."""
    from elbowroom.largest import largest

    script = scripts.script_of(arguments.script, "largest")
    vary = Range.of(arguments.vary)
    machines = scripts.machines_of(arguments.gpu)
    if len(machines) > 1:
        raise UsageError(f"--gpu: given {len(machines)} GPUs; allowed is one here; run it once for each")
    knob = find_knob(vary, script, arguments.script_arguments)
    with scripts.progress() as say:
        trials = Trials(script, machines[0], knob, arguments, say)
        found = largest(
            trials.needed_bytes,
            machines[0].tiers[0].capacity_bytes,
            least=vary.least,
            most=vary.most,
            multiple_of=arguments.multiple_of,
        )
    if found.is_flat and knob.guessed:
        raise UsageError(
            f"--vary: {knob.how}, and no two values differ in what they need; allowed are arguments, environment "
            "variables and constants of the script; write arg:NAME, env:NAME or const:NAME to say which it is"
        )
    _show(trials, found, as_json=arguments.json)
    return 0 if found.fits else 1


@final
class Trials:
    """Estimates of a script by the value of its knob, each made once."""

    def __init__(
        self, script: str, machine: Machine, knob: Knob, arguments: argparse.Namespace, say: Callable[[str], None]
    ) -> None:
        self.script = script
        self.machine = machine
        self.knob = knob
        self.answers: dict[int, Estimate] = {}
        self._arguments = arguments
        self._say = say

    def needed_bytes(self, value: int) -> int:
        """What the script needs with a value.

        Raises:
            CaptureError: it could not be captured; the message names the value.
        """
        from elbowroom.capture.script import capture_script
        from elbowroom.estimate import estimate

        given = self._arguments
        self._say(f"{self._looked_at()}now {self.knob.name} = {value}")
        turned = self.knob.turned(given.script_arguments, value)
        try:
            trace = capture_script(
                self.script,
                turned.arguments,
                machine=self.machine,
                steps=given.steps,
                timeout_s=given.timeout,
                environment=turned.environment,
                constants=turned.constants,
            )
        except CaptureError as problem:
            raise CaptureError(f"with {self.knob.label} = {value}{self._guessed()}: {problem}") from problem
        self.answers[value] = estimate(trace, self.machine)
        return self.answers[value].needed_bytes

    def _looked_at(self) -> str:
        values = (f"{value} {'fits' if answer.fits else 'does not fit'}" for value, answer in self.answers.items())
        return ", ".join([*values, ""])

    def _guessed(self) -> str:
        return f" ({self.knob.how})" if self.knob.how else ""


def _show(trials: Trials, found: Largest, *, as_json: bool) -> None:
    if as_json:
        print(output.as_json(figures(trials, found)))
        return
    from elbowroom.report.answer import search_rendered

    output.console().print(
        search_rendered(trials.script, trials.knob.label, trials.knob.how, trials.answers, found, trials.machine.name)
    )


def figures(trials: Trials, found: Largest) -> dict[str, object]:
    """The answer for programs."""
    return {
        "script": trials.script,
        "machine": trials.machine.name,
        "kind": trials.knob.kind,
        "name": trials.knob.name,
        "capacity_bytes": found.capacity_bytes,
        "largest": None if found.fits is None else found.fits._asdict(),
        "next": None if found.too_large is None else found.too_large._asdict(),
        "changes_anything": not found.is_flat,
        "captures": len(found.probes),
        "probes": [_probe(trials.answers[value]) | {"value": value} for value, _ in found.probes],
    }


def _probe(answer: Estimate) -> dict[str, object]:
    return {
        "fits": answer.fits,
        "sure": answer.sure,
        "needed_bytes": answer.needed_bytes,
        "peak_allocated_bytes": answer.peak_allocated_bytes,
        "peak_reserved_bytes": answer.peak_reserved_bytes,
        "retries": answer.retries,
    }
