"""Layouts: which ones are tried, what a script is run with, which is the cheapest, and what no other one beats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from elbowroom.answers.job_layouts import Layouts, Place, layouts_of
from elbowroom.capture.script.layout_knobs import LayoutGrid, grid_of, is_layout
from elbowroom.capture.script.script_knobs import Range
from elbowroom.errors import CaptureError, TimeOver, UsageError
from elbowroom.machine import Machine, Tier
from elbowroom.trace import Trace
from elbowroom.watch import Watch
from tests.core.build import Build, machine

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--tp-size", type=int, default=1)
parser.add_argument("--batch-size", type=int, default=8)
"""
ROOM = replace(machine(), tiers=(Tier(name="device", capacity_bytes=1000), *machine().tiers[1:]))


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def grid(script: str, *varied: str, ranks: int | None = None, arguments: tuple[str, ...] = ()) -> LayoutGrid:
    return grid_of([Range.of(each) for each in varied], script, arguments, ranks)


def trace(size: int, flops: int, ns: int = 100) -> Trace:
    """A step of one op that makes `size` bytes."""
    build = Build()
    build.op(make=size, ns=ns)
    build.ops[-1] = replace(build.ops[-1], flops=flops)
    return build.trace()


def looked_at(needs: dict[int, tuple[int, int]], room: Machine = ROOM, watch: Watch | None = None) -> Layouts:
    """Look at jobs by their ranks, each with the bytes and the nanoseconds of a rank's step; 0 bytes fail."""

    def captured(place: Place) -> list[Trace]:
        size, ns = needs[place["ranks"]]
        if not size:
            raise CaptureError("with 2 ranks: no mesh")
        if size < 0:
            raise TimeOver("over")
        return [trace(size, 7, ns)]

    return layouts_of([{"ranks": ranks} for ranks in needs], lambda place: place["ranks"], captured, room, watch=watch)


def test_ranks_degrees_and_several_names_make_layouts() -> None:
    assert is_layout([Range.of("ranks=1..8")])
    assert is_layout([Range.of("tp=1,2")])
    assert is_layout([Range.of("width=1,2"), Range.of("depth=1,2")])
    assert not is_layout([Range.of("batch_size=1..8")])
    assert not is_layout([Range.of("env:ranks=1..8")]), "a variable of the script of that name"


def test_a_range_of_ranks_is_doubled_up_to_its_end(script: str) -> None:
    assert [place["ranks"] for place in grid(script, "ranks=2..24").places()] == [2, 4, 8, 16, 24]
    assert [place["ranks"] for place in grid(script, "ranks=0..4").places()] == [1, 2, 4]


def test_layouts_whose_degrees_do_not_divide_the_ranks_are_left_out(script: str) -> None:
    found = grid(script, "ranks=4,8", "tp=1,3,4")

    assert found.places() == [
        {"ranks": 4, "tp": 1},
        {"ranks": 4, "tp": 4},
        {"ranks": 8, "tp": 1},
        {"ranks": 8, "tp": 4},
    ]
    assert found.left_out == 2


def test_a_script_may_have_another_name_for_a_degree_and_for_the_batch(script: str) -> None:
    found = grid(script, "tp=2,4", "micro_batch=1..64", ranks=8)

    turned = found.turned(("--batch-size", "5"), {"tp": 4, "micro_batch": 16})

    assert turned.arguments == ("--batch-size", "5", "--tp-size", "4", "--batch-size", "16")
    assert found.span == ("micro_batch", 1, 64)
    assert found.how == (
        "tp is the argument --tp-size",
        "micro_batch is the argument --batch-size",
    )


def test_data_parallelism_that_a_script_does_not_name_sets_the_size_of_the_job(script: str) -> None:
    varied, given = grid(script, "dp=2,4", "tp=1,2"), grid(script, "dp=2,4", arguments=("--tp-size", "4"))

    # 2 and 4 ranks for each rank of a tensor
    assert [varied.ranks_of(place) for place in varied.places()] == [2, 4, 4, 8]
    assert [given.ranks_of(place) for place in given.places()] == [8, 16]
    assert given.job(-1, {"dp": 4}).environment()["RANK"] == "15"


@pytest.mark.parametrize(
    ("varied", "ranks", "said"),
    [
        (("tp=1,2",), None, "given layouts without the size of the job; allowed is it as --ranks N or"),
        (("ranks=1,2",), 4, "--ranks: given 4, and --vary has ranks too"),
        (("dp=1,2",), 4, "given dp and the ranks, and the script has no name for dp"),
        (("ranks=1,2", "ranks=4,8"), None, "given ranks twice; allowed is each name once"),
        (("ranks=0,4",), None, "given ranks = 0; allowed is 1 or more"),
        (("ranks=1,2", "pp=1,2"), None, "has no word for it, such as pp, pp_size, pp_degree"),
        (("ranks=2,4", "batch_size=1..2", "micro_batch=1..2"), None, "given 2 ranges, batch_size and micro_batch"),
        (("ranks=3,5", "tp=2,4"), None, "given 4 layouts, and their degrees never divide the ranks"),
        (("ranks=12,24",), None, "--local: given 8 of 12 ranks; allowed is a divisor of 12"),
        (("ranks=1..65536", "batch_size=" + ",".join(map(str, range(1, 20)))), None, "given 323 layouts; allowed"),
    ],
)
def test_layouts_that_cannot_be_are_refused_before_anything_is_captured(
    script: str, varied: tuple[str, ...], ranks: int | None, said: str
) -> None:
    with pytest.raises(UsageError) as problem:
        grid(script, *varied, ranks=ranks).places()

    assert said in str(problem.value)


def test_the_cheapest_layout_is_the_fastest_for_equal_work_on_the_fewest_gpus() -> None:
    # 4 ranks do twice the work of 2 in a step; 2 ranks do not fit 1,000 bytes
    found = looked_at({2: (1200, 100), 4: (900, 100), 8: (500, 120)})

    assert [each.fits for each in found.layouts] == [False, True, True]
    assert found.cheapest is found.layouts[1]
    # for the 28 FLOPs of 4 ranks: 100 ns on 4 GPUs, 60 ns on 8
    assert [found.equal_work_ns(each) for each in found.layouts[1:]] == [100, 60]
    assert found.least_gpu_time is found.layouts[1]
    assert found.front == found.layouts[1:]


def test_a_layout_that_another_one_beats_is_not_on_the_front() -> None:
    # 8 ranks need more memory than 4, and more than twice the time of 4 ranks for a step
    found = looked_at({4: (500, 100), 8: (600, 210)})

    assert found.front == found.layouts[:1]


def test_a_layout_in_which_the_script_fails_is_said_and_the_others_go_on() -> None:
    found = looked_at({2: (0, 0), 4: (900, 100)})

    assert (found.layouts[0].answer, found.layouts[0].problem) == (None, "with 2 ranks: no mesh")
    assert found.cheapest is found.layouts[1]


def test_a_script_that_fails_in_every_layout_is_an_error_with_its_reason() -> None:
    with pytest.raises(CaptureError, match="fails in each of 2 layouts; the first one with 2 ranks: no mesh"):
        looked_at({2: (0, 0), 4: (0, 0)})


def test_a_search_that_is_ended_early_says_how_many_layouts_it_looked_at() -> None:
    found = looked_at({2: (900, 100), 4: (-1, 0)}, watch=Watch(limit_s=60))

    assert [each.ranks for each in found.layouts] == [2]
    assert found.early == "stopped after 60 s: 1 of 2 layouts were looked at"


def test_each_layout_has_the_largest_batch_that_fits_it() -> None:
    # 2 ranks: 100 bytes a sample; 4 ranks: 60
    per_sample = {2: 100, 4: 60}

    def captured(place: Place) -> list[Trace]:
        return [trace(per_sample[place["ranks"]] * place["batch"], place["batch"])]

    places = [{"ranks": ranks} for ranks in per_sample]
    found = layouts_of(places, lambda place: place["ranks"], captured, ROOM, searched=("batch", 1, 64))

    assert [dict(each.values)["batch"] for each in found.layouts] == [10, 16]
    assert [each.work_flops for each in found.layouts] == [20, 64]


def test_no_layout_that_fits_leaves_none_cheapest() -> None:
    found = looked_at({2: (2000, 100), 4: (1500, 100)})

    assert (found.cheapest, found.least_gpu_time, found.front) == (None, None, ())
