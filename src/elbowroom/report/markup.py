"""Markup: tables and foldable parts of HTML pages. Every text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources

Cells = Sequence[str]


def table(caption: str, names: Cells, rows: Sequence[Cells], tones: Cells = (), kind: str = "figures") -> str:
    """Make a table of figures whose first column names the rows.

    Args:
        caption: what the table shows, for readers who do not see the page.
        names: header of each column.
        rows: texts of each row.
        tones: classes of the headers after the first; empty for none.
        kind: its class: "figures", or "figures words" for cells with words.
    """
    classes = ["", *([f' class="{tone}"' for tone in tones] or [""] * (len(names) - 1))]
    head = "".join(f'<th scope="col"{of}>{escape(name)}</th>' for name, of in zip(names, classes, strict=True))
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for first, *cells in rows
    )
    return (
        f'<div class="wide"><table class="{kind}"><caption class="unseen">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def share_table(caption: str, names: Cells, rows: Sequence[tuple[str, str, float]]) -> str:
    """Make a table of names, each with a text and a bar for its share of the whole."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row"><code>{escape(name)}</code></th><td>{escape(text)}</td><td>{share:.1%}</td>'
        f'<td class="track"><i style="width:{share:.2%}"></i></td></tr>'
        for name, text, share in rows
    )
    return (
        f'<div class="wide"><table class="figures shares"><caption class="unseen">{escape(caption)}</caption>'
        f'<thead><tr>{head}<th scope="col">share</th><td></td></tr></thead><tbody>{body}</tbody></table></div>'
    )


def folded(summary: str, html: str) -> str:
    """Fold a part of a page under a line that opens it; nothing if there is no such part."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>" if html else ""


def section(title: str, html: str, name: str) -> str:
    """Make a part of a page with a heading; nothing if it has no content."""
    if not html:
        return ""
    return f'<section class="card" aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>{html}</section>'


def asset(folder: str, name: str) -> str:
    """Return the text of a file of this package, such as a style or a script."""
    return resources.files("elbowroom.report").joinpath(folder, name).read_text(encoding="utf-8")
