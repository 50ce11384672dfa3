"""Plans that a run keeps for the next start of the same training."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from elbowroom.errors import Infeasible
from elbowroom.machine import Machine
from elbowroom.planners.budget import kept_courses, plan_turns
from elbowroom.planners.budget.kept_courses import MOST_FILES, clear, kept_or_planned
from elbowroom.planners.budget.run_budget import Course, CourseRequest
from elbowroom.planners.request import PlanRequest, ResolvedBudget
from elbowroom.trace import Trace
from tests.core.build import chain, machine


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, which is used."""
    monkeypatch.setenv("ELBOWROOM_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("ELBOWROOM_KEEPS_PLANS")
    return tmp_path / "plans"


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[CourseRequest]:
    """The requests that were planned, and not found."""
    found: list[CourseRequest] = []
    plan = kept_courses.course_within

    def course_within(request: CourseRequest) -> Course:
        found.append(request)
        return plan(request)

    monkeypatch.setattr(kept_courses, "course_within", course_within)
    return found


def request_of(
    budget_bytes: int = 200, trace: Trace | None = None, on: Machine | None = None, disk_bytes: int = 10**12
) -> CourseRequest:
    return CourseRequest(
        trace=trace or chain([100, 100, 100]),
        machine=on or machine(),
        budget=ResolvedBudget(device_bytes=budget_bytes, disk_bytes=disk_bytes),
        asked=PlanRequest(allow=("swap",), min_size_bytes=1),
    )


def test_the_next_start_of_a_training_plans_nothing(planned: list[CourseRequest]) -> None:
    # given a plan of a first start
    first = kept_or_planned(request_of())

    # when the same steps took another time in the next one
    again = request_of(trace=chain([100, 100, 100], ns=25))
    second = kept_or_planned(again)

    # then it follows the same plan, of its own trace, and makes none
    assert len(planned) == 1
    assert second.plan == replace(first.plan, trace_id=again.trace.id)
    assert (first.is_kept, second.is_kept) == (False, True)
    assert (second.waiting, second.peak_bytes) == (first.waiting, first.peak_bytes)


@pytest.mark.parametrize(
    "other",
    [
        request_of(trace=chain([100, 100, 101])),
        request_of(trace=chain([100, 100, 100, 100])),
        request_of(on=replace(machine(), name="another")),
        request_of(on=replace(machine(), allocator="")),
        replace(request_of(), asked=PlanRequest(allow=("swap",), min_size_bytes=2)),
        request_of(budget_bytes=199),
        request_of(budget_bytes=300),
    ],
)
def test_what_differs_in_anything_that_a_plan_depends_on_is_planned(
    other: CourseRequest, planned: list[CourseRequest]
) -> None:
    kept_or_planned(request_of())
    with suppress(Infeasible):
        kept_or_planned(other)
    assert len(planned) == 2


def test_a_budget_that_is_a_little_larger_takes_the_plan(planned: list[CourseRequest]) -> None:
    kept_or_planned(request_of(200))
    found = kept_or_planned(request_of(204))
    assert (len(planned), found.plan.budget_bytes, found.peak_bytes) == (1, 204, 200)


def test_a_plan_that_the_tiers_have_no_room_for_is_made_anew(planned: list[CourseRequest]) -> None:
    # given a plan that swaps 100 bytes or more, and a disk of 10 in the next start
    kept_or_planned(request_of())
    with pytest.raises(Infeasible):
        kept_or_planned(request_of(disk_bytes=10))
    assert len(planned) == 2


def test_a_recompute_that_may_not_be_carried_out_now_is_planned_anew(planned: list[CourseRequest]) -> None:
    # given a plan of recomputes alone
    asked = PlanRequest(allow=("recompute",), min_size_bytes=1)
    assert kept_or_planned(replace(request_of(), asked=asked)).plan.recomputes

    # when the calls of the next start cannot carry them out
    with pytest.raises(Infeasible):
        kept_or_planned(replace(request_of(), asked=asked, judge=lambda _: False))
    assert len(planned) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"plan": {}, "waiting": null}', "null", '{"plan": null}'])
def test_a_damaged_file_counts_as_nothing(text: str, folder: Path, planned: list[CourseRequest]) -> None:
    first = kept_or_planned(request_of())
    (file,) = folder.iterdir()
    file.write_text(text)
    assert kept_or_planned(request_of()) == first
    assert len(planned) == 2
    assert kept_or_planned(request_of()).plan == first.plan  # it was replaced
    assert len(planned) == 2


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ELBOWROOM_CACHE_DIR", str(tmp_path / "file"))
    assert kept_or_planned(request_of()).plan.swaps
    assert kept_courses.kept_courses() == []


def test_a_user_without_a_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("ELBOWROOM_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)

    assert kept_or_planned(request_of()).plan.swaps
    with pytest.raises(FileNotFoundError, match="set ELBOWROOM_CACHE_DIR to a folder"):
        clear()


def test_plans_that_were_used_longest_ago_are_deleted_and_all_on_demand(folder: Path) -> None:
    # given as many files as may be kept
    folder.mkdir()
    for number in range(MOST_FILES):
        (folder / f"{number:024x}-100.course.json").write_text("{}")

    kept_or_planned(request_of())

    # then one of them made room
    assert len(kept_courses.kept_courses()) == MOST_FILES
    assert kept_courses.kept_courses()[0].budget_bytes == 200
    assert clear() == MOST_FILES
    assert list(folder.iterdir()) == []


def together(count: int, request: CourseRequest) -> list[Course | Infeasible]:
    """What threads get that ask for the same at a time, as equal ranks do: each opens a lock of its own."""

    begin = Barrier(count)

    def asks(_: int) -> Course | Infeasible:
        begin.wait()
        try:
            return kept_or_planned(request)
        except Infeasible as problem:
            return problem

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(asks, range(count)))


def slow_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have plans take a while, so that all ranks have asked by then."""
    plan = kept_courses.course_within

    def slowly(request: CourseRequest) -> Course:
        time.sleep(0.5)
        return plan(request)

    monkeypatch.setattr(kept_courses, "course_within", slowly)


def test_equal_ranks_plan_once(planned: list[CourseRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    slow_plans(monkeypatch)

    found = together(4, request_of())

    assert len(planned) == 1
    courses = [each for each in found if isinstance(each, Course)]
    assert len(courses) == 4
    assert {each.plan.swaps for each in courses} == {courses[0].plan.swaps}
    assert [each.is_kept for each in courses] == [False] * 4  # no earlier start made it


def test_equal_ranks_are_refused_alike_and_the_next_start_asks_again(
    planned: list[CourseRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_plans(monkeypatch)

    found = together(4, request_of(budget_bytes=90))

    assert len(planned) == 1
    problems = [each for each in found if isinstance(each, Infeasible)]
    assert len(problems) == 4
    assert {str(each) for each in problems} == {str(problems[0])}
    assert {(each.budget_bytes, each.least_feasible_bytes) for each in problems} == {
        (90, problems[0].least_feasible_bytes)
    }
    # and a refusal is of one start only
    with pytest.raises(Infeasible):
        kept_or_planned(request_of(budget_bytes=90))
    assert len(planned) == 2


def test_a_rank_that_dies_in_its_turn_holds_up_nobody(folder: Path, planned: list[CourseRequest]) -> None:
    # given a process that has its turn, and is killed in it
    key = kept_courses._key(request_of())
    code = (
        "import sys, time; from pathlib import Path; from elbowroom.planners.budget.plan_turns import plan_turn\n"
        f"with plan_turn(Path({str(folder.parent / 'turns')!r}), {key!r}):\n"
        "    print('taken', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"taken\n"
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(kept_or_planned, request_of())
            time.sleep(0.2)
            assert not asked.done()
            # when
            process.kill()
            # then
            assert asked.result(timeout=30).plan.moves
    assert len(planned) == 1


def test_a_rank_waits_for_another_ones_plan_for_some_time_only(
    folder: Path, planned: list[CourseRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_turns, "MOST_S", 0.1)
    with plan_turns.plan_turn(folder.parent / "turns", kept_courses._key(request_of())):
        assert kept_or_planned(request_of()).plan.moves
    assert len(planned) == 1


def test_a_child_of_a_fork_does_not_keep_the_turn_of_its_parent(folder: Path) -> None:
    # given a loader's worker that is forked in the turn: it has the lock's file open as long as it lives
    with plan_turns.plan_turn(folder, "ab") as own:
        assert own._file is not None
        kept = os.dup(own._file)
    # then another rank does not wait
    with plan_turns.plan_turn(folder, "ab") as other:
        assert not other.waited
    os.close(kept)


def test_without_locks_each_rank_plans(planned: list[CourseRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_turns, "fcntl", None)
    assert kept_or_planned(request_of()).plan.moves
    assert len(planned) == 1
