"""Screen: a console that passes on no control codes, and tables that fit the width of a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from elbowroom.files.field_rules import printable

_ANY_WIDTH = 10_000


@final
class PlainConsole(Console):
    """A console that drops control codes from texts, as names in a record may come from anybody."""

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render without the control codes of texts; those that rich makes itself stay."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def plain_table(*, title: str, blanks: int = 2) -> Table:
    """Make a table in the look of all elbowroom's tables, with `blanks` spaces between columns."""
    return Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, blanks, 0, 0)
    )


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a `FittingTable`.

    Attributes:
        name: its header.
        rank: columns of the highest rank are left out first; those of rank 0 stay.
        left: whether it is justified to the left.
    """

    name: str
    rank: int = 0
    left: bool = False


@final
class FittingTable:
    """A table whose cells are never cut: in a narrow terminal headers are broken, then columns are left out.

    Args:
        title: title above it.
        columns: columns from left to right.
        rows: a cell for each column.
    """

    def __init__(self, title: str, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> None:
        self._title = title
        self._columns = columns
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the first form that fits, and a line about the columns that it leaves out."""
        forms = list(self._forms())
        wide = options.update(max_width=_ANY_WIDTH)
        fitting = (form for form in forms if console.measure(form[0], options=wide).maximum <= options.max_width)
        table, shown = next(fitting, forms[-1])
        yield table
        if missing := [column.name for column in self._columns if column.name and column not in shown]:
            yield Text(f"Left out, as the terminal is narrow: {', '.join(missing)} (--json has them)")

    def _forms(self) -> Iterator[tuple[Table, Sequence[Column]]]:
        yield self._form(self._columns, 2, broken=False), self._columns
        for most in sorted({column.rank for column in self._columns}, reverse=True):
            shown = [column for column in self._columns if column.rank <= most]
            for blanks in (2, 1):
                yield self._form(shown, blanks, broken=True), shown

    def _form(self, shown: Sequence[Column], blanks: int, *, broken: bool) -> Table:
        table = plain_table(title=self._title, blanks=blanks)
        for column in shown:
            header = column.name.replace(" ", "\n") if broken else column.name
            table.add_column(header, justify="left" if column.left else "right", no_wrap=True, vertical="bottom")
        kept = [at for at, column in enumerate(self._columns) if column in shown]
        for row in self._rows:
            table.add_row(*(row[at] for at in kept))
        return table
