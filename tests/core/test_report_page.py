"""The page in a browser: narrow windows, print, search and sort, names of charts. Skipped without a Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from elbowroom.report import Record, html, report, subject_of
from tests.core.report_case import chain
from tests.core.test_report import everything

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_browser = pytest.mark.skipif(BROWSER is None, reason="needs a Chromium in the PATH")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=5000")


def seen(folder: Path, page: str, expression: str, width: int) -> object:
    """What a script finds in a page of so many pixels: it is framed, as no window is that narrow."""
    script = f"<script>onload = () => parent.postMessage(JSON.stringify({expression}), '*')</script></body>"
    (folder / "page.html").write_text(page.replace("</body>", script), encoding="utf-8")
    (folder / "frame.html").write_text(
        f"<body><iframe src='page.html' style='width:{width}px;height:2000px'></iframe><pre id='said'></pre><script>"
        "onmessage = (event) => { document.getElementById('said').textContent = event.data }</script></body>",
        encoding="utf-8",
    )
    command = [str(BROWSER), *OPTIONS, f"--user-data-dir={folder}/profile", "--dump-dom", f"file://{folder}/frame.html"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90)
    found = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-500:]
    return json.loads(found[1])


def page(name: str = "net") -> str:
    return html.page(subject_of(*everything(name)))


def page_with(*records: Record) -> str:
    return html.page(subject_of(*records))


@in_browser
def test_nothing_is_wider_than_a_narrow_window(tmp_path: Path) -> None:
    long = page("encoder.a_module_with_quite_a_long_path.of_names.block.layer")

    assert seen(tmp_path, long, "document.documentElement.scrollWidth <= innerWidth", 400) is True


@in_browser
def test_every_chart_has_a_name_that_says_what_it_shows(tmp_path: Path) -> None:
    names = seen(tmp_path, page(), "[...document.querySelectorAll('canvas')].map((it) => it.ariaLabel)", 1000)

    assert isinstance(names, list)
    assert [str(name).split(".")[0] for name in names] == [
        "Line chart of memory over the step",
        "Bars of what runs when, on each lane",
    ]
    assert "everything kept, simulated 228.0 MiB, simulated 132.0 MiB, measured 132.0 MiB" in names[0]


@in_browser
def test_storages_can_be_sorted_and_searched(tmp_path: Path) -> None:
    rows = "[...document.querySelectorAll('.storages tbody tr')]"
    click = "document.querySelectorAll('.storages .sort')[1].click()"
    sizes = f"({click}, {click}, {rows}.map((row) => Number(row.cells[1].dataset.value)))"
    found = seen(tmp_path, page(), sizes, 1000)
    assert isinstance(found, list)
    assert found == sorted(found)
    assert found[0] < found[-1]

    typed = (
        "const field = document.querySelector('.find'); field.value = 'swap'; field.dispatchEvent(new Event('input'))"
    )
    left = f"(() => {{ {typed}; return {rows}.filter((row) => !row.hidden).length }})()"
    assert seen(tmp_path, page(), left, 1000) == 4  # of 14 storages 4 are swapped


@in_browser
def test_print_shows_every_storage(tmp_path: Path) -> None:
    # given 80 storages; printed they take 80 rows of 17 pixels and more, which is more than a page of 1056
    of_print = page_with(chain(layers=60)).replace("@media print", "@media screen")
    height = "document.querySelector('.scroll').clientHeight"

    found = seen(tmp_path, of_print, height, 800)

    assert isinstance(found, int)
    assert found > 80 * 17


def test_print_does_not_cut_the_table() -> None:
    style = page().partition("@media print")[2].partition("</style>")[0]

    assert re.search(r"\.scroll[^{]*\{ overflow: visible; max-height: none; \}", style)


def test_every_page_has_a_title_of_its_own() -> None:
    trace, machine, plan, simulated, measured = everything()
    of = [(trace,), (trace, machine), (trace, machine, plan), (trace, machine, plan, simulated, measured)]

    titles = [re.findall(r"<title>(.*?)</title>", html.page(subject_of(*records)))[0] for records in of]

    assert len(set(titles)) == 4
    assert titles[3] == f"elbowroom: swap_greedy within 140.0 MiB, measured, here, trace {trace.id[:8]}"


def test_no_simulated_time_stands_beside_a_measured_one_without_its_name() -> None:
    text, shown = report(*everything()), page()

    for said in (text, shown):
        assert not re.search(r"everything kept(?!, simulated)", said.partition("<script")[0])
    assert "accuracy of memory: the simulated peak is the measured one, to the byte" in text
    assert "accuracy of time: the simulated step takes 640.0 ms, 1.00 times the 640.0 ms that were measured" in text
    assert "<dt>accuracy of memory</dt>" in shown
