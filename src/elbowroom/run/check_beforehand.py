"""Early refusal of too small a budget: a child process captures the script on a virtual GPU as the training starts.

Note: [Beforehand]
A child process captures the script as `elbowroom estimate` does (overlay, no network, low priority). It plans the trace
with the means of the run. It refuses a budget only if two things hold. The budget is below what a step of the trace
holds however its storages move (planners/budget/floor.py), workspaces not counted. All steps that it saw are alike.

The training checks the refusal before it raises it: its own first forward must save what the capture saved, one storage
after the other. If the capture assumed nothing, `--check` gives the answer before the script starts. A failure in the
child is no answer: the training goes on, and is planned from its own steps.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from elbowroom.capture.script import capture_script
from elbowroom.errors import ElbowroomError, Infeasible
from elbowroom.machine import Machine
from elbowroom.planners.budget.budgets import below_device
from elbowroom.planners.budget.floor import floor_bytes
from elbowroom.planners.budget.remedies import restricted
from elbowroom.planners.budget.run_budget import CourseRequest, course_within, remedied
from elbowroom.planners.request import PlanRequest
from elbowroom.run.options import asked as checked
from elbowroom.trace import Trace
from elbowroom.units import Budget

STEPS = 3
BEHIND = 10
"""Niceness added to a child that works while the training runs; a child that is waited for keeps its own."""
FIRST_KILLED = "1000"
"""Value of oom_score_adj: if memory is short, the system ends the child, and not the training."""
SAID_BY = "\nSo says a capture of the script on a virtual GPU, before the training has shown it."

Saved = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Question to a child: a script, and the budget that it is to fit into.

    Attributes:
        path: path of the script; None if it is a module.
        module: dotted name of the module.
        arguments: its command-line arguments.
        budget_bytes: what the device may hold.
        allow: what a plan may do, "gradient" included.
        min_size_bytes: smaller storages are kept.
        follows: whether `min_size_bytes` follows the budget.
        planner: name of the planner; None for that of runs.
        options: options of the planner.
        alongside: whether the training goes on meanwhile.
    """

    path: str | None
    module: str | None
    arguments: tuple[str, ...]
    budget_bytes: int
    allow: tuple[str, ...]
    min_size_bytes: int
    planner: str | None
    options: Mapping[str, object]
    follows: bool = False
    alongside: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Answer of a child.

    Attributes:
        why: the reason that there is no answer, or that the budget may be met; "" if the budget is refused.
        message: text of the refusal.
        least_feasible_bytes: a budget that is enough, if this one is refused.
        assumed: what was assumed for the script; if anything was, a run has to confirm the answer.
        saved: what the first step saves, and what the last one saves.
    """

    why: str
    message: str = ""
    least_feasible_bytes: int = 0
    assumed: tuple[str, ...] = ()
    saved: tuple[Saved, ...] = ()

    @property
    def refuses(self) -> bool:
        """Whether no plan meets the budget."""
        return not self.why


@final
class Child:
    """Process that looks for an answer, from its creation until `close`."""

    def __init__(self, question: Question, machine: Machine) -> None:
        self._question = question
        self._folder = tempfile.TemporaryDirectory(prefix="elbowroom-check-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        machine.save(folder / "machine.json")
        (folder / "question.json").write_text(json.dumps(asdict(question)), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "elbowroom.run.check_beforehand", str(folder)]
        silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **silent)
        self._verdict: Verdict | None = None
        self.open = True

    def verdict(self) -> Verdict | None:
        """Return the answer, or None while there is none."""
        if self._verdict is None and self.open and self._process.poll() is not None:
            self._verdict = _read(Path(self._folder.name))
        return self._verdict

    def wait(self) -> Verdict:
        """Wait for the answer."""
        self._process.wait()
        return self.verdict() or Verdict(why="its process was ended")

    def confirm(self, saved: Sequence[tuple[int, str]]) -> None:
        """Raise Infeasible if the budget is refused and the step has saved so far what the capture saved.

        Args:
            saved: (bytes, dtype) of each saved storage, at least those of a forward.
        """
        verdict = self.verdict()
        if verdict is None or not verdict.refuses:
            return
        if saved and any(each[: len(saved)] == tuple(saved) for each in verdict.saved):
            raise self.refusal(verdict)

    def refusal(self, verdict: Verdict) -> Infeasible:
        """Return the error to raise."""
        return Infeasible(
            verdict.message + SAID_BY,
            budget_bytes=self._question.budget_bytes,
            least_feasible_bytes=verdict.least_feasible_bytes,
        )

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
    return Verdict(**{**found, "assumed": tuple(found["assumed"]), "saved": saved})


def main(folder: str) -> None:
    """Answer the question in a folder."""
    threading.Thread(target=_end_with_input, args=(folder,), daemon=True).start()
    question = Question(**json.loads(Path(folder, "question.json").read_text("utf-8")))
    _step_back(BEHIND if question.alongside else 0)
    try:
        verdict = _answer(question, Machine.load(Path(folder, "machine.json")))
    except Exception as problem:  # noqa: BLE001  whatever fails here is no answer
        verdict = Verdict(why=str(problem) if isinstance(problem, ElbowroomError) else repr(problem))
    Path(folder, "verdict.json").write_text(json.dumps(asdict(verdict)), encoding="utf-8")


def _end_with_input(folder: str) -> None:
    """End this process when the parent is gone or wants no answer any more; the script's guard ends with it."""
    os.read(0, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _step_back(niceness: int) -> None:
    """Give the training precedence in time and memory."""
    with suppress(OSError):
        os.nice(niceness)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_KILLED, encoding="ascii")


def _answer(question: Question, machine: Machine) -> Verdict:
    trace = capture_script(
        question.path,
        question.arguments,
        machine=machine,
        module=question.module,
        steps=STEPS,
        in_parts=True,
        min_size=question.min_size_bytes,
    )
    return verdict_of(trace, machine, question)


def verdict_of(trace: Trace, machine: Machine, question: Question) -> Verdict:
    """Tell whether no plan for a trace meets a budget. Refuses only if that is sure."""
    kinds = _saved_in_steps(trace, question.min_size_bytes)
    if len(kinds) < STEPS:
        return Verdict(why=f"the script ended after {len(kinds)} steps")
    if len(set(kinds[1:])) > 1:
        return Verdict(why="its steps are not alike")
    shown = restricted(trace, question.allow)
    least_sure_bytes = floor_bytes(shown, 1 if "recompute" in question.allow else question.min_size_bytes)
    if question.budget_bytes >= least_sure_bytes:
        return Verdict(why=f"a step holds {least_sure_bytes} bytes at least, and may fit")
    refused = _refused(trace, shown, machine, question)
    if refused is None:
        return Verdict(why="a plan meets it")
    assumed = tuple(
        each.name for each in trace.remarks if each.kind not in ("not_compared", "workspace_model", "compiled")
    )
    return Verdict(
        why="",
        message=str(refused),
        least_feasible_bytes=refused.least_feasible_bytes,
        assumed=assumed,
        saved=(kinds[0], kinds[-1]),
    )


def _saved_in_steps(trace: Trace, min_size_bytes: int) -> list[Saved]:
    """Return what each step saves, without the storages that are too small for a run to look at."""
    found: list[Saved] = []
    for step in trace.steps:
        storages = (trace.storages[s.storage] for s in trace.saves if step.first_op <= s.saved_at <= step.end_op)
        found.append(tuple((each.size_bytes, each.dtype) for each in storages if each.size_bytes >= min_size_bytes))
    return found


def _refused(trace: Trace, shown: Trace, machine: Machine, question: Question) -> Infeasible | None:
    """Return the refusal of the budget, or None if a plan meets it. `shown` is the trace with what a run may move."""
    budget = below_device(machine, Budget()).on_device(question.budget_bytes)
    request = CourseRequest(trace=shown, machine=machine, budget=budget, asked=_asked(question))
    try:
        course_within(request)
    except Infeasible as problem:
        return remedied(problem, replace(request, trace=trace))
    return None


def _asked(question: Question) -> PlanRequest:
    knobs: Any = {"allow": question.allow, "planner": question.planner, "options": question.options}
    return replace(checked(question.min_size_bytes, knobs, has_plan=False), follows=question.follows)


if __name__ == "__main__":
    main(sys.argv[1])
