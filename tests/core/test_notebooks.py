"""Notebooks: records as small tables without a script, with figures that are the records' own."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from elbowroom.answers.estimate import estimate
from elbowroom.machine import Machine
from elbowroom.notebook_tables import WIDTH_EM
from elbowroom.simulate.simulate import simulate
from elbowroom.timeline import Timeline
from tests.core.report_case import DISK, MIB, chain, swapping
from tests.core.test_report_page import in_browser, seen

HOSTILE = '<script>alert("x")</script>'
MOST_CHARACTERS = 8_000


class Rows(HTMLParser):
    """The texts of each row of a table; ends of elements must match their starts."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "tr" in self.open:
            self.rows[-1].append(data)


def rows_of(record: object) -> list[list[str]]:
    shown = record._repr_html_()  # type: ignore[attr-defined]
    parsed = Rows()
    parsed.feed(shown)
    parsed.close()
    assert not parsed.open
    assert "<script" not in shown
    assert len(shown) < MOST_CHARACTERS
    return parsed.rows


def test_a_timeline_shows_its_step_and_what_it_holds() -> None:
    # given 4 outputs of 32 MiB and a parameter of 4 MiB; each of the two gradients of 32 MiB replaces an output
    trace = chain()

    rows = rows_of(simulate(trace, DISK, swapping(trace)))

    assert ["step time", "640.0 ms"] in rows
    assert ["swapped out and back", "128.0 MiB, 128.0 MiB"] in rows
    assert ["peak allocated", "132.0 MiB"] in rows
    at_peak = rows[rows.index(["on the device at the allocated peak"]) + 1 :]
    assert [name for name, _ in at_peak] == ["activation", "temporary", "parameter"]


def test_bars_are_as_long_as_their_part_of_the_whole() -> None:
    line = replace(simulate(chain(), DISK), at_peak=(("activation", 3 * MIB), ("parameter", MIB)))

    widths = [float(width) for width in re.findall(r"width:([0-9.]+)em", line._repr_html_())]

    assert widths == [WIDTH_EM * 3 / 4, WIDTH_EM / 4]


def test_a_plan_shows_its_budget_and_how_many_storages_move() -> None:
    plan = swapping(chain())

    assert rows_of(plan) == [
        ["budget", "140.0 MiB"],
        ["moves of storages, and ops, by number"],
        ["swapped to disk", "4"],
    ]
    assert "every storage is kept" in replace(plan, swaps=())._repr_html_()


@pytest.mark.parametrize(("size_bytes", "said"), [(32 * MIB, "fits"), (8 * 2**30, "does not fit")])
def test_an_estimate_shows_whether_it_fits_and_by_which_modules(size_bytes: int, said: str) -> None:
    answer = estimate(replace(chain(size_bytes=size_bytes), device="cuda:0"), Machine.of("rtx4090"), plans=False)

    assert f"Estimate on rtx4090: {said}" in answer._repr_html_()
    names = [row[0] for row in rows_of(answer)]
    assert {"activation", "net.5", "least it runs in"} <= set(names)


def test_names_in_records_are_shown_as_text() -> None:
    trace = chain(name=HOSTILE)
    answer = estimate(replace(trace, device="cuda:0"), replace(Machine.of("rtx4090"), name=HOSTILE), plans=False)

    for record in (answer, replace(swapping(trace), planner=HOSTILE)):
        assert rows_of(record)
        assert "&lt;script&gt;" in record._repr_html_()


def test_a_timeline_without_what_it_holds_has_its_figures_alone() -> None:
    rows = rows_of(Timeline(source="measured", trace_id="", step_ns=5, spans=(), curves=()))

    assert rows[0] == ["step time", "5 ns"]
    assert len(rows) == 5


@in_browser
def test_long_names_leave_the_table_as_wide_as_a_cell(tmp_path: Path) -> None:
    trace = replace(chain(name="encoder.a_module.with_quite_a_long_path.of_names.block.layer"), device="cuda:0")
    answer = estimate(trace, Machine.of("rtx4090"), plans=False)
    page = f"<!doctype html><body style='font-family: sans-serif'>{answer._repr_html_()}</body>"

    assert seen(tmp_path, page, "document.documentElement.scrollWidth <= innerWidth", 600) is True
    bars = "[...document.querySelectorAll('td div')].map((it) => it.getBoundingClientRect().width)"
    widths = seen(tmp_path, page, bars, 1000)
    assert isinstance(widths, list)
    # per category and module its part of the allocated peak
    sizes = [size for _, size in answer.categories] + [share.size_bytes for share in answer.modules]
    assert widths == pytest.approx([WIDTH_EM * 16 * size / answer.peak_allocated_bytes for size in sizes], abs=0.2)
