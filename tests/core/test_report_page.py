"""The page in a browser: narrow windows, print, search and sort, names of charts. Skipped without a Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from elbowroom.machine import Machine
from elbowroom.report import Record, html, report, subject_of
from elbowroom.report.peak_section import ROWS_PRINTED
from tests.core.report_case import chain
from tests.core.test_guidance import curve
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
def test_charts_are_zoomed_by_keys(tmp_path: Path) -> None:
    # given 0 to 80, of which 20 to 60 are shown: half of that about the middle, the same moved, and no further than 80
    ranges = "['+', '-', 'ArrowRight', 'Escape', 'x'].map((key) => rangeAfter(key, {min: 20, max: 60}, [0, 80]))"
    beyond = "rangeAfter('ArrowRight', {min: 40, max: 80}, [0, 80])"
    # and each chart has the focus by Tab, and takes the key
    takes = "!it.dispatchEvent(new KeyboardEvent('keydown', {key: '+', cancelable: true}))"
    charts = f"['memory', 'lanes'].map((id) => document.getElementById(id)).map((it) => it.tabIndex === 0 && {takes})"

    found = seen(tmp_path, page(), f"[{ranges}, {beyond}, {charts}]", 1000)

    assert found == [[[30, 50], [0, 80], [30, 70], [0, 80], None], [40, 80], [True, True]]


@in_browser
def test_every_chart_has_a_name_that_says_what_it_shows(tmp_path: Path) -> None:
    names = seen(tmp_path, page(), "[...document.querySelectorAll('canvas')].map((it) => it.ariaLabel)", 1000)

    assert isinstance(names, list)
    assert [str(name).split(".")[0] for name in names] == [
        "Line chart of memory over the step",
        "Bars of what runs when, on each lane",
    ]
    assert "everything kept, simulated 228.0 MiB, simulated 132.0 MiB, measured 132.0 MiB" in names[0]


CHOSEN = (
    "[...document.querySelectorAll('.icicle')[0].querySelectorAll('.box')].filter((it) => it.style.display !== 'none')"
)
PRESS = (
    "const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))"
)


def after(script: str, found: str) -> str:
    return f"(() => {{ {PRESS}; {script}; return {found} }})()"


@in_browser
def test_the_page_answers_in_the_order_of_the_questions(tmp_path: Path) -> None:
    trace, machine, plan, simulated, measured = everything()
    heads = "[...document.querySelectorAll('h2')].map((it) => [it.textContent, it.getBoundingClientRect().top])"

    found = seen(tmp_path, page_with(trace, machine, plan, simulated, measured, curve(trace.id)), heads, 1000)

    assert isinstance(found, list)
    assert [name for name, _ in found] == [
        "Does it fit",
        "What holds the memory at the peak",
        "What the plan does over time",
        "What the plan does to each storage: the largest",
        "What another budget would cost",
        "What to try next",
        "Figures",
    ]
    assert [top for _, top in found] == sorted(top for _, top in found)


@in_browser
@pytest.mark.parametrize("size_bytes", [2**20, 8 * 2**30], ids=["fits", "misses"])
def test_the_answer_stands_first_in_its_card_and_above_its_figures(size_bytes: int, tmp_path: Path) -> None:
    shown = page_with(replace(chain(size_bytes=size_bytes), device="cuda:0"), Machine.of("rtx4090"))
    place = "(it) => { const at = it.getBoundingClientRect(); return [at.top, at.left, at.right, at.bottom] }"
    parts = "['section', '.answer p', '.tiles'].map((name) => document.querySelector(name))"

    card, answer, tiles = seen(tmp_path, shown, f"{parts}.map({place})", 1000)  # type: ignore[misc]

    assert card[0] < answer[0] < answer[3] <= tiles[0] < card[3]
    assert card[1] < answer[1] < answer[2] < card[2]


@in_browser
def test_a_box_of_the_icicle_is_as_wide_as_its_bytes_and_stands_below_its_module(tmp_path: Path) -> None:
    # given with everything kept 6 outputs of 32 MiB, a gradient of 32 MiB of the last layer, and a parameter of 4 MiB
    place = "(it) => { const at = it.getBoundingClientRect(); return [it.ariaLabel, at.left, at.top, at.width] }"

    found = seen(tmp_path, page(), f"{CHOSEN}.map({place})", 1000)

    assert isinstance(found, list)
    boxes = {label: (left, top, width) for label, left, top, width in found}
    whole, last, first = (
        boxes["all: 228.0 MiB, 100.0%"],
        boxes["net.5: 64.0 MiB, 28.1%"],
        boxes["net.0: 36.0 MiB, 15.8%"],
    )
    assert last[2] == pytest.approx(whole[2] * 64 / 228, abs=1)
    assert first[2] == pytest.approx(whole[2] * 36 / 228, abs=1)
    assert first[0] == pytest.approx(last[0] + last[2], abs=1)
    assert last[1] == whole[1] + 2 * 24


@in_browser
def test_a_click_makes_a_box_as_wide_as_the_picture_and_a_second_one_goes_back(tmp_path: Path) -> None:
    box = "const box = document.querySelector('.box[aria-label^=\"net.0:\"]')"
    click = f"{box}, click = () => box.dispatchEvent(new Event('click'))"
    width = "Math.round(box.getBoundingClientRect().width / document.querySelector('.icicle').clientWidth * 100)"
    said = "document.querySelector('.said').textContent"

    assert seen(tmp_path, page(), after(f"{click}; click()", f"[{width}, {said}, {CHOSEN}.length]"), 1000) == [
        100,
        "net.0: 36.0 MiB, 15.8%",
        5,  # all, net, net.0, and its activation and parameter
    ]
    # the second click shows net, of which net.0 is 36 of 228 MiB
    assert seen(tmp_path, page(), after(f"{click}; click(); click()", f"[{width}, {CHOSEN}.length > 5]"), 1000) == [
        16,
        True,
    ]


@in_browser
def test_keys_go_through_the_icicle(tmp_path: Path) -> None:
    at = "document.activeElement.ariaLabel.split(':')[0]"
    go = "document.querySelector('.box').focus()"
    for keys, reached in (
        (["ArrowDown"], "net"),
        (["ArrowDown", "ArrowDown"], "net.5"),
        (["ArrowDown", "ArrowDown", "ArrowRight"], "net.0"),
        (["ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft"], "net.5"),
        (["ArrowDown", "ArrowDown", "ArrowUp"], "net"),
        (["ArrowDown", "ArrowDown", "Home"], "all"),
        (["ArrowDown", "ArrowDown", "Enter", "ArrowRight"], "net.5"),  # what stands next to it is not shown
        (["ArrowDown", "ArrowDown", "Enter", "Escape"], "net"),
    ):
        pressed = "; ".join(f"press('{key}')" for key in keys)
        assert seen(tmp_path, page(), after(f"{go}; {pressed}", at), 1000) == reached, keys


@in_browser
def test_one_tab_reaches_each_icicle_and_each_picture_has_a_table(tmp_path: Path) -> None:
    tabs = "[...document.querySelectorAll('.icicle')].map((it) => it.querySelectorAll('[tabindex=\"0\"]').length)"
    assert seen(tmp_path, page(), tabs, 1000) == [1, 1]

    tables = "[...document.querySelectorAll('summary, caption')].map((it) => it.textContent)"
    found = seen(tmp_path, page(), tables, 1000)
    assert isinstance(found, list)
    assert {"The categories as a table", "The modules as a table", "The lanes as a table"} <= set(found)
    rows = "document.querySelector('.tree + details tbody').rows.length"
    assert seen(
        tmp_path, page(), f"[{rows}, document.querySelector('.icicle').querySelectorAll('.box').length]", 900
    ) == [16, 16]


@in_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_can_be_read_on_their_boxes_in_light_and_dark(theme: str, tmp_path: Path) -> None:
    # the ratio of two colours' luminance, as of WCAG 2.1
    measure = """(() => {
        const light = (rgb) => rgb.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
            .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
            .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
        const ratio = (one, other) => {
            const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
            return (high + 0.05) / (low + 0.05);
        };
        const boxes = [...document.querySelectorAll('.box')].map((box) =>
            ratio(getComputedStyle(box.querySelector('rect')).fill, getComputedStyle(box.querySelector('text')).fill));
        const page = getComputedStyle(document.body);
        return [Math.min(...boxes), light(page.backgroundColor)];
    })()"""
    shown = page().replace("(prefers-color-scheme: dark)", "all" if theme == "dark" else "not all")

    found = seen(tmp_path, shown, measure, 1000)

    assert isinstance(found, list)
    least, paper = found
    assert least >= 4.5
    assert (paper > 0.5) == (theme == "light")


@in_browser
def test_print_opens_every_table(tmp_path: Path) -> None:
    of_print = page().replace("@media print", "@media screen")
    heights = "[...document.querySelectorAll('details table')].map((it) => it.getBoundingClientRect().height)"

    found = seen(tmp_path, of_print, heights, 800)

    assert isinstance(found, list)
    assert len(found) == 4  # categories, two trees, lanes
    assert min(found) > 50


@in_browser
def test_print_has_the_largest_modules_and_says_how_many_are_left_out(tmp_path: Path) -> None:
    # given a layer in a module of its own each, 60 of them: all and 60 modules with an activation each, and others
    trace = chain(layers=60)
    ops = tuple(replace(op, module=f"net.{number % 60}") for number, op in enumerate(trace.ops))
    of_print = page_with(replace(trace, ops=ops)).replace("@media print", "@media screen")
    rows = "[...document.querySelector('.modules tbody').rows]"
    shown = f"{rows}.filter((row) => getComputedStyle(row).display !== 'none').length"
    said = "getComputedStyle(document.querySelector('.on-paper')).display"
    text = "document.querySelector('.on-paper').textContent"

    found = seen(tmp_path, of_print, f"[{rows}.length, {shown}, {said}, {text}]", 800)

    assert isinstance(found, list)
    assert found[1] == ROWS_PRINTED
    assert found[2] == "block"
    assert found[3] == f"{found[0] - ROWS_PRINTED} more rows are on the page itself."


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
