"""Scripts: what the verbs for a user's script share: its words after "--", GPUs, allocator settings, progress."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elbowroom.allocator.settings import set_in
from elbowroom.capture.script import STEPS, TIMEOUT_S
from elbowroom.capture.script.find_module import module_file
from elbowroom.cli.run_settings import given_or_set
from elbowroom.errors import CaptureError, UsageError
from elbowroom.files.record_files import why_no_file
from elbowroom.frameworks import graph_options
from elbowroom.machine import Machine
from elbowroom.watch import Watch

if TYPE_CHECKING:
    from elbowroom.capture.script.script_knobs import Variation
    from elbowroom.report import RecordNames
    from elbowroom.trace import Trace

PLANNER = "optimal"
"""Default planner: a command that captured for a minute may plan for some seconds."""

AFTER = (
    "The script's own arguments follow after --; options that stand in the script need none. --gpu comes from "
    "ELBOWROOM_GPU or [tool.elbowroom] in pyproject.toml where it is not given, else it is this computer's GPU. "
    "PYTORCH_CUDA_ALLOC_CONF and CUDA_MODULE_LOADING count as in a run."
)
SEARCH_TIMEOUT_S = 3600
"""Time limit of the verbs that search: they capture a script more than once, or plan it."""
RECORD = ".json"
OF_TRACES = ("estimate", "plan")
"""Verbs that also take a trace instead of a script."""
NO_SCRIPTS = (RECORD, ".ipynb", ".sh", ".yaml", ".yml", ".toml", ".txt", ".md")
"""Endings of files that are no Python scripts, and would be run as Python otherwise."""
LOADING_VARIABLE = "CUDA_MODULE_LOADING"
"""Environment variable: EAGER has CUDA load all kernels at once, as it did before 11.7."""


def add_verb(
    verbs: Any, name: str, *, short: str, usage: str, description: str, timeout_s: float = TIMEOUT_S
) -> argparse.ArgumentParser:
    """Add the parser of a verb, with the options that these verbs share.

    Args:
        verbs: the verbs' parsers.
        name: the verb.
        short: its line in the list of verbs.
        usage: how it is called.
        description: what it does.
        timeout_s: default of --timeout in seconds.
    """
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=short, usage=usage, description=description, epilog=AFTER, takes_script_arguments=True
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("script", nargs="?", help="the training script, as it is")
    what.add_argument("-m", dest="module", metavar="NAME", help="a module in its place, run as python -m NAME")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="steps to look at (default: %(default)s)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=timeout_s,
        metavar="S",
        help="seconds it may take (default: %(default)s)",
    )
    parser.add_argument("--network", action="store_true", help="let the script use the network, to download its data")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    graph_options.add_options(parser)
    return parser


def split_at_dashes(words: Sequence[str], verbs: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split words into elbowroom's and, for verbs that have such, those of the script after "--"."""
    given = list(words)
    if not given or given[0] not in verbs or "--" not in given:
        return given, ()
    at = given.index("--")
    return given[:at], tuple(given[at + 1 :])


def machines_of(given: str | None, environment: Mapping[str, str] | None = None) -> list[Machine]:
    """Return the GPUs of --gpu or its setting, with the settings of allocator and CUDA in the environment.

    Raises:
        UsageError: a name is unknown or given twice, or there is no GPU here for the default.
    """
    environment = os.environ if environment is None else environment
    names = [name.strip() for name in (given_or_set("gpu", given, environment) or "here").split(",") if name.strip()]
    settings = set_in(environment)
    loading = "eager" if environment.get(LOADING_VARIABLE, "").upper() == "EAGER" else "lazy"
    machines: list[Machine] = []
    for name in names or ["here"]:
        machine = Machine.of(name, loading=loading)
        if not machine.compute_capability:
            raise UsageError(
                f"--gpu: given {name}, and no NVIDIA GPU is there; allowed are the names that `elbowroom machine "
                "--list` shows; name the GPU the training is for, as in --gpu rtx4090"
            )
        if machine.name in [known.name for known in machines]:
            raise UsageError(f"--gpu: given {machine.name} twice; allowed is each once; leave one out")
        machines.append(replace(machine, allocator=settings))
    return machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The script or module to run.

    Attributes:
        path: its file, or the one that has its options.
        module: its dotted name if it is run as by python -m, else None.
        arguments: its words.
        graph: the ONNX graph that it trains; "" for a script of the user.
    """

    path: str
    module: str | None = None
    arguments: tuple[str, ...] = ()
    graph: str = ""

    @property
    def label(self) -> str:
        """Name of the script in answers."""
        if self.graph:
            return self.graph
        return f"-m {self.module}" if self.module else self.path

    def names(self, *, trace: str | None = None, plan: str | None = None) -> RecordNames:
        """Return what the commands that a report suggests call this script and its files.

        Args:
            trace: file of its trace; None if none was written.
            plan: file of its plan; None if none was written.
        """
        from elbowroom.report import RecordNames

        files = {"trace": trace or (self.path if self.path.endswith(RECORD) else None), "plan": plan}
        known = {name: shlex.quote(path) for name, path in files.items() if path}
        if self.path.endswith(RECORD):
            return RecordNames(**known)
        if self.graph:
            return RecordNames(script=shlex.join(self.arguments), **known)
        return RecordNames.of_script(
            self.module or self.path, self.arguments, is_module=self.module is not None, **known
        )

    def capture(self, *arguments: Any, **options: Any) -> Trace:
        """Capture it with `elbowroom.capture_script`."""
        from elbowroom.capture.script import capture_script

        return capture_script(None if self.module else self.path, *arguments, module=self.module, **options)


def machine_of(given: str | None) -> Machine:
    """Return the one GPU of --gpu, for verbs that take one.

    Raises:
        UsageError: several are given, or as for `machines_of`.
    """
    machines = machines_of(given)
    if len(machines) > 1:
        raise UsageError(f"--gpu: given {len(machines)} GPUs; allowed is one here; run it once for each")
    return machines[0]


def captured(
    script: Script,
    machine: Machine,
    arguments: argparse.Namespace,
    watch: Watch,
    *,
    what: str = "",
    turned: Variation | None = None,
    **options: Any,
) -> Trace:
    """Capture the trace of a script on a virtual machine, with the options of these verbs.

    Args:
        script: the script.
        machine: the machine.
        arguments: words of the command.
        watch: shows progress, and limits the time.
        what: what is captured, in words; the script by default.
        turned: the command with another value of a knob; None for the script as it is.
        options: further ones of `capture_script`.

    Raises:
        CaptureError: it could not be captured.
        TimeOver: no time is left.
    """
    what = what or f"{script.label} on a virtual {machine.name}"
    watch.say(f"{what}: starting Python and importing torch")
    return script.capture(
        script.arguments if turned is None else turned.arguments,
        machine=machine,
        steps=arguments.steps,
        timeout_s=watch.left_s(),
        environment=turned and turned.environment,
        constants=turned and turned.constants,
        on_phase=lambda phase: watch.say(f"{what}: {phase}"),
        network=arguments.network,
        **options,
    )


def captured_in_time(
    script: Script, machine: Machine, arguments: argparse.Namespace, watch: Watch, *, failing: str, **options: Any
) -> Trace:
    """Capture as `captured` does, as one of many captures.

    Args:
        script: the script.
        machine: the machine.
        arguments: words of the command.
        watch: shows progress, and limits the time.
        failing: begins the message of a capture that fails.
        options: as for `captured`.

    Raises:
        CaptureError: it could not be captured.
        TimeOver: the time is over, or cut the capture short.
    """
    try:
        trace = captured(script, machine, arguments, watch, **options)
    except CaptureError as problem:
        if watch.is_over:
            raise watch.over() from problem
        raise CaptureError(f"{failing}: {problem}", ours=problem.ours) from problem
    watch.left_s()  # raises if the limit cut the capture short: that is no answer
    return trace


def script_of(arguments: argparse.Namespace, verb: str) -> Script:
    """Return the script or module that was given.

    Raises:
        UsageError: it does not exist, or none was given.
    """
    path, own = arguments.script, tuple(arguments.script_arguments)
    options = tuple(graph_options.words_of(arguments))
    if options and not (path or "").endswith(graph_options.ENDING):
        raise UsageError(
            f"{options[0]}: given without an ONNX graph; allowed is it with a file that ends in .onnx; write the "
            f"script's own arguments after --, as in -- {' '.join(options)}"
        )
    if arguments.module:
        return Script(path=module_file(arguments.module), module=arguments.module, arguments=own)
    if path is None:
        raise UsageError(
            f"{verb}: given no script; allowed is the path of one, or -m and the name of a module; write for example "
            f"elbowroom {verb} train.py"
        )
    if not Path(path).is_file():
        what = why_no_file(path) or "not there"
        raise UsageError(f"{verb}: given {path!r}, which is {what}; allowed is the path of a script; check it")
    if path.endswith(RECORD) and verb in OF_TRACES:
        return Script(path=path)
    if path.endswith(graph_options.ENDING):
        words = (path, *options, *own)
        options_file = module_file(graph_options.__name__)  # where --vary finds them
        return Script(path=options_file, module=graph_options.MODULE, arguments=words, graph=path)
    if path.endswith(NO_SCRIPTS):
        traces = ", or a trace (.json) that `elbowroom estimate -o` wrote" if verb in OF_TRACES else ""
        raise UsageError(
            f"{verb}: given {path!r}, which is no Python script by its name; allowed is a script (.py), an ONNX "
            f"graph (.onnx){traces}; name "
            "the script that trains, its own arguments after --"
        )
    return Script(path=path, arguments=own)
