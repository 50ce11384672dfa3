"""An answer to too small a budget before a step has ended, from a capture of the script on a virtual GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import elbowroom as er
from elbowroom.capture.script import capture_script
from elbowroom.capture.steady import as_run
from elbowroom.run import beforehand
from elbowroom.run.beforehand import Child, Question, Verdict, verdict_of
from elbowroom.run.room import run_of
from elbowroom.step.last_step import last_step
from elbowroom.trace import Remark
from tests.fakecuda.within_models import MODELS

pytestmark = pytest.mark.long

MIB = 2**20
GPU = er.Machine.of("a100-40gb")
QUESTION = Question(
    path="train.py",
    module=None,
    arguments=(),
    budget_bytes=MIB,
    allow=("swap", "state"),
    min_size_bytes=MIB,
    planner=None,
    options={},
)

# Two outputs of 32 MiB are there in every forward: the second layer's, and what it is made of.
SCRIPT = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    loss = model(torch.zeros({rows}, 1024, device="cuda")).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def trace_of(model: str) -> er.Trace:
    torch.manual_seed(0)
    return er.capture(MODELS[model], machine=GPU, steps=3, in_parts=True)


def answered(folder: Path, text: str, budget_bytes: int) -> tuple[Child, Verdict]:
    path = folder / "train.py"
    path.write_text(text)
    child = Child(replace(QUESTION, path=str(path), budget_bytes=budget_bytes), GPU)
    try:
        return child, child.wait()
    finally:
        child.close()


def test_a_script_that_cannot_fit_is_refused_with_a_budget_that_is_enough(tmp_path: Path) -> None:
    # given
    script = SCRIPT.format(steps=9, rows="8192")
    # when
    child, verdict = answered(tmp_path, script, 8 * MIB)
    # then the least is at least what one layer reads and makes
    assert verdict.refuses, verdict.why
    assert verdict.assumed == ()
    assert verdict.least_feasible_bytes > 64 * MIB
    assert "budget: given 8.0 MiB" in str(child.refusal(verdict))
    assert str(child.refusal(verdict)).endswith("before the training has shown it.")
    # and the budget that it names is refused by nobody
    assert not answered(tmp_path, script, verdict.least_feasible_bytes)[1].refuses
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SCRIPT.format(steps=2, rows="8192"), "its capture ended after 2 steps"),
        (SCRIPT.format(steps=9, rows="8192 - 1024 * step"), "its steps are not alike"),
        ("raise SystemExit(3)", "the script exited with code 3"),
    ],
)
def test_what_is_not_sure_is_no_refusal(tmp_path: Path, text: str, why: str) -> None:
    verdict = answered(tmp_path, text, 8 * MIB)[1]
    assert not verdict.refuses
    assert why in verdict.why


def test_values_of_the_network_that_a_script_reads_are_said() -> None:
    trace = trace_of("perceptron")
    remark = Remark(kind="assumed_value", name="aten.item", count=3)
    assert verdict_of(replace(trace, remarks=(remark,)), GPU, QUESTION).assumed == ("aten.item",)


@pytest.mark.parametrize("allow", [("swap",), ("swap", "state"), ("swap", "recompute", "state")])
def test_no_budget_that_a_plan_meets_is_refused(allow: tuple[str, ...]) -> None:
    # given the least budget that is named for less
    trace = trace_of("language model of two blocks")
    asked = replace(QUESTION, allow=allow)
    refused = verdict_of(trace, GPU, asked)
    assert refused.refuses, refused.why
    # then
    verdict = verdict_of(trace, GPU, replace(asked, budget_bytes=refused.least_feasible_bytes))
    assert not verdict.refuses


@pytest.mark.parametrize(("model", "is_said"), [("wide layers", True), ("many rows first", False)])
def test_a_refusal_says_that_parameters_may_move_where_they_are_much_of_the_least(model: str, is_said: bool) -> None:
    # given a budget that nothing meets
    trace = trace_of(model)
    parameters_bytes = sum(each.size_bytes for each in trace.storages if each.category == "parameter")
    # when
    refused = verdict_of(trace, GPU, QUESTION)
    # then
    assert (3 * parameters_bytes >= refused.least_feasible_bytes) is is_said
    assert ("--allow swap,recompute,state,gradient,parameter" in refused.message) is is_said


def test_gradients_count_as_movable_only_where_they_may_move() -> None:
    trace = trace_of("many rows first")
    kept = verdict_of(trace, GPU, QUESTION)
    moved = verdict_of(trace, GPU, replace(QUESTION, allow=(*QUESTION.allow, "gradient")))
    # sixteen gradients of 4 MiB are there when the layer with the most rows runs backward
    assert kept.least_feasible_bytes > moved.least_feasible_bytes + 32 * MIB


# On the CPU: eight layers save an input of 4 MiB each, and their weights have 2 MiB together.
ON_CPU = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(9):
    optimizer.zero_grad()
    loss = model(torch.randn(4096, 256)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
RAM = er.Machine.here(device="cpu")
UNALIKE = ON_CPU.replace("4096", "2048 + 256 * step")


def answered_in_ram(folder: Path, budget_bytes: int, text: str = ON_CPU, **asked: Any) -> Verdict:
    path = folder / "train.py"
    path.write_text(text)
    how: dict[str, Any] = {"path": str(path), "budget_bytes": budget_bytes, "min_size_bytes": 2**16, **asked}
    child = Child(replace(QUESTION, **how), RAM)
    try:
        return child.wait()
    finally:
        child.close()


def test_a_training_on_the_cpu_is_planned_without_its_numbers(tmp_path: Path) -> None:
    # when
    verdict = answered_in_ram(tmp_path, 32 * MIB)
    # then
    assert verdict.course is not None, verdict.why
    assert verdict.trace is not None
    assert verdict.trace.device == "cpu"
    assert 0 < verdict.course.peak_bytes <= 32 * MIB
    assert verdict.course.plan.swaps
    assert verdict.course.waiting is None, "writes are waited for where room is needed"
    # and what a first step saves is known: the batch, and eight outputs
    assert verdict.saved[0] == ((4 * MIB, "float32"),) * 9


def test_a_budget_that_is_too_small_on_the_cpu_is_refused_by_a_step_that_confirms_it(tmp_path: Path) -> None:
    verdict = answered_in_ram(tmp_path, 8 * MIB)
    assert verdict.refuses
    assert not verdict.sure
    assert 8 * MIB < verdict.least_feasible_bytes < 32 * MIB


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"measures_first": True}, "its first step measures what the limit leaves, and follows no plan"),
        ({"allow": ("recompute",), "budget_bytes": 20 * MIB}, "what its recomputes save is known after a step"),
    ],
)
def test_what_only_a_step_can_show_is_no_plan_and_no_refusal(tmp_path: Path, asked: dict[str, Any], why: str) -> None:
    verdict = answered_in_ram(tmp_path, **{"budget_bytes": 32 * MIB, **asked})
    assert not verdict.refuses
    assert verdict.course is None
    assert why in verdict.why
    # and below a hard limit it is known what steps may need: an output, what is made of it, and their gradients
    assert (verdict.least_feasible_bytes >= 8 * MIB) == ("measures_first" in asked)


def test_below_a_limit_steps_that_are_not_alike_have_a_least_too(tmp_path: Path) -> None:
    verdict = answered_in_ram(tmp_path, 32 * MIB, measures_first=True, text=UNALIKE)
    assert verdict.why == "its steps are not alike"
    assert 4 * MIB <= verdict.least_feasible_bytes < 32 * MIB


def test_parameters_that_are_made_anew_in_each_step_count_once() -> None:
    # given weights of 4 MiB, in place of which each step makes others, as a teacher of averages does
    def averages() -> Callable[[], None]:
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            model(torch.ones(16, 1024, device="cuda")).square().mean().backward()
            optimizer.step()
            model.weight.data = model.weight.data * 0.9

        return step

    trace = er.capture(averages, machine=GPU, steps=3)
    made = sum(each.size_bytes for each in trace.storages if each.category == "parameter")
    # then
    assert made >= 12 * MIB
    assert "Parameters take 8" in beforehand._of_parameters(trace, 4 * MIB)  # both, as one is made of the other


class Answered:
    """In place of a child: what it has said."""

    def __init__(self, saved: tuple[tuple[tuple[int, str], ...], ...]) -> None:
        self.confirm: Any = Child.confirm.__get__(self)
        self.refusal: Any = Child.refusal.__get__(self)
        self.least_bytes: Any = Child.least_bytes.__get__(self)
        self._question = QUESTION
        self._saved = saved
        self.closed = False

    def verdict(self) -> Verdict:
        said: Any = {"message": "too small.", "least_feasible_bytes": 9, "assumed": ("aten.item",)}
        return Verdict(why="", saved=self._saved, in_forward=tuple(map(len, self._saved)), **said)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("count", "refuses"), [(1, False), (2, False), (3, True), (4, True), (5, False)])
def test_a_refusal_is_confirmed_by_a_whole_forward(count: int, refuses: bool) -> None:
    # given a capture that saves three storages before it reads one back, and another one after that
    saved = ((MIB, "float32"),) * 4
    child: Any = Answered((saved,))
    child.verdict = lambda: Verdict(why="", message="too small.", saved=(saved,), in_forward=(3,))
    # then
    with pytest.raises(er.Infeasible) if refuses else nullcontext():
        child.confirm([(MIB, "float32")] * count)


def steps_within(saved: tuple[tuple[tuple[int, str], ...], ...], budget: str) -> tuple[int, Answered]:
    """Steps that end in a room for which this was said beforehand; layers that save two outputs of 4 MiB."""
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, child, ended = torch.randn(4096, 256), Answered(saved), 0
    with er.within(budget, min_size=MIB) as room:
        run_of(room).beforehand = child  # pyright: ignore[reportAttributeAccessIssue]
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            ended += 1
    return ended, child


def test_a_training_that_saves_what_was_foretold_ends_in_its_first_backward() -> None:
    saved = tuple([(4 * MIB, "float32")] * 3)
    with pytest.raises(er.Infeasible, match=r"^too small.\nSo says a capture .* before the training has shown it.$"):
        steps_within((saved, saved), "1GiB")


def test_a_training_that_saves_something_else_goes_on_and_asks_no_more_once_it_has_a_plan() -> None:
    saved = ((4 * MIB, "float32"), (8 * MIB, "float32"), (4 * MIB, "float32"))
    ended, child = steps_within((saved, saved), "1GiB")
    assert (ended, child.closed) == (3, True)


def test_who_wants_no_answer_any_more_leaves_nothing_behind(tmp_path: Path) -> None:
    # given a script that takes for ever
    path = tmp_path / "train.py"
    path.write_text("import time\ntime.sleep(1000)\n")
    child = Child(replace(QUESTION, path=str(path)), GPU)
    began_s = time.monotonic()
    assert child.verdict() is None
    # when
    child.close()
    # then
    assert time.monotonic() - began_s < 100
    assert child.verdict() is None


def test_a_script_that_ends_with_its_last_step_is_planned_as_one_that_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "def main():\n"
        "    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()\n"
        "    optimizer = torch.optim.AdamW(model.parameters())\n"
        "    for _ in range(int(sys.argv[1])):\n"
        "        optimizer.zero_grad()\n"
        "        model(torch.ones(256, 512, device='cuda')).square().mean().backward()\n"
        "        optimizer.step()\n"
        "main()\n"
    )
    held = []
    for steps in ("3", "7"):
        trace = as_run(capture_script(script, [steps], machine="h100-sxm", steps=3), 4096)
        level = last_step(trace).level
        held.append((int(level[0]), int(level.max()), int(level[-1])))
    assert held[0] == held[1]
    assert held[0][2] > 12 << 20  # the weights and their states


def test_where_only_keeping_everything_fits_into_the_margin_of_the_device_it_is_kept() -> None:
    # given a training that swaps hardly lower, and `auto` of a device on which it fits as it is
    trace = trace_of("adversarial nets")
    refused = verdict_of(trace, GPU, QUESTION)
    assert refused.refuses
    # when the least budget lies between what `auto` may take and what is free
    for free_bytes, is_kept in ((refused.least_feasible_bytes + 5 * MIB, True), (256 * MIB, False), (0, False)):
        asked = replace(QUESTION, budget_bytes=256 * MIB, free_bytes=free_bytes)
        verdict = verdict_of(trace, GPU, asked)
        # then
        assert verdict.refuses is not is_kept
        if verdict.course is not None:
            assert verdict.course.plan.planner == "keep"
            assert verdict.course.peak_bytes <= free_bytes
