"""`elbowroom study`: exit codes, tables, JSON, files, which cases are looked at, and what is refused."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from elbowroom.allocator.settings import VARIABLES
from elbowroom.cli import captures_ahead, main
from elbowroom.cli.study_verb import LADDER
from elbowroom.errors import CaptureError
from elbowroom.machine import Machine
from elbowroom.trace import Trace
from tests.cli.answers import answered, checked
from tests.cli.test_estimate import trace_of

GIB = 2**30


class Captured:
    """Stands in for capture_script: a script holds so many bytes by its value; notes what was captured."""

    def __init__(self, size_bytes: Callable[[int], int]) -> None:
        self.size_bytes = size_bytes
        self.seen: list[tuple[str, int, bool]] = []
        self.kept: set[bool] = set()

    def __call__(
        self,
        _path: str,
        argv: Sequence[str],
        *,
        machine: Machine,
        constants: Mapping[str, int] | None,
        kept: bool,
        in_parts: bool = False,
        **_how: object,
    ) -> Trace:
        value = int([*argv, *(constants or {}).values(), 0][0])
        self.seen.append((machine.name, value, in_parts))
        self.kept.add(kept)
        size_bytes = self.size_bytes(value)
        if not size_bytes:
            raise CaptureError("the script failed")
        return trace_of(size_bytes)


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], int]], Captured]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(captures_ahead, "most_here", lambda: 1)  # one after the other, in the order that is asked for
    for name in ("ELBOWROOM_GPU", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text("batch_size = 8\nimage_size = 64\n")

    def make(size_bytes: Callable[[int], int]) -> Captured:
        found = Captured(size_bytes)
        monkeypatch.setattr(importlib.import_module("elbowroom.capture.script"), "capture_script", found)
        return found

    return make


Make = Callable[[Callable[[int], int]], Captured]


def study(kind: str, *words: str) -> int:
    return main(["study", kind, "train.py", *words])


def test_the_gpus_near_the_need_are_looked_at_and_the_smallest_that_is_enough_is_named(
    captured: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    # 20 GiB: an RTX 4090 has 23.5, an RTX 4080 15.7 and an RTX 4070 11.7. One activation is all, so no plan helps.
    captures = captured(lambda _: 20 * GIB)

    code = study("gpu", "--json")

    found: dict[str, Any] = answered(capsys.readouterr().out, "study")
    assert (code, found["kind"], found["machine"], found["varied"]) == (0, "gpu", None, "GPU")
    assert [each["machine"] for each in found["points"]] == ["rtx4070", "rtx4080", "rtx4090", "l40s", "h200"]
    assert [each["outcome"] for each in found["points"]] == ["no plan", "no plan", "kept", "kept", "kept"]
    assert found["not_looked"] == ["rtx4060", "h100-sxm"]
    assert found["answer"][0].startswith("train.py: the smallest GPU that keeps everything is rtx4090: it needs 20.")
    # each GPU is captured once, kept for the next study; one that is short of memory once more, in parts
    assert captures.kept == {True}
    assert len(captures.seen) == len(set(captures.seen)) == 6
    assert ("rtx4080", 0, True) in captures.seen


def test_gpus_that_are_named_are_all_looked_at_and_a_table_follows_the_answer(
    captured: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    captured(lambda _: 13 * GIB)

    assert study("gpu", "--gpus", "a100-40gb,t4") == 0
    out = capsys.readouterr().out
    assert out.startswith("train.py: the smallest GPU that keeps everything is t4: it needs 13.")
    assert [line.split()[0] for line in re.findall(r"(?m)^(?:t4|a100).*$", out)] == ["t4", "a100-40gb"]
    assert re.search(r"(?m)^t4 +14\.56 GiB .* everything kept .* #+$", out)


def test_no_gpu_that_is_enough_is_exit_code_1(captured: Make, capsys: pytest.CaptureFixture[str]) -> None:
    captured(lambda _: 200 * GIB)

    assert study("gpu") == 1
    assert capsys.readouterr().out.startswith("train.py: no GPU of these is enough. On h200, the largest, no plan")


def test_a_study_of_budgets_looks_at_the_card_at_parts_of_the_need_and_at_more(
    captured: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    captures = captured(lambda _: 20 * GIB)

    code = study("budget", "--gpu", "t4", "--more", "12GiB", "--json")

    found: dict[str, Any] = answered(capsys.readouterr().out, "study")
    own, more = found["own_bytes"], found["more_bytes"]
    assert code == 0
    assert more == own + 12 * GIB
    values = [each["value"] for each in found["points"]]
    assert values == sorted(values)
    assert {own, more} < set(values)
    # all of the need, 75, 50, 35 and 25 % of it, and these two
    assert len(values) == 7
    outside = found["points"][0]["memory_bytes"] - values[0]
    full = found["points"][0]["needed_bytes"] - outside
    assert {int(full * share) for share in (1.0, 0.75, 0.5, 0.35, 0.25)} == set(values) - {own, more}
    assert {each["outcome"] for each in found["points"] if each["value"] < full} == {"no plan"}
    assert f"With {12.0:.2f} GiB more it trains" in found["answer"][1]
    # one capture as it is and one in parts serve all
    assert captures.seen == [("t4", 0, False), ("t4", 0, True)]


def test_budgets_may_be_named(captured: Make, capsys: pytest.CaptureFixture[str]) -> None:
    captured(lambda _: GIB)

    assert study("budget", "--gpu", "t4", "--budgets", "2GiB,3GiB", "--json") == 0
    found = answered(capsys.readouterr().out, "study")
    assert [each["value"] for each in found["points"]] == [2 * GIB, 3 * GIB, found["own_bytes"]]


def test_a_study_of_batches_ends_at_the_first_without_a_plan(
    captured: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    captures = captured(lambda value: 2 * GIB * value)

    code = study("batch", "--gpu", "t4", "--json")

    found: dict[str, Any] = answered(capsys.readouterr().out, "study")
    assert (code, found["varied"]) == (0, "batch_size")
    # 2, 4 and 8 GiB of 14.6, and 16 do not fit
    assert [(each["value"], each["outcome"]) for each in found["points"]] == [
        *((1, "kept"), (2, "kept"), (4, "kept"), (8, "no plan"))
    ]
    assert [value for _, value, in_parts in captures.seen if not in_parts] == [1, 2, 4, 8]


def test_a_value_with_which_the_script_fails_ends_a_study_with_the_reason(
    captured: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    captured(lambda value: GIB * value if value < 4 else 0)

    assert study("batch", "--gpu", "t4", "--vary", "batch_size=1,2,4,8") == 0
    assert "With 4, the script fails: batch_size = 4 on a virtual t4: the script failed." in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_value_that_changes_nothing_is_refused(captured: Make, capsys: pytest.CaptureFixture[str]) -> None:
    captured(lambda _: GIB)

    assert study("batch", "--gpu", "t4", "--vary", "batch_size=1,2") == 2
    assert "the constant batch_size has no effect" in capsys.readouterr().err


def test_a_study_ends_where_a_larger_batch_is_the_same_step(captured: Make, capsys: pytest.CaptureFixture[str]) -> None:
    # given data of 3 samples: batches of 4, 8 and 16 are batches of 3
    made = captured(lambda value: GIB * min(value, 3))

    assert study("batch", "--gpu", "t4", "--vary", "batch_size=1,2,4,8,16", "--json") == 0

    found = answered(capsys.readouterr().out, "study")
    assert [value for _, value, _ in made.seen] == [1, 2, 4, 8]
    assert [point["value"] for point in found["points"]] == [1, 2, 4]
    assert found["early"] == (
        "It ends there: a step with 4 and one with 8 need and take the same. "
        "The data may have fewer samples, also for 4."
    )


def test_a_study_of_resolutions_asks_what_to_vary_with_the_name_that_the_script_has(
    captured: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    captured(lambda value: GIB * value // 64)

    assert study("resolution", "--gpu", "t4") == 2
    assert "the script has image_size; allowed is one; write for example --vary image_size=" in capsys.readouterr().err
    assert study("resolution", "--gpu", "t4", "--vary", "image_size=64..256", "--multiple-of", "64") == 0
    assert "image_size = 256, which needs 4." in " ".join(capsys.readouterr().out.split())


def test_a_study_of_links_compares_gpus_in_the_order_given(captured: Make, capsys: pytest.CaptureFixture[str]) -> None:
    captures = captured(lambda _: 4 * GIB)

    # the one activation is all that a step holds: no plan does with less
    code = study("links", "--gpus", "v100-nvlink,v100-pcie,a100-pcie4,gh200", "--json")

    found: dict[str, Any] = answered(capsys.readouterr().out, "study-links")
    assert code == 1
    names = ["v100-nvlink-power9", "v100-16gb", "a100-pcie-40gb", "gh200"]
    assert [each["machine"] for each in found["links"]] == names
    assert [each["budget_bytes"] * 2 for each in found["links"]] == [each["kept_bytes"] for each in found["links"]]
    assert {each["step_ns"] for each in found["links"]} == {None}
    nvlink, pcie = found["links"][:2]
    assert nvlink["out_bytes_per_s"] > 5 * pcie["out_bytes_per_s"]
    assert all(in_parts for _, _, in_parts in captures.seen)


@pytest.mark.parametrize(("ending", "begins"), [(".html", "<!doctype html>"), (".svg", "<svg "), (".txt", "train.py")])
def test_the_answer_is_written_to_a_file_too(
    captured: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, begins: str
) -> None:
    captured(lambda _: GIB)

    assert study("gpu", "--gpu", "t4", "-o", str(tmp_path / f"a{ending}"), "--json") == 0
    assert (tmp_path / f"a{ending}").read_text("utf-8").startswith(begins)
    answered(capsys.readouterr().out, "study")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpu", "train.py", "-o", "a.pdf"), "allowed are names ending in .html, .svg, .txt, .csv"),
        (("gpu", "nowhere.py"), "study gpu: given 'nowhere.py', which is not there"),
        (("batch", "train.py", "--gpu", "t4,l4"), "given 2 GPUs; allowed is one here"),
        (("gpu", "train.py", "--gpu", "rtx3050-laptop"), "whose rates are not known, so that no step time can be"),
        (("gpu", "train.py", "--planner", "nobody"), "given 'nobody'; allowed is one of keep_all"),
        (("budget", "train.py", "--gpu", "t4", "--more", "much"), "size: given 'much'"),
        (("links", "train.py", "--gpu", "t4", "--slowdown", "0.5"), "slowdown: given 0.5; allowed is a factor of 1"),
        (("budget", "train.py", "--vary", "a=1..2"), "given '--vary', which is no option here"),
        (("bugdet", "train.py"), "study: given 'bugdet'; allowed is one of budget, "),
        (("gpu", "train.py", "--time-limit", "0"), "time_limit_s: given 0.0; allowed is more than 0"),
    ],
)
def test_what_is_not_allowed_is_refused_before_a_capture(
    captured: Make, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    captures = captured(lambda _: GIB)

    assert main(["study", *words]) == 2
    assert said in capsys.readouterr().err
    assert captures.seen == []


def test_an_error_in_json_names_the_verb(captured: Make, capsys: pytest.CaptureFixture[str]) -> None:
    captured(lambda _: 0)

    assert study("gpu", "--gpu", "t4", "--json") == 2
    found = checked(capsys.readouterr().out)
    assert (found["schema"], found["verb"], found["error"]["type"]) == (
        "elbowroom.answer.error",
        "study",
        "CaptureError",
    )


def test_the_list_of_gpus_rises_in_memory() -> None:
    sizes = [Machine.of(name).tiers[0].capacity_bytes for name in LADDER]
    assert sizes == sorted(sizes)
