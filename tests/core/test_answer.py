"""The answer on the screen: the verdict in a sentence, the tables, and what was not known."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from elbowroom.answers.estimate import Estimate, Interval, estimate
from elbowroom.answers.largest import Largest, Probe
from elbowroom.report.answer import outcome, rendered, verdict
from elbowroom.trace import Remark
from tests.core.test_estimate import MIB, gpu, two_layers

ANSWER = estimate(two_layers(), gpu(1000, outside=(300, 300, 300)))


def text_of(what: RenderableType, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


# 180 MiB for the two layers and 300 MiB outside: 480 of 1000 MiB
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "fits, 520.0 MiB are free at the peak"),
        ({"retries": 1}, "fits, but the allocator must empty its cache once: slow"),
        ({"retries": 3}, "fits, but the allocator must empty its cache 3 times: slow"),
        (
            {"sure": False},
            "fits, 520.0 MiB are free at the peak, by the likely figures; by the high ones it would not",
        ),
        (
            {"fits": False, "capacity_bytes": 400 * MIB},
            "does not fit: 80.0 MiB of device memory are missing",
        ),
        (
            {"fits": False, "capacity_bytes": 400 * MIB, "sure": False},
            "does not fit: 80.0 MiB of device memory are missing, by the likely figures; by the low ones it would fit",
        ),
    ],
)
def test_the_verdict_says_how_close_it_is(changes: dict[str, object], sentence: str) -> None:
    assert verdict(replace(ANSWER, **changes)) == sentence  # pyright: ignore[reportArgumentType]


def test_an_interval_is_shown_only_where_there_is_one() -> None:
    def line(answer: Estimate) -> list[str]:
        return next(
            row for row in text_of(rendered("train.py", [answer])).splitlines() if "peak reserved" in row
        ).split()

    assert line(ANSWER)[4:] == ["180.0", "MiB"]
    unsure = replace(ANSWER, peak_reserved=Interval(150 * MIB, 180 * MIB, 240 * MIB))
    assert line(unsure)[4:] == ["180.0", "MiB", "150.0", "MiB", "240.0", "MiB"]


def test_what_was_not_known_is_said_by_kind_the_most_frequent_first() -> None:
    remarks = [
        Remark(kind="assumed_value", name="aten.item", count=3),
        Remark(kind="unsupported", name="torch.compile", count=1),
        *(Remark(kind="unknown_op", name=f"mine.op{number}", count=number) for number in range(1, 8)),
    ]

    text = " ".join(text_of(rendered("train.py", [ANSWER], [replace(two_layers(), remarks=tuple(remarks))])).split())

    assert "ops whose scratch memory is not known, taken to be none: mine.op7 (7), mine.op6 (6), mine.op5 (5)" in text
    assert "mine.op3 (3) and 2 more" in text
    assert "assumed (docs/values.md): aten.item (3)" in text
    assert "left out: torch.compile (1)" in text
    assert "Remarks" not in text_of(rendered("train.py", [ANSWER], [two_layers()]))


def test_a_single_step_is_said_to_understate() -> None:
    assert "Only one step was recorded" in text_of(rendered("train.py", [ANSWER]))
    assert "Only one step was recorded" not in text_of(rendered("train.py", [replace(ANSWER, steps=2)]))


def test_square_brackets_of_a_module_are_no_markup() -> None:
    shares = (ANSWER.modules[0]._replace(module="Net.[bold].x"),)

    assert "Net.[bold].x" in text_of(rendered("[red]train.py", [replace(ANSWER, modules=shares)]))


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            Largest(capacity_bytes=8 * MIB, fits=Probe(4, 7 * MIB), too_large=Probe(5, 9 * MIB), probes=()),
            "the largest value of the constant N that fits is 4: it needs 7.0 MiB of 8.0 MiB; 5 would need 9.0 MiB",
        ),
        (
            Largest(capacity_bytes=8 * MIB, fits=Probe(4, 7 * MIB), too_large=None, probes=(Probe(4, 7 * MIB),)),
            "the largest value of the constant N that fits is 4: it needs 7.0 MiB of 8.0 MiB; "
            "that is the end of the range",
        ),
        (
            Largest(capacity_bytes=8 * MIB, fits=None, too_large=Probe(1, 9 * MIB), probes=()),
            "not even the constant N = 1 fits: it needs 9.0 MiB, the GPU has 8.0 MiB",
        ),
    ],
)
def test_the_outcome_of_a_search_is_a_sentence(found: Largest, sentence: str) -> None:
    assert outcome("the constant N", found) == sentence


def test_several_gpus_keep_their_verdicts_and_no_cell_is_cut_in_80_columns() -> None:
    # given GPUs with long names and answers that are not sure
    answers = [replace(ANSWER, machine=name, fits=False, sure=False) for name in ("rtx4090", "a100-40gb", "h100-sxm")]

    wide, narrow, tiny = (text_of(rendered("train.py", answers), width) for width in (120, 80, 60))

    for text in (wide, narrow, tiny):
        assert text.count("probably not") == 3
        assert "…" not in text
    assert "Left out" not in wide
    assert "low, high (--json has them)" in narrow
    assert max(len(line) for line in narrow.splitlines()) <= 80


def test_several_ranks_are_rows_of_one_table() -> None:
    text = text_of(rendered("train.py, as one of 1024 ranks", [ANSWER, ANSWER], ranks=[0, 1023]))

    assert text.startswith("train.py, as one of 1024 ranks")
    assert [line.split()[:2] for line in text.splitlines()[1:4]] == [["GPU", "rank"], ["test", "0"], ["test", "1023"]]
