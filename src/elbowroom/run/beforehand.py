"""Plan before the first step: a child process captures the script on a virtual GPU, and plans from that.

Note: [Beforehand]
A child process captures the script as `elbowroom estimate` does (overlay, no network). It plans the trace with the
means of the run, recomputes left out: these need the calls of a real step. The training waits for it, and begins with
that plan. So no step has to be observed, which may need more than the budget. A plan follows a step by the sizes and
types of what autograd saves. If a step saves something else, the rest of it is swapped as without a plan.

How much workspace cuDNN takes is a model in a capture. If no plan meets the budget with it, plans are made without it:
torch takes an algorithm that needs less where there is no room (Conv_v8.cpp).

Where the training is on the CPU, RAM is the device that is captured: Note: [RAM as the device] in
capture/virtual/ops/ram_ops.py. What ops take there besides their results is a bound. Below a hard limit the first step
measures it, and follows no plan. So the limit only refuses what the storages alone do not fit into. The least that is
named counts the bound, so that the first steps do not refuse it.

If no plan meets an `auto` budget, and the device has room to keep everything, all is kept: so the script may train as
without a budget. If it has none, and the capture assumed nothing, the run is refused before the script starts. If it
assumed something, the first forward has to save what the capture saved, one storage after the other. A failure in the
child is no answer: the training starts, and is planned from its own steps.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate, product
from pathlib import Path
from typing import Any, final

from elbowroom.capture.script.script import capture_in_ram, capture_script
from elbowroom.capture.steady import as_run
from elbowroom.engine.ram_guard import RamGuard
from elbowroom.errors import ElbowroomError, Infeasible, again
from elbowroom.files.cache_folder import is_used
from elbowroom.hardware.ram import hard_limits
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.planners.budget.budgets import below_device
from elbowroom.planners.budget.kept_courses import kept_or_planned
from elbowroom.planners.budget.remedies import restricted
from elbowroom.planners.budget.run_budget import (
    Course,
    CourseRequest,
    keeping_within,
    least_allocated,
    remedied,
)
from elbowroom.planners.request import PlanRequest
from elbowroom.run.options import asked as checked
from elbowroom.step.states_of_others import without_others
from elbowroom.step.workspaces import without_workspaces
from elbowroom.trace import Save, Trace
from elbowroom.units import Budget, format_bytes, format_exact_bytes

STEPS = 3
PATIENCE_S = 180.0
"""Seconds that a training waits for its plan. Then it starts without one; a refusal may still come."""
BEHIND = 10
"""Niceness that a child gets when the training no longer waits for it."""
FIRST_KILLED = "1000"
"""Value of oom_score_adj: if memory is short, the system ends the child, and not the training."""
OP_BYTES = 4096
"""Bytes that the records of an op take in an observed step: notes, handles, the profiler's events."""
MAY_DO = "What ops take besides their results is a bound here: {} may be enough, which the first steps show."
WEIGHTS = (
    "\nParameters take {} of it. They may move too, on trial, and then less is enough: --allow "
    "swap,recompute,state,gradient,parameter."
)
"""Said where parameters are at least a third of the least budget, so that a smaller batch helps little."""
SAID_BY = "\nSo says a capture of the script without its numbers, before the training has shown it."

Saved = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Question to a child: a script, and the budget that it is to fit into.

    Attributes:
        path: path of the script; None if it is a module.
        module: dotted name of the module.
        arguments: its command-line arguments.
        budget_bytes: what the device may hold.
        free_bytes: bytes of the device from which an `auto` budget was made; 0 for any other.
        allow: what a plan may do, "gradient" included.
        min_size_bytes: smaller storages are kept.
        follows: whether `min_size_bytes` follows the budget.
        planner: name of the planner; None for that of runs.
        options: options of the planner.
        allocators: settings that the allocator may get if no plan meets the budget with the machine's.
        measures_first: whether the first step measures what is left, and so follows no plan.
    """

    path: str | None
    module: str | None
    arguments: tuple[str, ...]
    budget_bytes: int
    allow: tuple[str, ...]
    min_size_bytes: int
    planner: str | None
    options: Mapping[str, object]
    free_bytes: int = 0
    follows: bool = False
    allocators: tuple[str, ...] = ()
    measures_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Answer of a child.

    Attributes:
        why: the reason that there is no plan and no refusal; "" otherwise.
        message: text of the refusal.
        least_feasible_bytes: a budget that is enough, if this one is refused. Below a hard limit, if it is not: the
            least that may be, with the records of a first step.
        assumed: what was assumed for the script; if anything was, a run has to confirm the answer.
        sure: whether a refusal holds without a step that confirms it.
        saved: what the first step saves, and what the last one saves.
        in_forward: how many of these are saved before the first read back.
        course: how to follow the plan; None if there is none.
        trace: the trace that it was made for.
        allocator: settings of the allocator that it was made for.
    """

    why: str
    message: str = ""
    least_feasible_bytes: int = 0
    assumed: tuple[str, ...] = ()
    sure: bool = False
    saved: tuple[Saved, ...] = ()
    in_forward: tuple[int, ...] = ()
    course: Course | None = None
    trace: Trace | None = None
    allocator: str = ""

    @property
    def refuses(self) -> bool:
        """Whether no plan meets the budget."""
        return not self.why and self.course is None


@final
class Child:
    """Process that looks for an answer, from its creation until `close`."""

    def __init__(self, question: Question, machine: Machine) -> None:
        self._question = question
        self._folder = tempfile.TemporaryDirectory(prefix="elbowroom-check-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        machine.save(folder / "machine.json")
        (folder / "question.json").write_text(json.dumps(asdict(question)), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "elbowroom.run.beforehand", str(folder)]
        silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **silent)
        self._verdict: Verdict | None = None
        self.open = True

    def verdict(self) -> Verdict | None:
        """Return the answer, or None while there is none."""
        if self._verdict is None and self.open and self._process.poll() is not None:
            self._verdict = _read(Path(self._folder.name))
        return self._verdict

    def wait(self, *, patient: bool = True) -> Verdict:
        """Wait for the answer. If that takes too long, and unless `patient`, the child goes on behind the training."""
        try:
            self._process.wait(None if patient else PATIENCE_S)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0) + BEHIND)
            return Verdict(why=f"its capture takes more than {PATIENCE_S:.0f} s")
        return self.verdict() or Verdict(why="its process was ended")

    def confirm(
        self, saved: Sequence[tuple[int, str]], explained: Callable[[Infeasible], Infeasible] | None = None
    ) -> None:
        """Raise Infeasible if the budget is refused and the step has saved so far what the capture saved.

        Args:
            saved: (bytes, dtype) of each saved storage, those of a whole forward at least.
            explained: adds to the refusal what the run knows of its limits.
        """
        verdict = self.verdict()
        if verdict is None or not verdict.refuses:
            return
        for count, expected in zip(verdict.in_forward, verdict.saved, strict=True):
            if saved and len(saved) >= count and expected[: len(saved)] == tuple(saved):
                found = self.refusal(verdict)
                raise found if explained is None else explained(found)

    def refusal(self, verdict: Verdict) -> Infeasible:
        """Return the error to raise."""
        return Infeasible(
            verdict.message + SAID_BY,
            budget_bytes=self._question.budget_bytes,
            least_feasible_bytes=verdict.least_feasible_bytes,
        )

    def with_least(self, found: Infeasible) -> Infeasible:
        """Return the refusal of a training that ran out of memory, with the least budget that the capture names."""
        verdict = self.verdict()
        if verdict is None or not verdict.refuses:
            return found
        return found.reworded(
            f"{found}\nA capture of the script without its numbers says that its steps need a budget of "
            f"{format_exact_bytes(verdict.least_feasible_bytes)}.",
            least_feasible_bytes=max(found.least_feasible_bytes, verdict.least_feasible_bytes),
        )

    def least_bytes(self) -> int:
        """Return the least budget that steps may need, as the capture says; 0 if it does not say."""
        verdict = self.verdict()
        return 0 if verdict is None else verdict.least_feasible_bytes

    def close(self) -> None:
        """End the process without an answer. It ends with its standard input, and so does all that it started."""
        if not self.open:
            return
        self.open = False
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def _read(folder: Path) -> Verdict:
    try:
        found: dict[str, Any] = json.loads((folder / "verdict.json").read_text("utf-8"))
    except (OSError, ValueError):
        return Verdict(why="its process ended without a word")
    saved = tuple(tuple((int(size), str(dtype)) for size, dtype in each) for each in found.pop("saved"))
    in_forward = tuple(found.pop("in_forward"))
    followed = found.pop("course")
    verdict = Verdict(**{**found, "assumed": tuple(found["assumed"]), "saved": saved, "in_forward": in_forward})
    if followed is None:
        return verdict
    waits = followed.pop("waiting")
    waiting = None if waits is None else {int(position): count for position, count in waits.items()}
    course = Course(plan=Plan.load(folder / "plan.json"), waiting=waiting, **followed)
    return replace(verdict, course=course, trace=Trace.load(folder / "trace.json"))


def _write(folder: Path, verdict: Verdict) -> None:
    """Write an answer; its plan and trace go to files of their own."""
    found = {each.name: getattr(verdict, each.name) for each in fields(verdict)}
    course, trace = found.pop("course"), found.pop("trace")
    found["course"] = None
    if course is not None and trace is not None:
        course.plan.save(folder / "plan.json")
        trace.save(folder / "trace.json")
        followed = ("peak_bytes", "begins_bytes", "at_limit")
        waiting = None if course.waiting is None else dict(course.waiting)
        found["course"] = {"waiting": waiting, **{name: getattr(course, name) for name in followed}}
    (folder / "verdict.json").write_text(json.dumps(found), encoding="utf-8")


def main(folder: str) -> None:
    """Answer the question in a folder."""
    threading.Thread(target=_end_with_input, args=(folder,), daemon=True).start()
    question = Question(**json.loads(Path(folder, "question.json").read_text("utf-8")))
    with suppress(OSError):  # if memory is short, the training goes on
        Path("/proc/self/oom_score_adj").write_text(FIRST_KILLED, encoding="ascii")
    try:
        verdict = answer(question, Machine.load(Path(folder, "machine.json")))
    except Exception as problem:  # noqa: BLE001  whatever fails here is no answer
        verdict = Verdict(why=str(problem) if isinstance(problem, ElbowroomError) else repr(problem))
    _write(Path(folder), verdict)


def _end_with_input(folder: str) -> None:
    """End this process when the parent is gone or wants no answer any more; the script's guard ends with it."""
    os.read(0, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def answer(question: Question, machine: Machine) -> Verdict:
    """Capture the script, and plan it."""
    how: Any = {
        "machine": machine,
        "module": question.module,
        "steps": STEPS,
        "min_size": question.min_size_bytes,
        "kept": is_used(),
    }
    if machine.compute_capability:
        trace = capture_script(question.path, question.arguments, in_parts=True, **how)
    else:
        RamGuard(hard_limits()).stand(alone=True)
        trace = capture_in_ram(question.path, question.arguments, **how)
    return verdict_of(trace, machine, question)


def verdict_of(trace: Trace, machine: Machine, question: Question) -> Verdict:
    """Plan a captured trace for the budget; refuse the budget if no plan meets it."""
    steps = _large_saves(trace, question.min_size_bytes)
    kinds = [_sizes(trace, saves) for saves in steps]
    shown = without_others(restricted(as_run(trace, question.min_size_bytes), question.allow))
    if len(kinds) < STEPS or len(set(kinds[1:])) > 1:
        why = "its steps are not alike"
        if len(kinds) < STEPS:
            why = f"its capture ended after {len(kinds)} step{'s' if len(kinds) != 1 else ''}"
        return Verdict(why=why, least_feasible_bytes=_least(shown, machine, question))
    assumed = tuple(
        each.name for each in trace.remarks if each.kind not in ("not_compared", "workspace_model", "compiled")
    )
    verdict = Verdict(
        why="",
        assumed=assumed,
        sure=not assumed and bool(machine.compute_capability),  # each op was compared with those of a GPU
        saved=(kinds[0], kinds[-1]),
        in_forward=(_saved_in_forward(steps[0]), _saved_in_forward(steps[-1])),
    )
    return _planned(verdict, trace, shown, machine, question)


def _least(shown: Trace, machine: Machine, question: Question) -> int:
    """Return the least budget that steps may need below a hard limit, the bounds of what ops take included.

    What a first step records of its ops counts too. Without a limit the result is 0: a run knows by itself.
    """
    if not question.measures_first:
        return 0
    most_ops = max((step.end_op - step.first_op for step in shown.steps), default=0)
    return least_allocated(_request(shown, machine, question)) + OP_BYTES * most_ops


def _planned(verdict: Verdict, trace: Trace, shown: Trace, machine: Machine, question: Question) -> Verdict:
    """Return the verdict on a trace with a plan, a refusal, or the reason that there is neither.

    `shown` is the trace as a run of it shows it, with the means that are allowed.
    """
    tried = [shown] if without_workspaces(shown) == shown else [shown, without_workspaces(shown)]
    if question.measures_first and least_allocated(_request(tried[-1], machine, question)) <= question.budget_bytes:
        why = "its first step measures what the limit leaves, and follows no plan"
        return Verdict(why=why, least_feasible_bytes=_least(shown, machine, question))
    refused = list[tuple[Infeasible, CourseRequest]]()
    for each, allocator in product(tried, (machine.allocator, *question.allocators)):
        request = _request(each, replace(machine, allocator=allocator), question)
        try:
            course = kept_or_planned(request)
            if question.measures_first or (refused and allocator == "exact"):
                return Verdict(why="what its ops need besides their results may not fit, which a step has to show")
            return replace(verdict, course=course, trace=each, allocator=allocator)
        except Infeasible as problem:
            refused.append((again(problem), request))
    if "recompute" in question.allow and "swap" not in question.allow:
        return Verdict(why="what its recomputes save is known after a step has shown its calls")
    for _, request in refused if question.free_bytes else ():
        kept = keeping_within(request.trace, request.machine, question.free_bytes)
        if kept is not None:  # as without a budget, in the margin that `auto` leaves
            return replace(verdict, course=kept, trace=request.trace, allocator=request.machine.allocator)
    on_cpu = machine.allocator == "exact"
    problem, request = (max if on_cpu else min)(refused, key=lambda each: each[0].least_feasible_bytes)
    found = remedied(problem, replace(request, trace=trace if on_cpu else without_workspaces(trace)))
    least_bytes = min(each.least_feasible_bytes for each, _ in refused)
    if on_cpu and least_bytes < problem.least_feasible_bytes:
        found = found.reworded(f"{found}\n{MAY_DO.format(format_exact_bytes(least_bytes))}")
    message = f"{found}{_of_parameters(trace, found.least_feasible_bytes)}"
    return replace(verdict, message=message, least_feasible_bytes=found.least_feasible_bytes)


def _of_parameters(trace: Trace, least_bytes: int) -> str:
    """Return a line on parameters, if they are much of the least budget; "" otherwise."""
    of_parameters = (each for each in trace.events if trace.storages[each.storage].category == "parameter")
    size_bytes = max(accumulate(each.size_bytes for each in of_parameters), default=0)
    return WEIGHTS.format(format_bytes(size_bytes)) if 3 * size_bytes >= least_bytes else ""


def _large_saves(trace: Trace, min_size_bytes: int) -> list[list[Save]]:
    """Return what each step saves, without the storages that are too small for a run to look at."""
    large = [save for save in trace.saves if trace.storages[save.storage].size_bytes >= min_size_bytes]
    return [[save for save in large if step.first_op <= save.saved_at < step.end_op] for step in trace.steps]


def _sizes(trace: Trace, saves: Sequence[Save]) -> Saved:
    storages = [trace.storages[save.storage] for save in saves]
    return tuple((each.size_bytes, each.dtype) for each in storages)


def _saved_in_forward(saves: Sequence[Save]) -> int:
    """Return how many of a step's storages are saved before the first one is read back."""
    read_at = min((save.read_at[0] for save in saves if save.read_at), default=None)
    return sum(read_at is None or save.saved_at < read_at for save in saves)


def _request(trace: Trace, machine: Machine, question: Question) -> CourseRequest:
    """Return the request for a plan that the first step can follow."""
    budget = below_device(machine, Budget()).on_device(question.budget_bytes)
    budget = replace(budget, free_bytes=question.free_bytes)
    on_gpu = machine.allocator != "exact"
    found = CourseRequest(trace=trace, machine=machine, budget=budget, asked=_asked(question), from_first=on_gpu)
    found = found.without("recompute")
    return found if trace.parts else found.without("state", "gradient")


def _asked(question: Question) -> PlanRequest:
    knobs: Any = {"allow": question.allow, "planner": question.planner, "options": question.options}
    return replace(checked(question.min_size_bytes, knobs, has_plan=False), follows=question.follows)


if __name__ == "__main__":
    main(sys.argv[1])
