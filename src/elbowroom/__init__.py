"""elbowroom: training that does not fit in memory, made to fit.

    trace = er.capture(setup)                           what the training does
    trace = er.capture_script("train.py", machine="t4") the same of a script, on a GPU that is not here
    line = er.simulate(trace, er.Machine.here())        what it needs
    plan = er.plan(trace, er.Machine.here(), "8GiB")    what to swap so that it fits
    with er.within("8GiB"):                             all of that, and the run
        train()

Note: [Functions before files of the same name]
`capture`, `plan`, `report` and `simulate` are functions here and files of the package too. Importing a file binds its
name on the package once, at its first import; the imports below load each file and then take the function over its
name. So `er.plan` is the function, and the file is reached by `from elbowroom.plan import Plan`.
"""

from __future__ import annotations

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
from elbowroom.machine import Link, Machine, Rate, Tier
from elbowroom.plan import Algorithm, Bound, Plan, Recompute, Swap
from elbowroom.planners import check, plan
from elbowroom.report import report
from elbowroom.run import within
from elbowroom.simulate.simulate import compare, simulate
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace

__all__ = [
    "Algorithm",
    "Bound",
    "CaptureError",
    "DeviceLost",
    "ElbowroomError",
    "FormatError",
    "Infeasible",
    "InvalidPlan",
    "InvalidRecord",
    "Link",
    "Machine",
    "Plan",
    "Rate",
    "Recompute",
    "RecomputeFailed",
    "Swap",
    "Tier",
    "TierError",
    "TierFailed",
    "TierFull",
    "TimeOver",
    "Timeline",
    "Trace",
    "UsageError",
    "capture",
    "capture_script",
    "check",
    "compare",
    "plan",
    "report",
    "simulate",
    "within",
]
