"""elbowroom: training that does not fit in memory, made to fit.

    trace = er.capture(setup)                           what the training does
    trace = er.capture_script("train.py", machine="t4") the same for a script, on a virtual GPU
    found = er.estimate(trace, er.Machine.of("t4"))     does it fit, and what holds the memory
    found = er.largest(setup_of, "batch_size", 1, 512, "t4")   the largest batch that fits
    found = er.layouts("train.py", ["ranks=8..64", "tp=1,2,4"], "h100-sxm")   the cheapest layout of a job that fits
    line = er.simulate(trace, er.Machine.here())        the bytes and the time of a step
    plan = er.plan(trace, er.Machine.here(), "8GiB")    what to swap so that it fits
    with er.within("8GiB"):                             all of that, and the run
        train()

Note: [Functions before files of the same name]
Some names are both functions and files: `capture`, `plan`, `report` and `simulate`. Importing a file binds its
name on the package once, at its first import. The imports below load each file and then bind the function to its
name. So `er.plan` is the function, and the file is reached by `from elbowroom.plan import Plan`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from elbowroom.answers.estimate import Estimate, estimate
from elbowroom.answers.job_layouts import Layouts
from elbowroom.answers.largest import Largest
from elbowroom.capture import capture
from elbowroom.capture.script import capture_script
from elbowroom.errors import (
    CaptureError,
    DeviceLost,
    ElbowroomError,
    FormatError,
    Infeasible,
    InvalidPlan,
    InvalidRecord,
    RecomputeFailed,
    TierError,
    TierFailed,
    TierFull,
    TimeOver,
    UsageError,
)
from elbowroom.frameworks.jax import capture_jax, policy
from elbowroom.machine import Link, Machine, Rate, Tier
from elbowroom.plan import Algorithm, Bound, Plan, Recompute, Swap
from elbowroom.planners import check, plan
from elbowroom.report import report
from elbowroom.run import within
from elbowroom.search import largest, layouts
from elbowroom.simulate.simulate import compare, simulate
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace
from elbowroom.version import installed_version

if TYPE_CHECKING:
    from elbowroom.run.account import StepFigures
    from elbowroom.run.room import Room

__all__ = [
    "Algorithm",
    "Bound",
    "CaptureError",
    "DeviceLost",
    "ElbowroomError",
    "Estimate",
    "FormatError",
    "Infeasible",
    "InvalidPlan",
    "InvalidRecord",
    "Largest",
    "Layouts",
    "Link",
    "Machine",
    "Plan",
    "Rate",
    "Recompute",
    "RecomputeFailed",
    "Room",
    "StepFigures",
    "Swap",
    "Tier",
    "TierError",
    "TierFailed",
    "TierFull",
    "TimeOver",
    "Timeline",
    "Trace",
    "UsageError",
    "__version__",
    "capture",
    "capture_jax",
    "capture_script",
    "check",
    "compare",
    "estimate",
    "largest",
    "layouts",
    "plan",
    "policy",
    "report",
    "simulate",
    "within",
]

__version__ = installed_version()

_NEED_TORCH = {"Room": "elbowroom.run.room", "StepFigures": "elbowroom.run.account"}
"""Classes whose files import torch, which `import elbowroom` does not."""


def __getattr__(name: str) -> object:
    if name in _NEED_TORCH:
        return getattr(import_module(_NEED_TORCH[name]), name)
    raise AttributeError(f"module 'elbowroom' has no attribute {name!r}")
