"""JAX capture: from a step and its arguments to a trace, which is remembered for `policy`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax  # pyright: ignore[reportMissingImports]

from elbowroom.capture.durations.costs import duration_ns
from elbowroom.capture.durations.op_line import OpLine
from elbowroom.errors import CaptureError
from elbowroom.frameworks.jax.flat_step import FlatLine, FlatStep
from elbowroom.frameworks.jax.flat_trace import JaxCapture, traced, with_phases
from elbowroom.frameworks.jax.jaxpr_reader import read_jaxpr
from elbowroom.frameworks.jax.traced_step import traced_step
from elbowroom.machine import Machine
from elbowroom.trace import Trace

MOST_CAPTURES = 16
"""Captures whose names are remembered, the latest ones."""

_captures: OrderedDict[str, JaxCapture] = OrderedDict()


def captured(step: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], machine: Machine) -> Trace:
    """Return the trace of a step: see `elbowroom.capture_jax`."""
    flat = flat_step_of(step, args, kwargs)
    if not flat.lines:
        raise CaptureError(
            "capture_jax: given a step that computes nothing of what it returns; allowed is one that returns what it "
            "updates; return the new parameters"
        )
    durations = [line_ns(flat, line, machine) for line in flat.lines]
    found = traced(flat, durations, "cuda:0", f"jax {jax.__version__}")
    _captures[found.trace.id] = found
    while len(_captures) > MOST_CAPTURES:
        _captures.popitem(last=False)
    return found.trace


def flat_step_of(step: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> FlatStep:
    """Return the lines of a step, in the order in which they are counted."""
    found = traced_step(step, args, kwargs)
    return with_phases(read_jaxpr(found.jaxpr, found.pieces, found.inputs))


def capture_of(trace_id: str) -> JaxCapture | None:
    """Return the capture of a trace, if it is remembered."""
    return _captures.get(trace_id)


def line_ns(flat: FlatStep, line: FlatLine, machine: Machine) -> int:
    """Return the time of a line on a machine. Products of float32 are computed in TF32, as JAX does by default."""
    dtype = next((flat.values[value].dtype for value in line.reads), "")
    if line.flops and dtype == "float32" and machine.compute_capability >= 80:
        dtype = "tf32"
    op = OpLine(
        name=line.name,
        module=line.module,
        phase=line.phase,
        reads=line.reads,
        writes=line.makes,
        dtype=dtype,
        moved_bytes=line.moved_bytes,
    )
    return duration_ns(op, line.flops, machine)
