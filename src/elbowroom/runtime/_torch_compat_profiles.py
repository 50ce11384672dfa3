"""Private torch symbols of its profiler, which recordings are made with. Checked on 2.11.0 and 2.13.0."""

from __future__ import annotations

import ctypes
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
