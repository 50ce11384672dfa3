"""What-if studies: what each case needs, how long its step takes, the sentences, the pictures, and where they end."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from elbowroom.answers.link_study import studied_links
from elbowroom.answers.study_points import PlanEffort, Study, StudyCase, StudyPoint, looked_at
from elbowroom.capture.script.script_knobs import Range
from elbowroom.cli.study_verb import values_of
from elbowroom.errors import CaptureError, TimeOver, UsageError
from elbowroom.machine import Machine, Tier
from elbowroom.report.drawings import Bar, Curve2d, Marking, alone, bar_chart, line_chart, round_step
from elbowroom.report.study_page import study_file
from elbowroom.report.study_words import link_sentences, sentences, study_table
from elbowroom.trace import Trace
from elbowroom.watch import Watch
from tests.core.build import chain, machine

PIECE = 8192
"""Bytes of a storage that may move: twice the least size."""
NS = 10 * PIECE
"""Time of an op: ten times that of a copy of a piece, which takes a nanosecond a byte."""
STEP_NS = 8 * NS
"""Four layers forward and backward."""
GIB = 2**30
SWAPS = PlanEffort(allow=("swap",))


def device(pieces: float, *, outside: int = 0, out: int = 10**9, back: int = 10**9) -> Machine:
    made = machine(out=out, back=back, outside=outside)
    return replace(made, tiers=(Tier(name="device", capacity_bytes=int(pieces * PIECE) + outside), made.tiers[1]))


def four() -> Trace:
    """Four pieces that are saved one after the other, and read back in reverse."""
    return chain([PIECE] * 4, ns=NS)


def case(value: int, on: Machine, trace: Trace | None = None) -> StudyCase:
    made = trace or four()
    return StudyCase(value=value, machine=on, trace=lambda: made, in_parts=lambda: made)


def failing(value: int) -> StudyCase:
    def broken() -> Trace:
        raise CaptureError("with 9: the script failed\nTraceback")

    return StudyCase(value=value, machine=device(9), trace=broken, in_parts=broken)


def test_a_case_keeps_everything_or_is_planned_or_has_no_plan() -> None:
    # four pieces are held at once; with three a copy hides behind the ops; a tenth of a piece holds no op's result
    cases = [case(4, device(4, outside=5)), case(3, device(3, outside=5)), case(0, device(0.1, outside=5))]

    kept, planned, refused = looked_at(cases, SWAPS, Watch())

    assert (kept.outcome, kept.needed_bytes, kept.step_ns) == ("kept", 4 * PIECE + 5, STEP_NS)
    assert (kept.slowdown, kept.out_bytes, kept.disk_bytes) == (1.0, 0, 0)
    assert (planned.outcome, planned.needed_bytes, planned.memory_bytes) == ("planned", 4 * PIECE + 5, 3 * PIECE + 5)
    assert (planned.step_ns, planned.kept_step_ns, planned.least_bytes) == (STEP_NS, STEP_NS, None)
    assert planned.out_bytes >= PIECE
    assert planned.disk_bytes >= PIECE
    assert (refused.outcome, refused.step_ns, refused.slowdown) == ("no plan", None, None)
    assert refused.least_bytes is not None
    assert refused.least_bytes > 0.1 * PIECE + 5


def test_a_gpu_with_another_link_has_a_plan_of_its_own() -> None:
    # given GPUs with a caching allocator whose steps take the same time, and the memory for 7 of 12 storages of 4 MiB
    trace, size_bytes = chain([4 * 2**20] * 12, ns=2**22), 7 * 4 * 2**20
    fast, slow = (replace(device(size_bytes / PIECE, out=rate, back=rate), allocator="") for rate in (10**10, 10**8))

    # when they are looked at together, then the second is as it is alone
    together = looked_at([case(1, fast, trace), case(2, slow, trace)], SWAPS, Watch())
    (alone_slow,) = looked_at([case(2, slow, trace)], SWAPS, Watch())
    assert together[1] == alone_slow
    assert together[0].outcome == alone_slow.outcome == "planned"
    assert (together[0].step_ns or 0) < (alone_slow.step_ns or 0)


def test_cases_with_less_than_a_plan_was_found_to_need_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a case without a plan, and one with less memory whose capture in parts must not be asked for
    first = case(2, device(0.2))
    less = replace(case(1, device(0.1)), in_parts=failing(1).in_parts)

    large, small = looked_at([first, less], SWAPS, Watch())

    assert (small.outcome, small.least_bytes) == ("no plan", large.least_bytes)


def test_a_study_of_rising_values_ends_where_no_plan_is_found() -> None:
    cases = [case(1, device(3)), case(2, device(0.1)), failing(3)]

    assert [point.outcome for point in looked_at(cases, SWAPS, Watch(), stops=True)] == ["planned", "no plan"]


def test_captures_that_will_be_needed_begin_before_they_are_asked_for() -> None:
    # given five cases, of which the second is the first that is short of memory
    begun: list[tuple[int, bool]] = []

    def noting(value: int, pieces: float) -> StudyCase:
        return replace(case(value, device(pieces)), begin=lambda planned: begun.append((value, planned)))

    rooms = {9: 9, 4: 3.5, 3: 3, 2: 3, 1: 3}
    points = looked_at([noting(value, pieces) for value, pieces in rooms.items()], SWAPS, Watch())

    # then each case is begun with the two after it, and for a plan from where one was needed
    first = list(dict.fromkeys(begun))
    assert [point.outcome for point in points] == ["kept", *["planned"] * 4]
    assert first[:4] == [(9, False), (4, False), (3, False), (2, False)]
    assert [value for value, planned in first if planned] == [4, 3, 2, 1]


def test_a_case_that_fails_is_a_point_with_the_reason_unless_it_is_the_first() -> None:
    points = looked_at([case(1, device(9)), failing(9)], SWAPS, Watch())
    assert (points[1].outcome, points[1].problem, points[1].needed_bytes) == (
        "failed",
        "with 9: the script failed",
        None,
    )

    with pytest.raises(CaptureError):
        looked_at([failing(9), case(1, device(9))], SWAPS, Watch())


def test_a_study_whose_time_is_over_has_the_cases_so_far() -> None:
    # given a clock that stands at 0 in the first case, and then passes the limit of 10 s
    now = [0.0]

    def late() -> Trace:
        now[0] = 11.0
        raise watch.over()

    watch = Watch(limit_s=10, clock=lambda: now[0])
    second = StudyCase(value=2, machine=device(9), trace=late, in_parts=late)

    assert len(looked_at([case(1, device(9)), second], SWAPS, watch)) == 1
    assert watch.early == "stopped after 10 s: 1 of 2 cases were looked at"
    with pytest.raises(TimeOver):
        looked_at([second], SWAPS, watch)


def test_the_same_plan_costs_less_over_a_faster_link() -> None:
    # A swap back of a piece takes 1 * PIECE ns on one machine and 400 times that on the other: it cannot hide behind
    # the eight ops of 10 * PIECE each.
    fast, slow = (replace(device(9, out=rate, back=rate), name=name) for name, rate in FAST_AND_SLOW)

    found = studied_links("train.py", [case(0, fast), case(0, slow)], SWAPS, Watch(), slowdown=1.5)

    quick, tardy = found.links
    assert (quick.kept_bytes, quick.budget_bytes, quick.kept_step_ns) == (4 * PIECE, 2 * PIECE, STEP_NS)
    assert (quick.lower, quick.out_bytes_per_s, tardy.back_bytes_per_s) == ("disk", 10**9, 10**9 // 400)
    assert quick.step_ns is not None
    assert tardy.step_ns is not None
    assert quick.step_ns < tardy.step_ns
    assert (quick.out_bytes, quick.back_bytes) == (tardy.out_bytes, tardy.back_bytes)
    # busy: the bytes divided by the rate, as a part of the step
    assert quick.out_busy == pytest.approx(quick.out_bytes / quick.step_ns)
    assert tardy.back_busy == pytest.approx(400 * tardy.back_bytes / tardy.step_ns)
    assert tardy.back_busy > quick.back_busy
    # the slow link needs all but everything for 1.5 times the step, the fast one less
    assert quick.least_bytes is not None
    assert tardy.least_bytes is not None
    assert quick.least_bytes < tardy.least_bytes <= 4 * PIECE
    said = link_sentences(found)
    assert "times as long as with everything kept on fast" not in said[0]
    assert re.match(
        r"train\.py: within 16\.0 KiB on fast a step takes \d\.\d\d times as long .*, and \d+\.\d\d times on slow",
        said[0],
    )
    assert said[1].startswith("The least budget for at most 1.5 times the step: ")


FAST_AND_SLOW = (("fast", 10**9), ("slow", 10**9 // 400))


def test_a_budget_without_a_plan_is_said_with_the_least_that_has_one() -> None:
    found = studied_links("train.py", [case(0, device(9))], SWAPS, Watch(), budget_bytes=PIECE // 10)

    (link,) = found.links
    assert (link.step_ns, link.slowdown, found.trains) == (None, None, False)
    assert link.least_feasible_bytes is not None
    assert link.least_bytes is not None
    assert link.least_bytes >= link.least_feasible_bytes
    assert (
        f"On test no plan was found for 819 B: the least is {link.least_feasible_bytes / 1024:.1f} KiB."
        in link_sentences(found)
    )


def point(value: int, step_ns: int | None = 100, kept_ns: int = 100, **more: object) -> StudyPoint:
    outcome = "no plan" if step_ns is None else "kept" if step_ns == kept_ns else "planned"
    made = StudyPoint(
        value=value,
        machine="t4",
        memory_bytes=value + GIB,
        outcome=outcome,
        needed_bytes=10 * GIB,
        kept_step_ns=kept_ns,
        step_ns=step_ns,
        least_bytes=5 * GIB if step_ns is None else None,
    )
    return replace(made, **more)  # pyright: ignore[reportArgumentType]


BUDGETS = Study(
    kind="budget",
    script="train.py",
    machine="t4",
    varied="budget",
    points=(point(2 * GIB, None), point(6 * GIB, 150), point(8 * GIB, 120), point(20 * GIB)),
    own_bytes=8 * GIB,
    more_bytes=20 * GIB,
)


def test_a_study_of_budgets_says_what_the_card_does_and_what_more_would_bring() -> None:
    said = sentences(BUDGETS)

    assert said[0] == (
        "train.py: within the 8.00 GiB that t4 has for it, a step takes 120 ns with a plan, 1.20 times as long as with "
        "memory for everything."
    )
    assert said[1] == "With 12.00 GiB more a step takes 100 ns, 17% less."  # 100 / 120 = 0.83
    assert said[2] == "Of the budgets looked at, 20.00 GiB is the least that makes a step at most 5 % longer."
    assert said[3].startswith("The least with which it trains is 6.00 GiB: 150 ns with a plan, 1.50 times")
    # 5 GiB of the card less 1 GiB outside the allocator
    assert said[4] == "No plan was found for 2.00 GiB; the least budget that one was found for is 4.00 GiB."
    assert "`elbowroom plan` may find a faster step" in said[5]


def test_a_least_budget_above_one_that_has_a_plan_is_not_named() -> None:
    # given a refusal that names 7 GiB less 1 GiB outside the allocator, and a plan for 6 GiB
    refused = replace(point(2 * GIB, None), least_bytes=7 * GIB)
    said = sentences(replace(BUDGETS, points=(refused, *(each for each in BUDGETS.points if each.value > 5 * GIB))))

    assert said[4] == "No plan was found for 2.00 GiB."


@pytest.mark.parametrize(
    ("own", "more", "said"),
    [
        (point(8 * GIB), point(20 * GIB), "With 12.00 GiB more a step takes about as long: 100 ns."),
        (
            point(8 * GIB, None),
            point(20 * GIB),
            "With 12.00 GiB more it trains: a step takes 100 ns, with everything kept.",
        ),
        (point(8 * GIB, None), point(20 * GIB, None), "With 12.00 GiB more it does not train either."),
    ],
)
def test_more_memory_may_bring_nothing_or_everything(own: StudyPoint, more: StudyPoint, said: str) -> None:
    assert sentences(replace(BUDGETS, points=(own, more)))[1] == said


def on(name: str, step_ns: int | None, kept_ns: int = 100, **more: object) -> StudyPoint:
    return point(12 * GIB, step_ns, kept_ns, machine=name, **more)


def test_a_study_of_gpus_names_the_smallest_that_keeps_all_the_smallest_with_a_plan_and_the_fastest() -> None:
    points = (
        on("small", None),
        on("middle", 130, host_bytes=3 * GIB),
        on("large", 100),
        on("huge", 50, 50),
    )
    study = Study(kind="gpu", script="train.py", machine="", varied="GPU", points=points, not_looked=("other",))

    said = sentences(study)

    assert said[0] == (
        "train.py: the smallest GPU that keeps everything is large: it needs 10.00 GiB of 13.00 GiB, and a step takes "
        "100 ns."
    )
    assert said[1] == (
        "middle (13.00 GiB) is enough: a step takes 130 ns with a plan, 1.30 times as long as with memory "
        "for everything, with 3.00 GiB of host memory."
    )
    assert said[2] == "The fastest that was looked at is huge: 50 ns a step."
    assert said[3].startswith("Not looked at, as the answer does not depend on them: other")
    alone_said = sentences(replace(study, points=points[:1], not_looked=()))
    assert alone_said[0].startswith("train.py: no GPU of these is enough. On small, the largest, no plan was found; ")


def test_a_study_of_batches_says_what_fits_and_what_trains_most_samples() -> None:
    # 1 sample in 100 ns, 2 in 150, 4 in 400: 10, 13.3 and 10 million a second
    points = (point(1), point(2, 150, 150), point(4, 400, 300), point(8, None))
    study = Study(kind="batch", script="train.py", machine="t4", varied="batch_size", points=points)

    said = sentences(study)

    assert said[0].startswith(
        "train.py on t4: the largest of these values that fits with everything kept is batch_size = 2, "
    )
    assert said[1].startswith("batch_size = 4 trains: a step takes 400 ns with a plan, 1.33 times as long")
    assert said[2] == "The most samples a second: 13,333,333.3, with 2."
    assert said[3].startswith("With 8, no plan was found; ")
    names, rows = study_table(study)
    assert (names[0], rows[0][0], rows[3][2]) == ("batch_size", "1", "no plan found")
    assert dict(zip(names, rows[1], strict=True))["samples a second"] == "13,333,333.3"
    # for a resolution the same points have no samples
    assert not [each for each in sentences(replace(study, kind="resolution")) if "samples" in each]


@pytest.mark.parametrize(
    "study",
    [BUDGETS, replace(BUDGETS, kind="gpu"), replace(BUDGETS, kind="batch"), replace(BUDGETS, kind="resolution")],
)
def test_each_study_is_a_page_a_picture_and_a_text_with_the_same_figures(study: Study) -> None:
    page, picture, text = (study_file(study, f"a{ending}") for ending in (".html", ".svg", ".txt"))

    root = ElementTree.fromstring(picture)
    assert [child.get("aria-label") for child in root if child.tag.endswith("svg")]
    drawn = "".join(root.itertext())
    assert ("150 ns" in drawn) or study.kind in ("budget", "batch", "resolution")
    drawn = "".join(root.itertext())
    assert all(name in drawn for name in ("everything kept", "with a plan", "the card's memory"))
    for cell in ("everything kept", "150 ns", "1.50"):
        assert cell in page
        assert cell in text
    rows = list(csv.DictReader(study_file(study, "a.csv").splitlines()))
    assert [(row["value"], row["outcome"]) for row in rows] == [
        (str(each.value), each.outcome) for each in study.points
    ]
    assert (rows[0]["step_ns"], rows[1]["step_ns"]) == ("", "150")
    assert page.count("<svg ") == picture.count("<svg ") - 1
    assert "<script" not in page
    with pytest.raises(UsageError, match=re.escape("allowed are names ending in .html, .svg, .txt, .csv")):
        study_file(study, "a.pdf")


def test_names_from_outside_are_escaped_in_pages_and_pictures() -> None:
    hostile = replace(BUDGETS, script="<img src=x>.py", machine='"><b>t4')

    page, picture = study_file(hostile, "a.html"), study_file(hostile, "a.svg")

    assert "<img" not in page + picture
    assert "<b>t4" not in page + picture
    ElementTree.fromstring(picture)


def test_a_bar_is_as_long_as_its_value_on_one_scale_from_zero() -> None:
    chart = bar_chart(
        "times",
        [Bar(label="a", value=50, text="50", tone="kept", mark=100), Bar(label="b", value=25, text="25", tone="kept")],
    )

    first, second = (float(each) for each in re.findall(r'<rect [^>]*width="([\d.]+)"', chart))
    assert first == 2 * second
    # the mark at 100 is twice as far from the begin of the bars, at 190, as the end of the bar of 50
    (at,) = re.findall(r'<path d="M([\d.]+)', chart)
    assert float(at) - 190 == pytest.approx(2 * first, abs=0.2)


def test_lines_rise_on_the_page_with_their_values_and_many_times_larger_ones_are_logarithmic() -> None:
    def places(points: tuple[tuple[float, float], ...]) -> list[tuple[float, float]]:
        chart = line_chart("t", [Curve2d(label="l", tone="kept", points=points)], str, str, [Marking(at=1, label="m")])
        (found,) = re.findall(r'<polyline points="([^"]+)"', chart)
        return [tuple(map(float, each.split(","))) for each in found.split()]  # pyright: ignore[reportReturnType]

    (x1, y1), (x2, y2), (x3, y3) = places(((1, 1), (2, 2), (3, 3)))
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    (x1, _), (x2, _), (x3, _) = places(((1, 1), (4, 2), (16, 3)))
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert line_chart("t", [Curve2d(label="l", tone="kept", points=())], str, str) == ""
    assert alone([bar_chart("a", []), bar_chart("b", [])]).count("<svg ") == 3


def test_each_point_of_a_line_is_reached_by_the_keyboard_and_says_what_it_is() -> None:
    chart = line_chart("t", [Curve2d(label="<l>", tone="kept", points=((1, 2), (3, 4)))], str, str)

    said = re.findall(r'<circle tabindex="0" role="img" aria-label="([^"]+)".*?<title>([^<]+)</title>', chart)
    assert said == [("1: 2, &lt;l&gt;",) * 2, ("3: 4, &lt;l&gt;",) * 2]
    assert 'role="group" aria-label="t"' in chart  # a picture would hide its points from a screen reader


def test_lines_across_are_at_round_numbers() -> None:
    # 1.1 s in steps of 0.2 s, and 17 GiB in steps of 4 GiB
    assert round_step(1.1e9, binary=False) == 2e8
    assert round_step(17 * GIB, binary=True) == 4 * GIB
    assert round_step(0, binary=False) == 1


@pytest.mark.parametrize(
    ("vary", "unit", "values"),
    [
        ("batch=1..64", 1, (1, 2, 4, 8, 16, 32, 64)),
        ("batch=8..8", 1, (8,)),
        ("batch=3..5", 1, (3, 4, 5)),
        ("side=64..352", 32, (64, 128, 192, 352)),
        ("side=3,7,5", 1, (3, 5, 7)),
        ("batch=1..4096", 1, (1, 3, 11, 35, 116, 380, 1248, 4096)),  # by 4096 ** (1 / 7) = 3.28
    ],
)
def test_a_range_is_a_few_values_that_rise_by_one_factor(vary: str, unit: int, values: tuple[int, ...]) -> None:
    assert values_of(Range.of(vary), unit) == values


@pytest.mark.parametrize(("vary", "unit"), [("side=3,7", 2), ("side=5..7", 8), ("side=5..7", 0)])
def test_a_unit_without_a_multiple_is_refused(vary: str, unit: int) -> None:
    with pytest.raises(UsageError, match="--multiple-of: given"):
        values_of(Range.of(vary), unit)
