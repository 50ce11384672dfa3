"""Drawings: bar and line charts of a few points as SVG, which pages and documents show without a script.

Colours are the variables of web/page.css, with a value for files that stand alone. Every text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log2, log10
from typing import Literal

Tone = Literal["kept", "simulated", "budget", "measured", "lower", "other", "first", "second"]
COLOURS: dict[Tone, str] = {
    "kept": "#9a9da5",
    "simulated": "#c77700",
    "budget": "#d23b3b",
    "measured": "#2463d8",
    "lower": "#1b9c8f",
    "other": "#b4b7bd",
    "first": "#2463d8",
    "second": "#c0561f",
}
"""Values of web/page.css for files that stand alone."""
WIDTH = 720
TEXT = "12px system-ui, sans-serif"
ROW = 26
LOGARITHMIC = 8
"""From this ratio of the largest to the smallest value on, an axis of values is logarithmic."""
_LABEL = 190  # room for names left of bars
_ROOM = 170  # room for texts right of bars
_LEFT, _RIGHT, _TOP, _BOTTOM = 86, 24, 22, 40
_HEIGHT = 260
_CHARACTER = 6.6  # width of a character, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a chart.

    Attributes:
        label: name of the bar.
        value: its length; 0 for a bar that is only a text.
        text: what stands after it.
        tone: its colour.
        mark: place of a line across it, such as a capacity; None for no line.
    """

    label: str
    value: float
    text: str
    tone: Tone
    mark: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve2d:
    """One line of a chart.

    Attributes:
        label: its name.
        tone: its colour.
        points: places, by rising x.
        dashed: whether the line is dashed.
    """

    label: str
    tone: Tone
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Marking:
    """A line across a whole chart.

    Attributes:
        at: its place.
        label: its name.
        upright: whether `at` is on the x axis.
        tone: its colour.
    """

    at: float
    label: str
    upright: bool = False
    tone: Tone = "budget"


def key(named: Sequence[tuple[str, Tone]]) -> str:
    """Return the key of a chart as HTML: what each colour means."""
    spans = (
        f'<span><i class="key" style="background:var(--{tone},{COLOURS[tone]})"></i>{escape(name)}</span>'
        for name, tone in named
    )
    return f'<p class="keys">{"".join(spans)}</p>'


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Draw horizontal bars on one scale that begins at 0.

    Args:
        title: what the bars are, also for readers who do not see them.
        bars: from the top down.
    """
    most = max([bar.value for bar in bars] + [bar.mark for bar in bars if bar.mark is not None] + [1e-9])
    scale = (WIDTH - _LABEL - _ROOM) / most
    parts = [_text(0, 14, title, weight=600)]
    for number, bar in enumerate(bars):
        y = _TOP + number * ROW
        end = _LABEL + bar.value * scale
        parts.append(_text(_LABEL - 10, y + 16, _cut(bar.label, _LABEL - 10), anchor="end"))
        if bar.value:
            parts.append(
                f'<rect x="{_LABEL}" y="{y + 4}" width="{end - _LABEL:.1f}" height="16" rx="2" {_fill(bar.tone)}/>'
            )
        if bar.mark is not None:
            at = _LABEL + bar.mark * scale
            parts.append(_line(at, y, at, y + 24, "budget"))
            end = max(end, at)
        parts.append(_text(end + 8, y + 16, bar.text, soft=True))
    return _svg(title, _TOP + len(bars) * ROW + 6, parts)


def line_chart(
    title: str,
    curves: Sequence[Curve2d],
    show_x: Callable[[float], str],
    show_y: Callable[[float], str],
    markings: Sequence[Marking] = (),
    *,
    x_title: str = "",
    binary: bool = False,
) -> str:
    """Draw lines through a few points, y from 0 on.

    Args:
        title: what the lines are, also for readers who do not see them.
        curves: the lines; those without points are left out.
        show_x: text of a value on the x axis.
        show_y: text of a value on the y axis.
        markings: lines across the chart.
        x_title: what the x axis is.
        binary: whether lines across are at round numbers of powers of two, as for bytes.
    """
    drawn = [curve for curve in curves if curve.points]
    at = sorted({x for curve in drawn for x, _ in curve.points} | {each.at for each in markings if each.upright})
    tops = [y for curve in drawn for _, y in curve.points] + [each.at for each in markings if not each.upright]
    if not at or not tops:
        return ""
    place_x, place_y = _x_axis(at), _y_axis(max(tops))
    parts = [
        _text(0, 14, title, weight=600),
        *_grid(place_y, max(tops), show_y, binary=binary),
        *_ticks(at, place_x, show_x),
    ]
    parts.append(_text(WIDTH - _RIGHT, _TOP + _HEIGHT + 36, x_title, anchor="end", soft=True))
    for marking in markings:
        parts += _marking(marking, place_x, place_y)
    for curve in drawn:
        places = [(place_x(x), place_y(y)) for x, y in curve.points]
        dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke-width="2"{dash} {_stroke(curve.tone)}/>')
        for (x, y), place in zip(curve.points, places, strict=True):
            parts.append(_dot(f"{show_x(x)}: {show_y(y)}, {curve.label}", place, curve.tone))
    return _svg(title, _TOP + _HEIGHT + _BOTTOM, parts, role="group")


def _dot(said: str, place: tuple[float, float], tone: Tone) -> str:
    """Draw a point that the keyboard reaches, and that a screen reader or a pointer over it says in words."""
    x, y = place
    named = f'tabindex="0" role="img" aria-label="{escape(said)}"'
    return f'<circle {named} cx="{x:.1f}" cy="{y:.1f}" r="3.5" {_fill(tone)}><title>{escape(said)}</title></circle>'


def alone(charts: Sequence[str], named: Sequence[tuple[str, Tone]] = ()) -> str:
    """Put charts below each other in one SVG file, under a key of what each colour means."""
    parts, at, top = list[str](), 16.0, 46.0 if named else 16.0
    for name, tone in named:
        parts.append(f'<rect x="{at:.0f}" y="18" width="10" height="10" rx="2" {_fill(tone)}/>')
        parts.append(f'<g style="font:{TEXT}">{_text(at + 16, 27, name, soft=True)}</g>')
        at += 40 + len(name) * _CHARACTER
    for chart in charts:
        height = float(chart.split('height="', 1)[1].split('"', 1)[0])
        parts.append(chart.replace("<svg ", f'<svg x="16" y="{top:.0f}" ', 1))
        top += height + 18
    head = f"<svg {_size(WIDTH + 32, top)}>"
    return f'{head}<rect width="100%" height="100%" fill="#ffffff"/>{"".join(parts)}</svg>\n'


def _svg(title: str, height: float, parts: Sequence[str], role: str = "img") -> str:
    named = f'role="{role}" aria-label="{escape(title)}" style="font:{TEXT};max-width:100%"'
    return f"<svg {_size(WIDTH, height)} {named}>{''.join(parts)}</svg>"


def _size(width: float, height: float) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'xmlns="http://www.w3.org/2000/svg" {size}'


def _x_axis(at: Sequence[float]) -> Callable[[float], float]:
    low, high = at[0], at[-1]
    curved = low > 0 and high / low >= LOGARITHMIC
    first, last = (log2(low), log2(high)) if curved else (low, high)
    span = (last - first) or 1.0
    room = WIDTH - _LEFT - _RIGHT - 40

    def place(x: float) -> float:
        return _LEFT + 20 + ((log2(x) if curved else x) - first) / span * room

    return place


def _y_axis(most: float) -> Callable[[float], float]:
    top = most * 1.15 or 1.0

    def place(y: float) -> float:
        return _TOP + 8 + (_HEIGHT - 8) * (1 - y / top)

    return place


def _grid(place_y: Callable[[float], float], most: float, show: Callable[[float], str], *, binary: bool) -> list[str]:
    """Draw some lines across, each with its value."""
    parts: list[str] = []
    step = round_step(most, binary=binary)
    for number in range(int(most * 1.1 / step) + 1):
        value = number * step
        y = place_y(value)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}" style="stroke:var(--grid,#ecece8)"/>')
        parts.append(_text(_LEFT - 8, y + 4, show(value) if number else "0", anchor="end", soft=True))
    return parts


def round_step(most: float, *, binary: bool) -> float:
    """Return a round distance of which three to six are in a length.

    >>> round_step(1.1e9, binary=False), round_step(17 * 2**30, binary=True) / 2**30
    (200000000.0, 4.0)
    """
    if most <= 0:
        return 1.0
    if binary:
        return 2.0 ** floor(log2(most / 3))
    unit = 10.0 ** floor(log10(most / 3))
    return next(factor * unit for factor in (5, 2, 1) if most / (factor * unit) >= 3)


def _ticks(at: Sequence[float], place_x: Callable[[float], float], show: Callable[[float], str]) -> list[str]:
    """Write the values below the x axis, without those that would stand in the one before."""
    parts, free = list[str](), 0.0
    for x in at:
        text = show(x)
        half = len(text) * _CHARACTER / 2
        if place_x(x) - half >= free:
            parts.append(_text(place_x(x), _TOP + _HEIGHT + 18, text, anchor="middle", soft=True))
            free = place_x(x) + half + 8
    return parts


def _marking(marking: Marking, place_x: Callable[[float], float], place_y: Callable[[float], float]) -> list[str]:
    if marking.upright:
        x = place_x(marking.at)
        right = x > WIDTH / 2
        label = _text(x + (-6 if right else 6), _TOP + 14, marking.label, anchor="end" if right else "start", soft=True)
        return [_line(x, _TOP, x, _TOP + _HEIGHT, marking.tone), label]
    y = place_y(marking.at)
    label = _text(_LEFT + 6, y + 15 if marking.tone == "kept" else y - 6, marking.label, soft=True)  # off the steps
    return [_line(_LEFT, y, WIDTH - _RIGHT, y, marking.tone), label]


def _line(x: float, y: float, to_x: float, to_y: float, tone: Tone) -> str:
    place = f"M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}"
    return f'<path d="{place}" stroke-width="1.5" stroke-dasharray="4 3" {_stroke(tone)}/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: Literal["start", "middle", "end"] = "start",
    soft: bool = False,
    weight: int = 400,
) -> str:
    ink = "var(--soft,#666a73)" if soft else "var(--ink,#1d1f23)"
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" style="fill:{ink}">'
        f"{escape(text)}</text>"
    )


def _cut(text: str, room: float) -> str:
    most = int(room / _CHARACTER)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _fill(tone: Tone) -> str:
    return f'style="fill:var(--{tone},{COLOURS[tone]})"'


def _stroke(tone: Tone) -> str:
    return f'style="stroke:var(--{tone},{COLOURS[tone]})"'
