"""Run comparison: two runs side by side, from what `elbowroom run --json` wrote of each: figures, and step times."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from elbowroom.errors import FormatError, UsageError
from elbowroom.report import drawings
from elbowroom.report.compare_page import TONES
from elbowroom.report.comparison import RUN_SCHEMA, changed
from elbowroom.report.drawings import Curve2d, Tone
from elbowroom.report.html import whole
from elbowroom.report.markup import section, table
from elbowroom.report.screen import plain_table
from elbowroom.units import format_bytes, format_joules, format_ns

RunUnit = Literal["bytes", "ns", "millijoules", "count"]
OF_RUN = ("budget_bytes", "keep_all_bytes", "planned_peak_bytes", "measured_peak_bytes", "over_budget_bytes")
OF_STEPS = ("swapped_out_bytes", "swapped_back_bytes", "recomputed_bytes")
NAMES = {
    "budget_bytes": "budget",
    "keep_all_bytes": "everything kept",
    "planned_peak_bytes": "planned peak",
    "measured_peak_bytes": "measured peak",
    "over_budget_bytes": "beyond the budget",
    "swapped_out_bytes": "swapped out, a step",
    "swapped_back_bytes": "swapped back, a step",
    "recomputed_bytes": "recomputed, a step",
}
"""What figures are called, by their name in a run's answer."""
SHOW = {"bytes": format_bytes, "ns": format_ns, "millijoules": format_joules, "count": str}
DRAWN = 200
"""Most points of a line."""
SIDES: tuple[Tone, Tone] = ("first", "second")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigure:
    """One figure of two runs, in its unit.

    Attributes:
        name: what it is.
        unit: its unit: "bytes", "ns", "millijoules" or "count".
        first: of the first run; None if that has no such figure.
        second: of the second one; None if that has no such figure.
    """

    name: str
    unit: RunUnit
    first: int | None
    second: int | None

    @property
    def cells(self) -> tuple[str, str, str]:
        """Both values and the second less the first, as text."""
        show = SHOW[self.unit]
        texts = ["" if value is None else show(value) for value in (self.first, self.second)]
        both = self.first is not None and self.second is not None
        return texts[0], texts[1], changed(self.first or 0, self.second or 0, show) if both else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPair:
    """Two runs.

    Attributes:
        names: their files.
        figures: what both measured; times and moved bytes of a step are medians over the steps.
        step_ns: times of the steps of each.
    """

    names: tuple[str, str]
    figures: tuple[RunFigure, ...]
    step_ns: tuple[tuple[int, ...], tuple[int, ...]]

    def of(self, name: str) -> tuple[int, int]:
        """Return both values of a figure; 0 for one that is not there."""
        found = next(figure for figure in self.figures if figure.name == name)
        return found.first or 0, found.second or 0


def runs_of(paths: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read what `elbowroom run --json` wrote, by the name of each file.

    Raises:
        UsageError: one file twice.
        FormatError: a file cannot be read, or is no figures of a run.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        if path in found:
            raise UsageError(f"report: given {path} twice; allowed are two runs to compare; name the other one")
        try:
            content = json.loads(Path(path).read_bytes())
        except OSError as problem:
            raise FormatError(f"{path}: cannot be read: {problem.strerror}; check the path") from problem
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or content.get("schema") != RUN_SCHEMA:
            raise FormatError(
                f"{path}: no figures of a run; allowed is what `elbowroom run --json` writes; run it again"
            )
        found[path] = content
    return found


def run_pair(answers: Mapping[str, Mapping[str, Any]]) -> RunPair:
    """Sort what two runs wrote into figures.

    Args:
        answers: what `elbowroom run --json` wrote, by the name of its file; two of them.

    Raises:
        FormatError: a file is of another version, or has no steps.
    """
    (one, first), (other, second) = answers.items()
    sides = [_figures(name, answer) for name, answer in ((one, first), (other, second))]
    figures = [
        RunFigure(name=name, unit=unit, first=value, second=sides[1][name][1])
        for name, (unit, value) in sides[0].items()
    ]
    times = [tuple(int(step["step_ns"]) for step in answer["steps"]) for answer in (first, second)]
    shown = [figure for figure in figures if (figure.first, figure.second) not in ((None, None), (0, 0))]
    return RunPair(names=_named(one, other), figures=tuple(shown), step_ns=(times[0], times[1]))


def _figures(name: str, answer: Mapping[str, Any]) -> dict[str, tuple[RunUnit, int | None]]:
    try:
        steps = answer["steps"]
        found: dict[str, tuple[RunUnit, int | None]] = {
            "step time": ("ns", _median(steps, "step_ns")),
            "stall": ("ns", _median(steps, "stall_ns")),
            "measured peak": ("bytes", int(answer["measured_peak_bytes"])),
        }
        found |= {NAMES[each]: ("bytes", int(answer[each])) for each in OF_RUN}
        found |= {NAMES[each]: ("bytes", _median(steps, each)) for each in OF_STEPS}
        energy = answer["energy"]
        found["energy of a step, measured"] = (
            "millijoules",
            None if energy is None else int(energy["step_millijoules"]),
        )
        found["steps"] = ("count", len(steps))
        found["saved tensors that a plan did not expect"] = ("count", sum(int(step["mismatches"]) for step in steps))
    except (KeyError, TypeError, ValueError):
        raise FormatError(
            f"{name}: no figures of a run with steps in it; allowed is what `elbowroom run --json` writes; run it again"
        ) from None
    return found


def _median(steps: Sequence[Mapping[str, Any]], name: str) -> int:
    return round(median(int(step[name]) for step in steps))


def _named(one: str, other: str) -> tuple[str, str]:
    """Name two runs by their files; by their paths if the names are the same."""
    names = [os.path.basename(path).removesuffix(".json") for path in (one, other)]
    return (one, other) if names[0] == names[1] else (names[0], names[1])


def run_sentences(pair: RunPair) -> tuple[str, ...]:
    """Say which run held less, and which was faster."""
    (first, second), held, times = pair.names, pair.of("measured peak"), pair.of("step time")
    less = "less" if held[1] < held[0] else "more"
    memory = (
        f"Both held {format_bytes(held[0])} at most, measured."
        if held[0] == held[1]
        else f"{second} held {format_bytes(abs(held[1] - held[0]))} {less} than {first}: "
        f"{format_bytes(held[1])} against {format_bytes(held[0])}, measured."
    )
    each = f"{format_ns(times[1])} against {format_ns(times[0])}, the median of its steps"
    ratio = f"A step of {second} took {times[1] / times[0]:.3f} times as long: {each}." if times[0] else ""
    return tuple(said for said in (memory, ratio) if said)


def _thinned(times: Sequence[int]) -> tuple[tuple[float, float], ...]:
    """Return at most `DRAWN` points: the number of a step and its time, of many steps their median."""
    each = -(-len(times) // DRAWN)
    return tuple((start + 1, median(times[start : start + each])) for start in range(0, len(times), each))


def runs_rendered(pair: RunPair) -> RenderableType:
    """Render two runs for a terminal."""
    head, *rest = run_sentences(pair)
    made = plain_table(title="\nBoth runs")
    made.add_column("", overflow="fold")
    for name in (*pair.names, "difference"):
        made.add_column(Text(name), justify="right", overflow="fold")
    for figure in pair.figures:
        made.add_row(figure.name, *figure.cells)
    return Group(Text(head, style="bold"), *(Text(each) for each in rest), made)


def runs_page(pair: RunPair) -> str:
    """Make one offline HTML page of two runs: the answer, the figures, and the time of each step."""
    said = "".join(f"<p>{escape(each)}</p>" for each in run_sentences(pair))
    rows = [(figure.name, *figure.cells) for figure in pair.figures]
    figures = table(f"{pair.names[0]} and {pair.names[1]}", ("", *pair.names, "difference"), rows, TONES)
    curves = [
        Curve2d(label=name, tone=tone, points=_thinned(times))
        for name, tone, times in zip(pair.names, SIDES, pair.step_ns, strict=True)
    ]
    chart = drawings.line_chart(
        "Time of each step", curves, lambda x: str(int(x)), lambda y: format_ns(int(y)), x_title="step"
    )
    keys = drawings.key(list(zip(pair.names, SIDES, strict=True)))
    parts = (
        section("How they differ", f'<div class="answer">{said}</div>{figures}', "differ"),
        section("Step by step", keys + chart, "steps"),
    )
    return whole(f"elbowroom: {pair.names[0]} and {pair.names[1]} compared", "".join(parts), {})
