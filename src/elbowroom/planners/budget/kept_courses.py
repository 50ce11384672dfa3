"""Kept courses: plans of runs in the user's cache folder, for the next start of the same training.

A file is found by what its plan depends on: the structure of the recorded step (ops, storages, events, saves, without
times), the allocator, the means and sizes asked for, and the versions of elbowroom and torch. So a training that
changes finds nothing. The budget may be a little larger than the one that the plan was made for. What is found is
checked as any plan is, and counts as nothing if it may not run. Writing is best effort: a full disk is no error here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from elbowroom.errors import ElbowroomError, Infeasible
from elbowroom.files.cache_folder import cache_folder, is_used
from elbowroom.files.record_files import decode, encode, write_whole
from elbowroom.plan import Plan
from elbowroom.planners.budget.budgets import held_to
from elbowroom.planners.budget.plan_turns import PlanTurn, plan_turn
from elbowroom.planners.budget.run_budget import Course, CourseRequest, course_within
from elbowroom.step.check import check
from elbowroom.trace import Trace
from elbowroom.version import installed_version

FORMAT = 2
"""Version of the files; others are not looked at."""
NEAR_SHARE = 0.97
"""A plan for at least this share of the budget is good enough."""
MOST_FILES = 200
"""With more files, those that were used longest ago are deleted."""
SUFFIX = ".course.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCourse:
    """One kept plan.

    Attributes:
        path: its file.
        size_bytes: bytes of the file.
        budget_bytes: the budget that it was made for.
        used_s: when it was made or used last, in seconds since 1970.
    """

    path: Path
    size_bytes: int
    budget_bytes: int
    used_s: float


def kept_or_planned(request: CourseRequest) -> Course:
    """Return a course of an earlier start, or else as `course_within` does; that one is kept.

    Equal ranks of a job plan once: see plan_turns.py.

    Raises:
        Infeasible: no plan that was tried is within the budget.
    """
    if not is_used():
        return course_within(request)
    key = _key(request)
    found = _find(key, request)
    if found is not None:
        return found
    with _turn(key) as own:
        found = _find(key, request)
        if found is not None:
            return replace(found, is_kept=not own.waited)
        refused = own.refusal(request.budget.device_bytes)
        if refused is not None:
            raise refused
        return _planned(own, key, request)


def _turn(key: str) -> AbstractContextManager[PlanTurn]:
    try:
        return plan_turn(cache_folder() / "turns", key)
    except OSError:  # no cache folder
        return nullcontext(PlanTurn(key))


def _planned(own: PlanTurn, key: str, request: CourseRequest) -> Course:
    """Plan in this process's turn, and keep the course. Raises Infeasible, which is written down."""
    try:
        found = course_within(request)
    except Infeasible as problem:
        own.refuses(problem, request.budget.device_bytes)
        raise
    if found.plan.moves:
        _keep(key, request, found)
    return found


def kept_courses() -> list[KeptCourse]:
    """Return what is kept, the one used last first.

    Raises:
        OSError: there is no cache folder.
    """
    return sorted(_entries("*"), key=lambda each: -each.used_s)


def clear() -> int:
    """Delete all kept plans. Returns their number.

    Raises:
        OSError: there is no cache folder, or files in it cannot be deleted.
    """
    found = _entries("*")
    _delete(found)
    return len(found)


def _folder() -> Path:
    return cache_folder() / "plans"


def _entries(pattern: str) -> list[KeptCourse]:
    """Return what is kept under names of a pattern."""
    return [each for each in map(_entry, _folder().glob(f"{pattern}{SUFFIX}")) if each is not None]


def _entry(path: Path) -> KeptCourse | None:
    """Return what the name of a file and its times say; None if it is another file, or gone."""
    budget = path.name.removesuffix(SUFFIX).rpartition("-")[2]
    with suppress(OSError):
        stat = path.stat()
        if budget.isdecimal():
            return KeptCourse(path=path, size_bytes=stat.st_size, budget_bytes=int(budget), used_s=stat.st_mtime)
    return None


def _key(request: CourseRequest) -> str:
    """Return what a plan of a request depends on, but for the budget."""
    asked, machine = request.asked, request.machine
    asks = (
        FORMAT,
        installed_version(),
        request.trace.torch_version,
        request.trace.device,
        machine.name,
        machine.compute_capability,
        machine.allocator,
        [tier.name for tier in machine.tiers],
        request.from_first,
        asked.allow,
        asked.min_size_bytes,
        asked.planner,
        sorted(asked.options.items()),
        asked.include,
        asked.exclude,
        asked.managed_bytes,
    )
    digest = hashlib.sha256(repr(asks).encode())
    for part in _structure(request.trace):
        digest.update(repr(part).encode())
    return digest.hexdigest()[:24]


def _structure(trace: Trace) -> Iterator[object]:
    """Yield what a trace says, times and names of modules left out."""
    yield [(op.name, op.phase, op.reads, op.writes, [c.name for c in op.choices]) for op in trace.ops]
    yield [(each.size_bytes, each.category) for each in trace.storages]
    yield [tuple(each) for each in trace.events]
    yield [(each.storage, each.saved_at, each.idle_from, each.read_at) for each in trace.saves]
    yield trace.steps, trace.parts, trace.workspaces, trace.empties, trace.streams


def _find(key: str, request: CourseRequest) -> Course | None:
    """Return a kept course that may run within the budget, that of the largest budget first."""
    most_bytes, entries = request.budget.device_bytes, list[KeptCourse]()
    with suppress(OSError):
        entries = _entries(f"{key}-*")
    near = [each for each in entries if NEAR_SHARE * most_bytes <= each.budget_bytes <= most_bytes]
    for each in sorted(near, key=lambda entry: -entry.budget_bytes):
        found = _read(each.path, request)
        if found is not None:
            with suppress(OSError):
                os.utime(each.path)
            return found
    return None


def _read(path: Path, request: CourseRequest) -> Course | None:
    """Return the course of a file; None if it is damaged or may not run."""
    try:
        content = cast("dict[str, Any]", json.loads(path.read_text("utf-8")))
        waiting = content["waiting"]
        made = decode(json.dumps(content["plan"]).encode(), Plan)
        found = Course(
            plan=replace(made, trace_id=request.trace.id, budget_bytes=request.budget.device_bytes, bound=None),
            waiting=None if waiting is None else {int(position): int(count) for position, count in waiting.items()},
            peak_bytes=int(content["peak_bytes"]),
            begins_bytes=int(content["begins_bytes"]),
            at_limit=bool(content["at_limit"]),
            is_kept=True,
        )
        check(request.trace, found.plan, held_to(request.machine, request.budget))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ElbowroomError):
        return None
    fits = found.peak_bytes <= request.budget.device_bytes
    return found if fits and all(map(request.judge, found.plan.recomputes)) else None


def _keep(key: str, request: CourseRequest, course: Course) -> None:
    """Write a course to the cache folder, and delete what was used longest ago."""
    content = {
        "plan": json.loads(encode(course.plan)),
        "waiting": None if course.waiting is None else {str(at): count for at, count in course.waiting.items()},
        "peak_bytes": course.peak_bytes,
        "begins_bytes": course.begins_bytes,
        "at_limit": course.at_limit,
    }
    with suppress(OSError):
        path = _folder() / f"{key}-{request.budget.device_bytes}{SUFFIX}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(json.dumps(content).encode(), path)
        _delete(kept_courses()[MOST_FILES:])


def _delete(entries: Sequence[KeptCourse]) -> None:
    for each in entries:
        each.path.unlink(missing_ok=True)
