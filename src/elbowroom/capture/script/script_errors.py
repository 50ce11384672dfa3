"""Script errors: why a script could not be captured: what was seen and where, what is allowed, what to do next."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from elbowroom.capture.script.kept_away import NO_NETWORK, NO_WRITE, Replaced
from elbowroom.capture.script.missing import advice
from elbowroom.errors import CaptureError, ElbowroomError, UsageError

_SHOWN = 400  # characters of the script's own message
_LINES = 12  # of a traceback, at its beginning and at its end
PACKAGE = str(Path(__file__).parents[2]) + os.sep


class Fault(NamedTuple):
    """Failure of a capture.

    Attributes:
        message: message for the user.
        usage: whether an argument was wrong, rather than the script.
        show_output: whether the last lines of the script's output help.
        ours: whether elbowroom failed, and not the script.
    """

    message: str
    usage: bool = False
    show_output: bool = False
    ours: bool = False


Said = tuple[str, str] | None
"""What was seen, and what is allowed and to do; None to leave it to the next explanation."""


def is_regular_end(problem: BaseException) -> bool:
    """Return whether an exception is the end of a script that succeeded, as by sys.exit()."""
    return isinstance(problem, SystemExit) and problem.code in (None, 0)


NOTHING_ON_CUDA = "nothing was on cuda; allowed is a script that trains on cuda"


def nothing_on_cuda(script: str, next_step: str) -> Fault:
    """Explain a script that made no visible step, and nothing on the GPU."""
    return Fault(f"{script}: it ended after 0 optimizer steps, and {NOTHING_ON_CUDA}; {next_step}", show_output=True)


def no_steps(script: str) -> Fault:
    """Explain a script that ended without a step."""
    return Fault(
        f"{script}: it ended after 0 optimizer steps; allowed is a script that calls step() of a torch.optim.Optimizer "
        "at least once, with parameters on the GPU; check that it trains (and on cuda, not on the CPU) when it is run "
        "with these arguments",
        show_output=True,
    )


def no_group(script: str, ranks: int) -> Fault:
    """Explain a script that trains alone, where it was to be one process of many."""
    return Fault(
        f"{script}: given --ranks {ranks}, and it starts no process group, so each process would train alone; allowed "
        "is a script for torchrun, which calls torch.distributed.init_process_group; add that call or leave out --ranks"
    )


class TimeIsOver(BaseException):
    """The time is over. It leaves a script at any place, and no `except Exception` in it catches it."""


def over(steps_seen: int, wanted: int, timeout_s: float, where: str = "") -> str:
    """Explain that the time limit was reached before there was a step.

    Args:
        steps_seen: steps that were done.
        wanted: steps that were to be recorded.
        timeout_s: the limit.
        where: the place in the script.
    """
    at = f", in {where}" if where else ""
    return (
        f"{steps_seen} of {wanted} steps were done after {timeout_s:g} s, the time limit{at}; allowed is a longer one "
        "(--timeout) or fewer steps (--steps); if it prepares data first, give it a small part of them"
    )


def on_cpu(steps: int, tensors: int) -> str:
    """Explain that the script trained, but not on the GPU."""
    what = f"{steps} optimizer {'step was' if steps == 1 else 'steps were'} made with {tensors} tensors on cpu"
    return f"{what}, and {NOTHING_ON_CUDA}"


def explained(problem: BaseException, script: str) -> Fault:
    """Explain an exception that ended a script before its first step."""
    if isinstance(problem, ElbowroomError) and os.path.abspath(script).startswith(PACKAGE):
        return Fault(str(problem), usage=isinstance(problem, UsageError))
    missing_module = partial(_missing_module, script=script)
    for knows in (_exit, _elsewhere, missing_module, _missing_file, _on_the_gpu, _said_already, _other):
        said = knows(problem)
        if said is not None:
            shown = f"\n{_shown(problem, script)}" if knows in (_other, missing_module) else ""
            ours = knows is _other and of_elbowroom(problem)
            message = f"{where(problem, script)}: {said[0]}; {said[1]}{shown}"
            return Fault(message, show_output=knows in (_exit, _other), ours=ours)
    raise AssertionError("the last one knows everything")


def of_elbowroom(problem: BaseException) -> bool:
    """Return whether elbowroom itself failed: its code raised an error other than a refusal or a lack of memory."""
    if isinstance(problem, ElbowroomError | MemoryError) or type(problem).__name__ == "OutOfMemoryError":
        return False
    frames = traceback.extract_tb(problem.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(PACKAGE)


def _shown(problem: BaseException, script: str) -> str:
    """Format the traceback as python shows it for the script, cut in the middle if it is long."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    lines = "".join(traceback.format_exception(problem.with_traceback(trace or problem.__traceback__))).splitlines()
    if len(lines) > 2 * _LINES:
        lines = [*lines[:_LINES], f"  ... {len(lines) - 2 * _LINES} lines ...", *lines[-_LINES:]]
    return "\n".join(f"    {line if len(line) <= _SHOWN else line[:_SHOWN] + '...'}" for line in lines)


def later(problem: BaseException, script: str, steps_seen: int, wanted: int) -> str:
    """Say what ended a script after some steps: where, by what, and after how many."""
    steps = f"after {steps_seen} of {max(steps_seen, wanted)} steps"
    if isinstance(problem, TimeIsOver):
        return f"{where(problem, script)}: the time limit ({problem}), {steps}"
    if isinstance(problem, SystemExit):
        return f"{where(problem, script)}: sys.exit({_short(_text_of(problem.code))}), {steps}"
    text = _short(_text_of(problem))
    return f"{where(problem, script)}: {type(problem).__name__}{': ' if text else ''}{text}, {steps}"


def where(problem: BaseException, script: str) -> str:
    """Name the place in a script through which an exception came."""
    line = _line_in(problem, script)
    return f"{script}:{line}" if line else script


def _exit(problem: BaseException) -> Said:
    if not isinstance(problem, SystemExit):
        return None
    if problem.code == 2:
        return (
            "the script refused its arguments (it exited with code 2)",
            "allowed is what the script itself takes; write its arguments after --, as in `elbowroom estimate train.py "
            "-- --lr 0.1`",
        )
    code = f"code {problem.code}" if isinstance(problem.code, int) else f"the message {_short(problem.code)}"
    return (
        f"the script exited with {code}",
        "allowed is a script that trains until it is stopped or done; run it with the arguments it needs",
    )


_NO_NETWORK = (NO_NETWORK, "outgoing traffic has been disabled", "OfflineModeIsEnabled", "in offline mode")


def _elsewhere(problem: BaseException) -> Said:
    """Explain an act that an estimate keeps a script from."""
    if isinstance(problem, Replaced):
        return (
            f"it puts another program in its place ({problem}, by os.exec)",
            "allowed is a script that trains in its own process; leave this out where the variable ELBOWROOM_ESTIMATE "
            "is set, or estimate what it starts",
        )
    refused = _first_with(problem, _NO_NETWORK)
    if refused is not None:
        return (
            f"it needs the network, which an estimate does not use ({_short(refused)})",
            "allowed is what is on this computer; run the script once, so that what it downloads is kept here, or let "
            "it use the network with --network",
        )
    refused = _first_with(problem, (NO_WRITE,))
    if refused is not None:
        return (
            f"it writes a file past Python's own calls ({_short(refused)})",
            "allowed are writes by open(), os and the libraries of docs/safety.md, which an estimate keeps from your "
            "files; leave this one out where the variable ELBOWROOM_ESTIMATE is set",
        )
    return None


def _missing_module(problem: BaseException, script: str) -> Said:
    if not isinstance(problem, ImportError):
        return None
    name = problem.name or ""
    return (
        f"it imports {name}, and that failed: {_short(problem)}" if name else f"an import failed: {_short(problem)}",
        f"allowed is what can be imported here; {advice(name, _text_of(problem), script)}",
    )


def _missing_file(problem: BaseException) -> Said:
    if not isinstance(problem, OSError) or problem.filename is None:
        return None
    return (
        f"it needs {str(problem.filename)!r}: {problem.strerror}",
        "allowed is what can be opened from the working directory; run from where the script is usually run, or give "
        "it that file (a small stand-in of the same form will do, as the values do not matter)",
    )


class _OnTheGpu(NamedTuple):
    """A kind of failure of the virtual GPU, recognised by a mark in the exception or its causes.

    Attributes:
        marks: parts of the exceptions' texts.
        seen: what was seen; {operator} and {said} are filled in from the exception.
        next: what is allowed, and what to do.
    """

    marks: tuple[str, ...]
    seen: str
    next: str


_ON_THE_GPU = (
    _OnTheGpu(
        (
            *("DynamicOutputShapeException", "DataDependentOutputException", "GuardOnDataDependentSymNode"),
            *("aten.bincount", "aten.unique_consecutive", "aten.unique_dim", "repeat_interleave a meta tensor"),
        ),
        "{operator} gives a shape or a choice that depends on values on the GPU, and values are not computed",
        "allowed are ops whose shapes follow from shapes; put a bound in its place for the estimate (a mask and "
        "where() for nonzero() or boolean indexing, a fixed number of boxes or tokens)",
    ),
    _OnTheGpu(
        ("no fake impl", "register_fake", "UnsupportedOperatorException", "from the 'Meta' backend"),
        "the operator {operator} has no fake implementation, which says the shapes of its results",
        "allowed are PyTorch's own operators and custom ones with torch.library.register_fake; register one, or use "
        "the library's PyTorch implementation for the estimate",
    ),
    _OnTheGpu(
        (
            *("access data pointer", "doesn't have storage", "Pointer argument", "access the storage of"),
            *("data is not allocated", "must be CUDA", "must be a CUDA tensor", "must be on CUDA"),
        ),
        "a kernel or a library asked for the memory of a tensor on the GPU ({said})",
        "allowed are operators that PyTorch knows; wrap the kernel with torch.library.custom_op and register_fake, or "
        "turn it off for the estimate",
    ),
    _OnTheGpu(
        ("have a CUDA build", "not compiled with CUDA", "dummy base class", "not linked with support for cuda"),
        "it uses a part of CUDA that the virtual GPU does not have ({said})",
        "allowed are tensors, modules, optimizers, streams and events on cuda; leave this call out for the estimate",
    ),
    _OnTheGpu(
        ("expected device cpu but got meta", "expected device meta but got cpu"),
        "it trains tensors on cpu, together with weights there that have no bytes in an estimate ({said})",
        'allowed is a script that trains on cuda; move its model and data to the GPU, as in model.to("cuda")',
    ),
    _OnTheGpu(
        ("have NCCL built in", "init_process_group", "Default process group"),
        "it trains in several processes ({said})",
        "allowed is one process on one GPU; run it without init_process_group for the estimate: what is left is the "
        "share of one process but for the buckets of gradients",
    ),
)


def _on_the_gpu(problem: BaseException) -> Said:
    for kind in _ON_THE_GPU:
        found = _first_with(problem, kind.marks)
        if found is not None:
            return kind.seen.format(operator=_operator(found), said=_short(found)), kind.next
    return None


def _said_already(problem: BaseException) -> Said:
    """Pass on errors of the virtual device, which have the form of these messages already."""
    seen, found, following = str(problem).partition("; ") if isinstance(problem, CaptureError) else ("", "", "")
    return (seen, following) if found else None


def _other(problem: BaseException) -> Said:
    if of_elbowroom(problem):
        said = _short(problem) or "no message"
        return f"elbowroom failed with {type(problem).__name__}: {said}{_deeper(problem)}", "that is not the script's"
    return (
        f"the script failed with {type(problem).__name__}: {_short(problem) or 'no message'}{_deeper(problem)}",
        "allowed is a script that trains; run it as it is to see whether it does (on a CPU if it can); if it does, "
        "please report this, with the lines below",
    )


def _first_with(problem: BaseException, marks: Sequence[str]) -> BaseException | None:
    """Return the first of an exception and those it came from whose text has one of these marks."""
    return next((each for each in _chain(problem) if any(mark in _named(each) for mark in marks)), None)


def _chain(problem: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those it came from."""
    current: BaseException | None = problem
    for _ in range(10):
        if current is None:
            return
        yield current
        current = current.__cause__ or current.__context__


def _named(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {_text_of(problem)}"


def _text_of(what: object) -> str:
    """Return the text of an exception, of which a part may be a tensor that cannot be shown."""
    try:
        return str(what)
    except Exception:  # noqa: BLE001  it may be anything, and the message is about something else
        return f"(a {type(what).__name__} that cannot be shown)"


def _operator(problem: BaseException) -> str:
    """Return the operator that an exception names, if any."""
    operator = getattr(problem, "func", None)
    if operator is not None:
        return str(operator)
    name, given, _ = _short(problem).partition(": given ")
    return name if given else _short(problem)


def _line_in(problem: BaseException, script: str) -> int | None:
    """Return the line of the script that was running."""
    if isinstance(problem, SyntaxError) and problem.filename == script:
        return problem.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == script]
    return lines[-1] if lines else None


def _deeper(problem: BaseException) -> str:
    """Name the place at which it was raised, if that is in a library."""
    frames = traceback.extract_tb(problem.__traceback__)
    return f" (raised in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _short(what: object) -> str:
    text = " ".join(_text_of(what).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
