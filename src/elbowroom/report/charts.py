"""The data of the HTML page's charts: curves on one time axis, lanes as columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from elbowroom.answers.pareto import Pareto
from elbowroom.report.subject import KEPT, Subject
from elbowroom.timeline import LANES, Curve, Span, Timeline
from elbowroom.trace import Op, Trace

Ints = npt.NDArray[np.int64]

DRAWN = (
    "kept-reserved",
    "kept",
    "measured-reserved",
    "simulated-reserved",
    "measured",
    "simulated",
    "measured-lower",
    "simulated-lower",
    *("first-reserved", "second-reserved", "first-lower", "second-lower", "first", "second"),
)
"""Tones in the order they are drawn: dashed lines over full ones, so that both show if they agree."""

MOST_POINTS = 3000
"""Most points of a curve: more than a screen has columns. Minimum and maximum of each stretch are kept."""


def memory(subject: Subject) -> dict[str, object]:
    """Put curves on one time axis: at_ns, and per series label, tone and bytes (None after the timeline's end)."""
    named = [
        (*_series(title, curve), line, curve)
        for title, line in subject.timelines
        for curve in line.curves
        if curve.tier == "device" or title != KEPT
    ]
    return _on_one_axis(named, subject.plan.budget_bytes if subject.plan else None)


def two_memories(names: Sequence[str], lines: Sequence[Timeline]) -> dict[str, object]:
    """Put the curves of two steps on one time axis, in the form of `memory`."""
    tones = ("first", "second")
    named = [
        (f"{_what(curve)}, {name}", _toned(tone, curve), line, curve)
        for name, tone, line in zip(names, tones, lines, strict=True)
        for curve in line.curves
    ]
    return _on_one_axis(named, None)


def _on_one_axis(named: list[tuple[str, str, Timeline, Curve]], budget_bytes: int | None) -> dict[str, object]:
    named.sort(key=lambda entry: DRAWN.index(entry[1]))
    thinned = [thin(curve) for *_, curve in named]
    ends = [np.array([line.step_ns], np.int64) for _, _, line, _ in named]
    at_ns = np.unique(np.concatenate([np.zeros(1, np.int64), *ends, *(times for times, _ in thinned)]))
    series = [
        {"label": label, "tone": tone, "size_bytes": _on_axis(at_ns, times, values, line.step_ns)}
        for (label, tone, line, _), (times, values) in zip(named, thinned, strict=True)
    ]
    return {"at_ns": at_ns.tolist(), "series": series, "budget_bytes": budget_bytes}


def thin(curve: Curve) -> tuple[Ints, Ints]:
    """Return at most about `MOST_POINTS` times and values of a curve; each stretch keeps its minimum and maximum."""
    times, values = np.array(curve.at_ns, np.int64), np.array(curve.size_bytes, np.int64)
    if len(times) <= MOST_POINTS:
        return times, values
    stretches = np.array_split(np.arange(len(times)), MOST_POINTS // 4)
    keep: set[int] = set()
    for stretch in stretches:
        part = values[stretch]
        keep |= {int(stretch[0]), int(stretch[-1]), int(stretch[part.argmax()]), int(stretch[part.argmin()])}
    chosen = np.array(sorted(keep), np.int64)
    return times[chosen], values[chosen]


def lanes(subject: Subject) -> list[dict[str, object]]:
    """Return per timeline its title, end and lanes; that of keeping everything has one lane only and is left out."""
    shown = [(title, line) for title, line in subject.timelines if title != KEPT]
    return [lane_group(title, line, subject.trace) for title, line in shown or subject.timelines]


def lane_group(title: str, line: Timeline, trace: Trace | None) -> dict[str, object]:
    """Return one timeline of the chart of lanes."""
    return {"title": title, "step_ns": line.step_ns, "lanes": _lanes(line, trace)}


def pareto(curve: Pareto) -> dict[str, object]:
    """Put budgets on one axis: per planner its step times and lower bounds (None for a budget without a point)."""
    budgets = sorted({point.budget_bytes for point in curve.points})
    series: list[dict[str, object]] = []
    for colour, planner in enumerate(curve.planners):
        points = {point.budget_bytes: point for point in curve.of(planner)}
        at = [points.get(budget) for budget in budgets]
        bounds = [point.lower_bound_ns if point else None for point in at]
        times = [point.step_ns if point else None for point in at]
        series.append({"label": planner, "colour": colour, "is_bound": False, "step_ns": times})
        if any(bound is not None for bound in bounds):
            series.append({"label": f"bound of {planner}", "colour": colour, "is_bound": True, "step_ns": bounds})
    return {"budget_bytes": budgets, "series": series, "kept_step_ns": curve.kept_step_ns}


def _series(title: str, curve: Curve) -> tuple[str, str]:
    return f"{_what(curve)}, {title}", _toned("kept" if title == KEPT else title, curve)


def _what(curve: Curve) -> str:
    return curve.kind if curve.tier == "device" else f"on {curve.tier}"


def _toned(tone: str, curve: Curve) -> str:
    if curve.tier != "device":
        return f"{tone}-lower"
    return tone if curve.kind == "allocated" else f"{tone}-reserved"


def _on_axis(at_ns: Ints, times: Ints, values: Ints, end_ns: int) -> list[int | None]:
    index = np.searchsorted(times, at_ns, side="right") - 1
    inside = (index >= 0) & (at_ns <= end_ns)
    found = values[np.maximum(index, 0)].tolist()
    return [value if there else None for value, there in zip(found, inside.tolist(), strict=True)]


def _lanes(line: Timeline, trace: Trace | None) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for lane in LANES:
        spans = [span for span in line.spans if span.lane == lane]
        if spans:
            found.append({"name": lane, **_columns(spans, trace)})
    return found


def _columns(spans: Sequence[Span], trace: Trace | None) -> dict[str, object]:
    """Return spans as columns; texts are numbered, as few of them differ."""
    texts: dict[str, int] = {}
    labels = [texts.setdefault(span.name, len(texts)) for span in spans]
    details = [texts.setdefault(_detail(span, trace), len(texts)) for span in spans]
    return {
        "start_ns": [span.start_ns for span in spans],
        "end_ns": [span.end_ns for span in spans],
        "label": labels,
        "detail": details,
        "tone": [_tone(span, trace) for span in spans],
        "size_bytes": [span.size_bytes for span in spans],
        "storage": [span.storage for span in spans],
        "texts": list(texts),
    }


def _tone(span: Span, trace: Trace | None) -> str:
    if span.kind != "op":
        return span.kind
    op = _op_of(span, trace)
    return op.phase if op else "other"


def _detail(span: Span, trace: Trace | None) -> str:
    op = _op_of(span, trace)
    if op and span.kind == "op":
        return op.module
    if trace is not None and span.storage is not None and span.storage < len(trace.storages):
        what = trace.storages[span.storage]
        return f"{what.category} {what.dtype}".strip()
    return ""


def _op_of(span: Span, trace: Trace | None) -> Op | None:
    if trace is None or span.op is None or span.op >= len(trace.ops):
        return None
    return trace.ops[span.op]
