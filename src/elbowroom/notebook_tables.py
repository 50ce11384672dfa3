"""Notebook tables: how a record shows itself in a notebook: a table with a bar for each row, without a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from elbowroom.units import format_bytes

CELL = "text-align:left;padding:2px 12px 2px 0;overflow-wrap:anywhere;white-space:normal"
NUMBER = "text-align:right;padding:2px 12px 2px 0;white-space:nowrap"
WIDTH_EM = 16
"""Width of the longest bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookBar:
    """One row.

    Attributes:
        name: what it is.
        text: its value.
        share: length of its bar, from 0 to 1.
    """

    name: str
    text: str
    share: float


def byte_bars(named: Sequence[tuple[str, int]], whole_bytes: int) -> list[NotebookBar]:
    """Return a row for each name and its bytes; a bar is the part of the whole."""
    return [
        NotebookBar(name=name, text=format_bytes(size), share=size / whole_bytes if whole_bytes else 0.0)
        for name, size in named
    ]


def notebook_table(title: str, facts: Sequence[tuple[str, str]], bars: Sequence[NotebookBar], of: str) -> str:
    """Make the HTML of a record.

    Args:
        title: what the record says first.
        facts: further figures: name and text.
        bars: rows with a bar.
        of: what the rows with a bar are.
    """
    said = "".join(_fact(name, text) for name, text in facts)
    if bars:
        head = f'<th colspan="3" scope="colgroup" style="{CELL};font-weight:600">{escape(of)}</th>'
        said += f"<tr>{head}</tr>" + "".join(_row(bar.name, bar.text, _bar(bar.share)) for bar in bars)
    caption = f'<caption style="text-align:left;font-weight:600;color:inherit">{escape(title)}</caption>'
    return f'<table style="border-collapse:collapse">{caption}<tbody>{said}</tbody></table>'


def _fact(name: str, text: str) -> str:
    return f'<tr>{_head(name)}<td colspan="2" style="{CELL}">{escape(text)}</td></tr>'


def _head(name: str) -> str:
    return f'<th scope="row" style="{CELL};font-weight:400">{escape(name)}</th>'


def _row(name: str, text: str, bar: str) -> str:
    return f'<tr>{_head(name)}<td style="{NUMBER}">{escape(text)}</td><td style="{CELL}">{bar}</td></tr>'


def _bar(share: float) -> str:
    width = WIDTH_EM * min(1.0, max(0.0, share))
    return f'<div style="width:{width:.2f}em;height:0.7em;border-radius:2px;background:#e59432"></div>'
