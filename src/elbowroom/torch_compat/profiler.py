"""Private torch symbols of its profiler, which recordings are made with. Checked on 2.11.0 and 2.13.0."""

from __future__ import annotations

import ctypes
import gc
from contextlib import AbstractContextManager
from typing import Any

import torch


def profiler_running() -> bool:
    """Whether a torch profiler is on; only one may be, and no public query exists."""
    return torch.autograd.profiler._is_profiler_enabled


def marker(text: str) -> AbstractContextManager[None]:
    """A named range in the profiler's event stream; `record_function` does the same in ten times the time."""
    from torch._C._profiler import _RecordFunctionFast

    return _RecordFunctionFast(text)


def profiler_events(session: Any) -> list[Any]:
    """Roots of a finished profile's event tree; only these carry the addresses of blocks and arguments."""
    return session.profiler.kineto_results.experimental_event_tree()


def address_of(argument: Any) -> int:
    """Where the bytes of a tensor lie that is an argument of a profiled op; 0 for one without bytes and for no tensor.

    For a tensor without bytes torch hands out None and no reference with it (strong_pointer_type_caster in
    torch/csrc/profiler/python/init.cpp; 2.11.0 and 2.13.0), so that one of all there are is lost each time, and at none
    Python 3.11 ends the process. It is put back here. From Python 3.12 on None has no count, and that does nothing.
    """
    found = getattr(argument, "storage_data_ptr", 0)
    if found is None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
    return found or 0


def let_profile_go(session: Any) -> None:
    """Free what a finished profile holds: weak references to arguments, which keep all that torch.func had wrapped.

    A profile is part of cycles, so that it lives until the garbage is collected.
    """
    session.profiler.kineto_results = None


def user_profile() -> Any:
    """The running profile of torch.autograd.profiler, which torch.profiler makes too; None where none of those runs.

    Torch has no list of them: all that Python knows is looked through.
    """
    profile = torch.autograd.profiler.profile
    found = [each for each in gc.get_objects() if type(each) is profile and each.enabled and each.entered]
    began = [each for each in found if each.profiling_start_time_ns > each.profiling_end_time_ns]
    return began[0] if len(began) == 1 and profiler_running() else None


def put_aside(found: Any) -> None:
    """Stop a running profile. It goes on as `go_on` says, or where the script ends it; what it has seen so far stays.

    Torch keeps the events of all stretches of a profile that accumulates them. The exported trace is the last one's.
    """
    _end_ranges()
    found.acc_events = True
    found.__exit__(None, None, None)
    _become(found, _Aside)


def go_on(found: Any) -> None:
    """Start a profile again that was put aside, unless the script has ended it since."""
    if type(found) is _Aside:
        _end_ranges()
        _become(found, torch.autograd.profiler.profile)
        found._prepare_trace()
        found._start_trace()


class _Aside(torch.autograd.profiler.profile):
    """A profile that is aside. It goes on where the script ends it, so that it ends as others do."""

    def __exit__(self, *of_error: object) -> Any:
        if not profiler_running():
            go_on(self)
            return self.__exit__(*of_error)
        _become(self, torch.autograd.profiler.profile)  # a step is being recorded: the profile ends with what it has
        return False


def prepare_again() -> None:
    """End the warm-up that the schedule of a profile is in, and have it prepared once more when it starts.

    A recording within the warm-up would be empty, and torch ends the process with a profile that was never started.
    """
    planned = [each for each in gc.get_objects() if type(each) is torch.profiler.profile]
    warming = [each.profiler for each in planned if each.current_action is torch.profiler.ProfilerAction.WARMUP]
    for each in warming:
        if type(each) is torch.autograd.profiler.profile:
            each._start_trace()
            each.__exit__(None, None, None)
            _become(each, _Prepared)


class _Prepared(torch.autograd.profiler.profile):
    """A profile that was prepared before a recording and starts after it."""

    def _start_trace(self) -> None:
        _become(self, torch.autograd.profiler.profile)
        self._prepare_trace()
        self._start_trace()


def _become(found: Any, kind: type[torch.autograd.profiler.profile]) -> None:
    found.__class__ = kind


def _end_ranges() -> None:
    """End the named ranges that are open: at its end a range writes into the session in which it began.

    The end of one that has ended already does nothing.
    """
    named = torch.autograd.profiler.record_function
    for each in gc.get_objects():
        if type(each) is named and getattr(each, "record", None) is not None:
            torch.ops.profiler._record_function_exit._RecordFunction(each.record)
