"""Timelines as a Chrome trace: JSON for chrome://tracing and ui.perfetto.dev.

The format is "Trace Event Format" by the Chrome team. One process per timeline, one thread per lane, one counter per
curve of memory, and one for the budget of a plan. Times in it are microseconds.
"""

from __future__ import annotations

import json

from elbowroom.errors import UsageError
from elbowroom.report.subject import Subject
from elbowroom.timeline import LANES, Span, Timeline
from elbowroom.trace import Trace

NS_PER_US = 1000


def trace_json(subject: Subject) -> str:
    """Make the Chrome trace of all timelines of a report.

    Raises:
        UsageError: there is no timeline.
    """
    if not subject.timelines:
        raise UsageError("report: given no timeline; a Chrome trace shows timelines; give a simulated or measured one")
    events: list[dict[str, object]] = []
    for process, (title, timeline) in enumerate(subject.timelines, start=1):
        events += _names(process, title)
        events += [_span(process, span, subject.trace) for span in timeline.spans]
        events += _counters(process, timeline)
        if subject.plan is not None:
            events += [
                _counter(process, "device budget", at, subject.plan.budget_bytes) for at in (0, timeline.step_ns)
            ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":")) + "\n"


def _names(process: int, title: str) -> list[dict[str, object]]:
    named = [{"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": title}}]
    for thread, lane in enumerate(LANES):
        named.append({"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": lane}})
        named.append(
            {"name": "thread_sort_index", "ph": "M", "pid": process, "tid": thread, "args": {"sort_index": thread}}
        )
    return named


def _span(process: int, span: Span, trace: Trace | None) -> dict[str, object]:
    details: dict[str, object] = {}
    if span.op is not None:
        details["op"] = span.op
    if span.op is not None and trace is not None and span.op < len(trace.ops):
        details["module"] = trace.ops[span.op].module
        details["phase"] = trace.ops[span.op].phase
    if span.storage is not None:
        details["storage"] = span.storage
    if span.size_bytes:
        details["size_bytes"] = span.size_bytes
    return {
        "name": span.name,
        "cat": span.kind,
        "ph": "X",
        "pid": process,
        "tid": LANES.index(span.lane),
        "ts": span.start_ns / NS_PER_US,
        "dur": (span.end_ns - span.start_ns) / NS_PER_US,
        "args": details,
    }


def _counters(process: int, timeline: Timeline) -> list[dict[str, object]]:
    return [
        _counter(process, f"{curve.tier} {curve.kind}", at_ns, size_bytes)
        for curve in timeline.curves
        for at_ns, size_bytes in zip(curve.at_ns, curve.size_bytes, strict=True)
    ]


def _counter(process: int, name: str, at_ns: int, size_bytes: int) -> dict[str, object]:
    return {"name": name, "ph": "C", "pid": process, "ts": at_ns / NS_PER_US, "args": {"bytes": size_bytes}}
