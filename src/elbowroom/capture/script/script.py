"""Script: `capture_script()` runs an unchanged training script on the virtual device, in a child with a time limit.

The child answers through files in a temporary directory: the trace, or the fault. Output, crashes and processes of the
script stay in the child. A guard (guard.py) ends all of its processes when it ends, or when this process does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

from elbowroom.capture.job_rank import JobRank
from elbowroom.capture.script import guard, kept_captures, script_process
from elbowroom.capture.script.companions import Companions, with_mail
from elbowroom.capture.script.find_module import module_file
from elbowroom.capture.script.order import COMPILING, TIMEOUT_S, WRITING, ScriptOrder
from elbowroom.capture.script.read_files import READ
from elbowroom.capture.script.script_errors import over
from elbowroom.errors import CaptureError, FormatError, UsageError
from elbowroom.hardware.interconnects import Interconnect
from elbowroom.machine import Machine
from elbowroom.step.exchange_times import with_exchange_times
from elbowroom.step.handed_gradients import without_handed
from elbowroom.step.least_size import LEAST_BYTES
from elbowroom.step.parameter_uses import with_uses
from elbowroom.trace import Trace
from elbowroom.units import parse_bytes

STEPS = 3

GRACE_S = 10.0
"""Seconds in which a script must be left when its time is over; writing its trace may take longer."""

_POLL_S = 0.1
_SAID_LINES = 12


class Listeners(TypedDict, total=False):
    """Functions to call while a script runs.

    Attributes:
        on_step: called with the number of steps done so far, whenever it grows.
        on_asked: called at the end with the values of the GPU that the script read other than `Facts`: "name",
            "memory".
        on_phase: called with the present work, such as "importing torch", whenever that changes.
        on_wait: called ten times a second while the script runs; what it raises ends the capture.
    """

    on_step: Callable[[int], None]
    on_asked: Callable[[frozenset[str]], None]
    on_phase: Callable[[str], None]
    on_wait: Callable[[], None]


class ChildProgress(NamedTuple):
    """Functions that get the progress of a child.

    Attributes:
        step: called with the number of steps done.
        phase: called with the present work.
        asked: called with the values of the GPU that the script read other than `Facts`.
        wait: called ten times a second.
    """

    step: Callable[[int], None]
    phase: Callable[[str], None]
    asked: Callable[[frozenset[str]], None]
    wait: Callable[[], None]

    @classmethod
    def of(cls, listeners: Listeners) -> ChildProgress:
        """Make it of listeners; missing ones do nothing."""
        return cls(
            listeners.get("on_step", _silent),
            listeners.get("on_phase", _silent),
            listeners.get("on_asked", _silent),
            listeners.get("on_wait", lambda: None),
        )


def _silent(_: object) -> None:
    pass


def capture_script(
    path: str | os.PathLike[str] | None = None,
    argv: Sequence[str] = (),
    *,
    machine: str | Machine,
    module: str | None = None,
    steps: int = STEPS,
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
    constants: Mapping[str, int | float] | None = None,
    in_parts: bool = False,
    parameters: bool = False,
    min_size: int | str = LEAST_BYTES,
    network: bool = False,
    compiled: bool = False,
    job: JobRank | None = None,
    interconnect: str | None = None,
    kept: bool = False,
    **listeners: Unpack[Listeners],
) -> Trace:
    """Run a training script on a virtual GPU for a few optimizer steps; return the trace of all that it does.

    Args:
        path: the script, which is run like `python path`, from the current working directory.
        argv: its arguments.
        machine: the GPU that it finds: a name of the GPU database, or a Machine.
        module: instead of a path, a dotted name, which is run like `python -m module`.
        steps: optimizer steps to record.
        timeout_s: seconds after which the script is ended; the trace is then of the steps that were done.
        environment: variables that are set for the script, in addition to those of this process.
        constants: numbers that replace module-level ones of the script, by name.
        in_parts: carry out optimizers' steps in parts, as for `capture`.
        parameters: note the uses of parameters, as for `capture`.
        min_size: with these two, smaller states and parameters stay; bytes, or text such as "4MiB".
        network: let the script use the network, as to download data; it is refused otherwise (docs/safety.md).
        compiled: add a remark on what torch.compile saves for backward, which takes up to 20 seconds more.
        interconnect: how the ranks of a job reach each other, such as "nvlink-4,8xndr" (docs/ranks.md); None for what
            is usual with the GPU.
        job: the process of many that it is, as `JobRank.of(0, 1024)`, with the environment that torchrun gives it.
        kept: take the trace of an earlier capture if nothing that the script read has changed, or keep this one.
        listeners: on_step, on_asked, on_phase, on_wait: see `Listeners` in capture/script/script.py.

    Raises:
        UsageError: there is no such script, GPU or constant.
        CaptureError: the script did no step in time; the message says why.
    """
    least = parse_bytes(min_size) if in_parts else None
    order = ScriptOrder(
        script=_script_file(path, module),
        arguments=tuple(argv),
        steps=_checked_steps(steps),
        constants=dict(constants or {}),
        timeout_s=timeout_s,
        module=module or "",
        min_size_bytes=least,
        network=network,
        compiled=compiled,
        job=() if job is None else (job.rank, job.ranks, job.local_ranks),
        kept=kept,
    )
    target = _gpu(machine)
    wires = Interconnect.of_gpu(target.name, target.compute_capability, interconnect)
    variables = {**({} if job is None else job.environment()), **(environment or {})}
    found = _captured(order, target, variables, ChildProgress.of(listeners))
    timed = with_exchange_times(found, wires)
    return with_uses(timed, parse_bytes(min_size)) if parameters else without_handed(timed)


def capture_in_ram(
    path: str | None,
    argv: Sequence[str],
    *,
    machine: Machine,
    module: str | None,
    steps: int,
    min_size: int,
    kept: bool = False,
) -> Trace:
    """Run a training script without numbers as it would train on the CPU: see `capture_script`.

    Args:
        path: the script.
        argv: its arguments.
        machine: this computer, with RAM as the device.
        module: instead of a path, a dotted name.
        steps: optimizer steps to record.
        min_size: smaller optimizer states stay.
        kept: as for `capture_script`.
    """
    order = ScriptOrder(
        script=_script_file(path, module),
        arguments=tuple(argv),
        steps=steps,
        constants={},
        timeout_s=TIMEOUT_S,
        module=module or "",
        min_size_bytes=min_size,
        kept=kept,
    )
    return without_handed(_captured(order, machine, {}, ChildProgress.of({})))


def _captured(
    order: ScriptOrder,
    target: Machine,
    environment: Mapping[str, str],
    progress: ChildProgress,
) -> Trace:
    """Return a trace that is kept, or that of a child in a folder of its own."""
    variables, since_ns = {**os.environ, **environment}, time.time_ns()
    if order.kept and (found := kept_captures.find(order, target, variables)) is not None:
        return found
    with tempfile.TemporaryDirectory(prefix="elbowroom-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        target.save(folder / "machine.json")
        (folder / "tmp").mkdir()
        code = _run(with_mail(order, folder), folder, environment, progress)
        found = _answer(order, folder, code, progress.asked)
        read = json.loads(_text(folder / READ) or "null")
    in_time = time.time_ns() - since_ns < order.timeout_s * 10**9  # else it may have fewer steps than were asked for
    if read is not None and in_time:
        kept_captures.keep(order, target, variables, found, [tuple(each) for each in read], since_ns)
    return found


def _script_file(path: str | os.PathLike[str] | None, module: str | None) -> str:
    """Return the file of the script or module. Raises UsageError if there is none."""
    if (path is None) == (module is None):
        raise UsageError("capture: given a path and a module, or neither; allowed is one of them; leave the other out")
    script = os.fspath(path) if path is not None else module_file(module or "")
    if not Path(script).is_file():
        raise UsageError(f"capture: given the script {script!r}, which is not there; allowed is the path of a file")
    return script


def _checked_steps(steps: int) -> int:
    if type(steps) is not int or steps < 1:
        raise UsageError(f"capture: given steps={steps!r}; allowed is an int of at least 1; 3 are usually enough")
    return steps


def _gpu(machine: str | Machine) -> Machine:
    target = machine if isinstance(machine, Machine) else Machine.of(machine)
    if not target.compute_capability:
        raise UsageError(
            f"capture: given the machine {target.name!r}, which has no NVIDIA GPU; allowed are the names that "
            "`elbowroom machine --list` shows; name the GPU the training is for"
        )
    return target


def _run(order: ScriptOrder, folder: Path, environment: Mapping[str, str], progress: ChildProgress) -> int:
    """Run the child to its end; return its exit code."""
    with (folder / "output").open("wb") as output:
        child = script_process.start(order, folder, environment, output)
        companions = Companions(order, folder, environment)
        try:
            _wait(child, order, folder, progress, companions)
        finally:
            companions.end()
            script_process.end(child)
    return int(_text(folder / "code") or -signal.SIGKILL)


def _wait(
    child: subprocess.Popen[bytes],
    order: ScriptOrder,
    folder: Path,
    progress: ChildProgress,
    companions: Companions,
) -> None:
    until, seen, phase, asked = time.monotonic() + order.timeout_s, 0, "", False
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_S)
            return
        progress.wait()
        companions.look()
        now = _steps_seen(folder)
        if now > seen:
            seen = now
            progress.step(seen)
        doing = _text(folder / "phase")
        if doing and doing != phase:
            phase = doing
            progress.phase(phase)
        if time.monotonic() < until or (asked and phase in (WRITING, COMPILING)):
            continue
        if asked:
            raise CaptureError(f"{order.label}: {over(seen, order.steps, order.timeout_s)}{_said(folder)}")
        asked, until = True, time.monotonic() + GRACE_S
        _ask_to_end(child)


def _ask_to_end(child: subprocess.Popen[bytes]) -> None:
    """Ask the script's process to leave the script, and to answer with the steps it has."""
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.write(guard.END)
        child.stdin.flush()


def _answer(order: ScriptOrder, folder: Path, code: int, on_asked: Callable[[frozenset[str]], None]) -> Trace:
    try:
        answer = json.loads((folder / "answer.json").read_text("utf-8"))
    except (OSError, ValueError):
        raise CaptureError(f"{order.label}: {_crash(code)}{_said(folder)}") from None
    if answer["usage"]:
        raise UsageError(answer["problem"])
    if answer["problem"]:
        raise CaptureError(answer["problem"] + (_said(folder) if answer["show_output"] else ""), ours=answer["ours"])
    on_asked(frozenset(answer["asked"]))
    try:
        return Trace.load(folder / "trace.json")
    except FormatError as problem:
        raise CaptureError(f"{order.label}: its trace could not be used: {problem}") from problem


def _crash(code: int) -> str:
    """Explain an end without an answer."""
    if code >= 0:
        return (
            f"its process ended with exit code {code} and without a word to elbowroom; allowed is a script that ends "
            "by itself; look for what ends its process, such as os._exit in a thread"
        )
    name = {each.value: each.name for each in signal.Signals}.get(-code, f"signal {-code}")
    if name == "SIGKILL":
        return (
            "its process was killed (SIGKILL), as a computer does that runs out of memory; allowed is what fits into "
            "the RAM of this computer: data are real here even though the model is not; load fewer of them"
        )
    return (
        f"its process crashed ({name}); allowed are scripts whose work on the GPU goes through PyTorch; look at its "
        "last lines for the call that crashed, and leave out extensions that launch kernels themselves"
    )


def _steps_seen(folder: Path) -> int:
    return int(_text(folder / "steps") or 0)


def _text(path: Path) -> str:
    """Return the text of a file; "" if it does not exist."""
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""


def _said(folder: Path) -> str:
    """Return the last lines that the script wrote, as the end of a message."""
    try:
        with (folder / "output").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()[-_SAID_LINES:]
    except OSError:
        return ""
    shown = "\n".join(f"    {line}" for line in lines if line.strip())
    return f"\nIts last lines were:\n{shown}" if shown else ""
