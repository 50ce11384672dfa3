"""Private torch symbols of its profiler, which makes recordings. Checked on 2.11.0 and 2.13.0."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from typing import Any

import torch

from elbowroom.torch_compat import live_objects


def profiler_running() -> bool:
    """Tell whether a torch profiler is on; only one may be, and no public query exists."""
    return torch.autograd.profiler._is_profiler_enabled


def marker(text: str) -> AbstractContextManager[None]:
    """Return a named range in the profiler's event stream; `record_function` does the same in ten times the time."""
    from torch._C._profiler import _RecordFunctionFast

    return _RecordFunctionFast(text)


def profiler_events(session: Any) -> list[Any]:
    """Return the roots of a finished profile's event tree; only these have the addresses of blocks and arguments."""
    return session.profiler.kineto_results.experimental_event_tree()


def address_of(argument: Any) -> int:
    """Return the address of a tensor argument's bytes in a profiled op; 0 without bytes, or if it is no tensor.

    For a tensor without bytes torch returns None without a reference to it (strong_pointer_type_caster in
    torch/csrc/profiler/python/init.cpp; 2.11.0 and 2.13.0). So None loses a reference each time. At 0 references,
    Python 3.11 ends the process. This function puts the reference back. From Python 3.12 on None has no count, and that
    does nothing.
    """
    found = getattr(argument, "storage_data_ptr", 0)
    if found is None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))
    return found or 0


def let_profile_go(session: Any) -> None:
    """Free what a finished profile holds: weak references to arguments, which keep alive what torch.func wrapped.

    A profile is part of reference cycles, so it lives until the next garbage collection.
    """
    session.profiler.kineto_results = None


def drop_profile(session: Any) -> None:
    """End the running profile without a look at its events. To read them takes 110 KB for each node of a graph.

    Torch's legacy call takes the state of any profiler off its thread, frees it, and reads nothing if it is asked not
    to. That leaves a session of Kineto, which the next profile cancels: an empty one. Checked on builds for the CPU
    of 2.13; others end the profile as usual, as no hard limit of the process is near there.
    """
    release = tuple(int(part) for part in str(torch.__version__).partition("+")[0].split(".")[:2])
    if torch.version.cuda is not None or release < (2, 13):
        session.__exit__(None, None, None)
        return
    calls: Any = vars(torch._C)["_autograd"]  # its stub lacks the options
    calls._disable_profiler_legacy(calls._ProfilerDisableOptions(True, False))
    torch.autograd.profiler._run_on_profiler_stop()
    session.profiler.enabled = False
    with torch.autograd.profiler.profile(use_cpu=True):
        pass


def user_profile() -> Any:
    """Return the running profile of torch.autograd.profiler, which torch.profiler makes too; None if there is none.

    Torch has no list of them, so all objects of the garbage collector are searched.
    """
    profile = torch.autograd.profiler.profile
    found = [each for each in live_objects.of_types([profile]) if each.enabled and each.entered]
    began = [each for each in found if each.profiling_start_time_ns > each.profiling_end_time_ns]
    return began[0] if len(began) == 1 and profiler_running() else None


def put_aside(found: Any) -> None:
    """Stop a running profile until `go_on`, or until the script ends it. Its events so far stay.

    A profile that accumulates events keeps those of all its stretches. The exported trace has the last stretch alone.
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
    """Profile that is put aside. If the script ends it, it goes on first, so that it ends as others do."""

    def __exit__(self, *of_error: object) -> Any:
        if not profiler_running():
            go_on(self)
            return self.__exit__(*of_error)
        _become(self, torch.autograd.profiler.profile)  # a step is being recorded: end with the events so far
        return False


def prepare_again() -> None:
    """End the warm-up of a profile's schedule, and have it prepared once more when the profile starts.

    A recording within the warm-up would be empty. With a profile that was never started, torch ends the process.
    """
    planned = live_objects.of_types([torch.profiler.profile])
    warming = [each.profiler for each in planned if each.current_action is torch.profiler.ProfilerAction.WARMUP]
    for each in warming:
        if type(each) is torch.autograd.profiler.profile:
            each._start_trace()
            each.__exit__(None, None, None)
            _become(each, _Prepared)


class _Prepared(torch.autograd.profiler.profile):
    """Profile that was prepared before a recording and starts after it."""

    def _start_trace(self) -> None:
        _become(self, torch.autograd.profiler.profile)
        self._prepare_trace()
        self._start_trace()


def _become(found: Any, kind: type[torch.autograd.profiler.profile]) -> None:
    found.__class__ = kind


def _end_ranges() -> None:
    """End the open named ranges, as a range writes at its end into the session in which it began.

    Ending a range twice does nothing.
    """
    named = torch.autograd.profiler.record_function
    for each in live_objects.of_types([named]):
        if getattr(each, "record", None) is not None:
            torch.ops.profiler._record_function_exit._RecordFunction(each.record)
