"""Rank page: the ranks of one job as an offline HTML page: which one the others wait for, and what each does."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from elbowroom.report import drawings
from elbowroom.report.drawings import Bar, Tone
from elbowroom.report.html import whole
from elbowroom.report.markup import section, table
from elbowroom.report.rank_table import (
    RANK_COLUMNS,
    RankTimes,
    rank_cells,
    ranks_left_out,
    ranks_sentence,
    shown_ranks,
    waited_for,
)
from elbowroom.timeline import Source
from elbowroom.units import format_bytes, format_ns


def ranks_page(ranks: tuple[RankTimes, ...], source: Source) -> str:
    """Make the page of the ranks of one job.

    Args:
        ranks: their figures.
        source: whether these were simulated or measured.
    """
    shown, late = shown_ranks(ranks), waited_for(ranks)

    def chart(title: str, value: Callable[[RankTimes], int], text: Callable[[int], str]) -> str:
        own: Tone = "simulated" if source == "simulated" else "measured"
        bars = [
            Bar(label=each.name, value=value(each), text=text(value(each)), tone="budget" if each is late else own)
            for each in shown
        ]
        return drawings.bar_chart(title, bars)

    waits = [chart("Time that a rank waits for the others, of a step", lambda each: each.wait_ns or 0, format_ns)]
    charts = [
        chart("Time of a step", lambda each: each.step_ns, format_ns),
        *(waits if any(each.wait_ns for each in ranks) else []),
        chart("Most memory that the allocator holds", lambda each: each.peak_reserved_bytes, format_bytes),
    ]
    key = "" if late is None else '<p class="hint">The rank that the others wait for is red.</p>'
    left_out = f"<p>{escape(text)}</p>" if (text := ranks_left_out(ranks)) else ""
    rows = [rank_cells(each) for each in shown]
    parts = (
        section(
            "Which rank is waited for",
            f'<div class="answer"><p>{escape(ranks_sentence(ranks, source))}.</p></div>',
            "late",
        ),
        section("Rank by rank", f'{key}<div class="wide charts">{"".join(charts)}</div>', "ranks"),
        section("Figures", table("Figures of each rank", RANK_COLUMNS, rows) + left_out, "figures"),
    )
    return whole(f"elbowroom: {len(ranks)} ranks", "".join(parts), {})
