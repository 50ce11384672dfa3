"""Child: the child process of `capture_script()`; it runs one script on the virtual device and answers through files.

guard.py calls it. FOLDER has machine.json, ORDER is `order.ScriptOrder` as JSON. The child writes files into
the folder: steps (the number done), phase (what takes the time), trace.json if there is a trace, and read.json
if that is kept, answer.json last.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from elbowroom.capture.job_rank import JobRank, OwnGpu
from elbowroom.capture.rank_mail import RankMail
from elbowroom.capture.script import kept_away, landlock, savers, smi, written_modules
from elbowroom.capture.script import opened_files as files
from elbowroom.capture.script import script_errors as faults
from elbowroom.capture.script.constants import compiled
from elbowroom.capture.script.on_cpu import hint
from elbowroom.capture.script.order import COMPILING, WRITING, ScriptOrder
from elbowroom.capture.script.overlay import SYSTEM, Overlay
from elbowroom.capture.script.phases import phase_of
from elbowroom.capture.script.read_files import READ, ReadFiles
from elbowroom.capture.script.said_remarks import heard_by
from elbowroom.engine.ram_guard import RamGuard
from elbowroom.errors import UsageError
from elbowroom.hardware.ram import hard_limits
from elbowroom.machine import Machine

if TYPE_CHECKING:
    from elbowroom.capture.virtual import VirtualDevice

_REPORT_S = 0.2


def main(folder: str, argument: str, over: int) -> None:
    """Carry out an order; `over` is the signal that comes when its time is over."""
    order = ScriptOrder(**json.loads(argument))
    landlock.write_only_in([folder, *SYSTEM, *_shared(order)])
    asked: set[str] = set()
    try:
        problem = _capture(order, Path(folder), asked, over)
    except UsageError as wrong:
        problem = faults.Fault(str(wrong), usage=True)
    answer = {
        "problem": problem.message if problem else "",
        "usage": bool(problem and problem.usage),
        "show_output": bool(problem and problem.show_output),
        "ours": bool(problem and problem.ours),
        "asked": sorted(asked),
    }
    _write(Path(folder) / "answer.json", json.dumps(answer))


def _capture(order: ScriptOrder, folder: Path, asked: set[str], over: int) -> faults.Fault | None:
    """Run the script on the virtual device and write its trace; return the fault if it failed.

    `asked` gets the facts of the GPU that the script read.
    """
    code = _code(order)
    if isinstance(code, faults.Fault):
        return code
    device = _device(order, folder)
    refused: list[str] = []
    read = _around(order, folder, refused)
    problem: BaseException | None = None
    what = {"steps": lambda: str(device.steps_seen), "phase": lambda: phase_of(device, order.script, order.steps)}
    with _reporting(folder, what):
        try:
            with _limited(order, over), heard_by(device.ledger.remark), device:
                _execute(code, order)
                device.started.carry_out()
        except BaseException as raised:  # noqa: BLE001  all errors of the script are explained, not shown
            problem = raised
    asked |= device.ledger.asked
    for each in refused:
        device.ledger.remark("kept_away", each)
    sys.stdout.flush()
    sys.stderr.flush()
    if problem is not None and not faults.is_regular_end(problem):
        if not device.steps_seen and not (device.host_steps and isinstance(problem, faults.TimeIsOver)):
            return _explained(problem, order)
        device.ledger.remark("ended_early", faults.later(problem, order.script, device.steps_seen, order.steps))
    if not device.steps_seen:
        return _no_steps(device, order)
    if order.job and not device.groups.ranks:
        return faults.no_group(order.label, order.job[1])
    _record(device, order, folder)
    if read is not None:
        _write(folder / READ, json.dumps(read.seen()))
    return None


def _around(order: ScriptOrder, folder: Path, refused: list[str]) -> ReadFiles | None:
    """Keep files and network from the script; return the files that it reads, if they are asked for.

    `refused` gets the calls that it was refused.
    """
    own = _own(folder, order)
    read = ReadFiles(own) if order.kept else None
    if read is not None:
        read.start()
    overlay = Overlay(str(folder), _shared(order))
    files.install(overlay, savers.install(overlay))
    written_modules.install(overlay)
    kept_away.CallGuard(own, network=order.network, refused=refused.append).start()
    return read


def _device(order: ScriptOrder, folder: Path) -> VirtualDevice:
    """Make the virtual device, a GPU or RAM, and prepare this process for it."""
    job = JobRank.of(*order.job) if order.job else None
    if job is not None:
        OwnGpu.index = job.local_rank
    from elbowroom.capture.virtual import VirtualDevice

    target = Machine.load(folder / "machine.json")
    if target.compute_capability:
        smi.install(folder, target)
    else:
        RamGuard(hard_limits()).stand(alone=True)  # a training waits: the kernel must have no reason to kill
    mail = RankMail(order.mail, job.rank, rests=order.companion) if job is not None and order.mail else None
    return VirtualDevice(target, steps=order.steps, min_size_bytes=order.min_size_bytes, job=job, mail=mail)


def _record(device: VirtualDevice, order: ScriptOrder, folder: Path) -> None:
    """Write the trace."""
    if order.compiled:
        _write(folder / "phase", COMPILING)
        device.compiled.tell()
    _write(folder / "phase", WRITING)
    device.trace().save(folder / "trace.json")


@contextmanager
def _limited(order: ScriptOrder, over: int) -> Iterator[None]:
    """Have the guard's signal leave the script; it comes once."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        signal.signal(over, signal.SIG_IGN)
        raise faults.TimeIsOver(f"{order.timeout_s:g} s")

    signal.signal(over, leave)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [over])
        yield
    finally:
        signal.signal(over, signal.SIG_IGN)


def _explained(problem: BaseException, order: ScriptOrder) -> faults.Fault:
    if isinstance(problem, faults.TimeIsOver):
        place = faults.where(problem, order.script)
        place = place if place != order.script else "what comes before its first line (importing torch)"
        said = faults.over(0, order.steps, order.timeout_s, place)
        return faults.Fault(f"{order.label}: {said}", show_output=True)
    return faults.explained(problem, order.script)


def _no_steps(device: VirtualDevice, order: ScriptOrder) -> faults.Fault:
    if device.host_steps:
        seen = faults.on_cpu(device.host_steps, device.host_tensors)
        return faults.Fault(f"{order.script}: {seen}; {hint(order.script, order.arguments)}")
    if not device.ledger.peak_bytes and not device.settings.ram:
        return faults.nothing_on_cuda(order.script, hint(order.script, order.arguments))
    return faults.no_steps(order.script)


def _shared(order: ScriptOrder) -> list[str]:
    """Return the folders of downloads, for a script that may use the network, and of the mail of ranks."""
    caches = [os.path.expanduser("~/.cache")] if order.network else []
    return [*caches, *([order.mail] if order.mail else [])]


def _own(folder: Path, order: ScriptOrder) -> tuple[str, ...]:
    """Return the folders in which files may change: by their names, and without symbolic links."""
    named = [str(folder), *SYSTEM, *_shared(order)]
    return tuple(dict.fromkeys([*named, *map(os.path.realpath, named)]))


def _code(order: ScriptOrder) -> types.CodeType | faults.Fault:
    try:
        source = Path(order.script).read_bytes()
        return compiled(_text(source), order.script, order.constants)
    except (SyntaxError, ValueError) as problem:
        if isinstance(problem, UsageError):
            raise
        return faults.explained(problem, order.script)
    except OSError as problem:
        raise UsageError(f"{order.script}: cannot be read: {problem.strerror}; check the path") from None


def _text(source: bytes) -> str:
    """Decode Python source in the encoding that it declares."""
    import io
    import tokenize

    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding)


def _execute(code: types.CodeType, order: ScriptOrder) -> None:
    """Run a script's code as python runs a script, or a module's as python -m runs it."""
    module = types.ModuleType("__main__")
    module.__file__ = order.script
    module.__builtins__ = __builtins__  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["__main__"] = module
    if order.module:
        sys.path.insert(0, os.getcwd())
        sys.argv = [str(Path(order.script).resolve()), *order.arguments]
        _place(module, order.module)
    else:
        sys.path.insert(0, str(Path(order.script).resolve().parent))
        sys.argv = [order.script, *order.arguments]
    setattr(os, "_exit", _leaving(os.getpid(), os._exit))  # noqa: B010  a name that scripts use
    exec(code, module.__dict__)  # the user's own script, which they asked to be run


def _leaving(process: int, leave: Callable[[int], Any]) -> Callable[[int], Any]:
    """Make an `os._exit` that ends the script but not this process, which still has to answer."""

    def left(code: int) -> Any:
        if os.getpid() != process or threading.current_thread() is not threading.main_thread():
            leave(code)
        raise SystemExit(code)

    return left


def _place(module: types.ModuleType, name: str) -> None:
    """Set the module's place, so that its relative imports work; the packages above it are imported."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is not None:
        module.__spec__, module.__package__ = spec, spec.parent


@contextmanager
def _reporting(folder: Path, what: Mapping[str, Callable[[], str]]) -> Iterator[None]:
    """Write the progress to files of these names now and then, for the waiting parent."""
    done = threading.Event()
    said: dict[str, str] = {}

    def report() -> None:
        for name, tell in what.items():
            text = tell()
            if said.get(name) != text:
                said[name] = text
                _write(folder / name, text)

    def repeat() -> None:
        while not done.wait(_REPORT_S):
            report()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        report()


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all, as the parent may be reading."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
