"""Budgets that are refused before a step has ended are refused by the training itself: on the CUDA build of PyTorch."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

import elbowroom as er
from elbowroom.planners.budget.floor import floor_bytes
from tests.cli.test_run_forked import ROWS
from tests.fakecuda import FIXED
from tests.fakecuda.test_within_peaks import on_the_rig, rig
from tests.fakecuda.within_models import MODELS

__all__ = ["rig"]

SOURCES = Path(__file__).parents[2] / "src"

SCRIPT = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(9):
    loss = model(torch.zeros(4096, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, flush=True)
"""


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "model", ["perceptron in micro-batches", "plane net", "language model", "many rows first", "adversarial nets"]
)
def test_what_is_refused_beforehand_is_refused_by_the_training(rig: Path, model: str) -> None:
    # given one byte less than what a step holds at least, as a capture says
    torch.manual_seed(0)
    trace = er.capture(MODELS[model], machine=er.Machine.of("h100-sxm"), steps=3, in_parts=True)
    floor = floor_bytes(trace, 2**20)
    # when
    found = on_the_rig(rig, {"model": model, "budget_bytes": floor - 1, "steps": 8}, "beforehand.py")
    # then
    assert found["least_feasible_bytes"] > floor


PLAIN_BYTES = 394 << 20
"""About what plain training of the script reserves."""


def run(
    rig: Path,
    folder: Path,
    *options: str,
    script: str = SCRIPT,
    capacity_bytes: int = 8 << 30,
    variables: Mapping[str, str] | None = None,
    runs: Sequence[str] = ("-m", "elbowroom", "run"),
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    of_rig = {"FAKECUDA_CAPACITY": str(capacity_bytes), "FAKECUDA_BACKING": "0", "FAKECUDNN_WORKSPACE": "0"}
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **of_rig, **(variables or {})}
    command = [str(rig / "fake_torch.sh"), *runs, *options, "train.py"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)


@pytest.mark.timeout(0)
def test_a_check_answers_before_the_script_starts(rig: Path, tmp_path: Path) -> None:
    # when the budget has no room for the parameters
    before, without = (run(rig, tmp_path, "--budget", "20MiB", option) for option in ("--check", "--no-check"))
    # then
    assert (before.returncode, before.stdout) == (1, "")
    assert before.stderr.startswith("elbowroom: budget: given 20.0 MiB")
    assert before.stderr.rstrip().endswith("before the training has shown it.")
    assert (without.returncode, without.stdout[:4]) == (1, "0\n1\n"), without.stderr
    # and where it fits, it runs
    fits = run(rig, tmp_path, "--budget", "2GiB", "--check")
    assert (fits.returncode, len(fits.stdout.splitlines())) == (0, 9), fits.stderr
    assert "check: the script starts with a plan that holds" in fits.stderr


@pytest.mark.timeout(0)
def test_a_card_is_enough_from_the_first_step_on_or_refused_before_it(rig: Path, tmp_path: Path) -> None:
    # given what plain training of the script takes at most, and cards that have less and less of it
    sizes = [round(share * PLAIN_BYTES) for share in (0.85, 0.65, 0.45)]
    # when it trains on each, without a budget
    ends = [run(rig, tmp_path, capacity_bytes=size) for size in sizes]
    # then it trains to its end, or is refused before it prints a line; never again on a smaller card than one that is
    # refused
    trained = [end.returncode == 0 for end in ends]
    assert trained == sorted(trained, reverse=True), [end.stderr[-500:] for end in ends]
    assert trained[0]
    assert not trained[-1]
    for end, size in zip(ends, sizes, strict=True):
        if end.returncode:
            assert (end.returncode, end.stdout) == (1, ""), (size, end.stderr)
            assert "elbowroom: budget: given" in end.stderr
        else:
            assert len(end.stdout.splitlines()) == 9
    # and where the user chose fixed segments, these stay
    fixed = run(rig, tmp_path, capacity_bytes=sizes[0], variables=FIXED)
    assert (fixed.returncode, len(fixed.stdout.splitlines())) == (0, 9), fixed.stderr


@pytest.mark.timeout(0)
def test_a_budget_that_may_be_too_small_is_said_in_short_before_it_is_refused(rig: Path, tmp_path: Path) -> None:
    # given a script that reads its loss, which the capture has to assume
    script = SCRIPT.replace("print(step", "print(step, loss.item() < 3")
    # when
    done = run(rig, tmp_path, script=script, capacity_bytes=round(0.45 * PLAIN_BYTES))
    # then
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    first, *others = [line for line in done.stderr.splitlines() if line.startswith("elbowroom:")]
    assumed = r"a capture of the script without its numbers, which assumed values of [\w.]+, needs a budget of .+ bytes"
    assert re.match(f"elbowroom: check: {assumed}", first)
    assert not any("check:" in line for line in others)
    assert done.stderr.count("The most is then held") <= 1


@pytest.mark.timeout(0)
def test_a_step_that_is_not_the_captured_one_is_observed_and_planned_again(rig: Path, tmp_path: Path) -> None:
    # given a script whose real steps save other sizes than those of its capture, as where it looks at a value
    other = "import sys\nrows = 3072 if 'elbowroom.run.room' in sys.modules else 4096\nfor step"
    script = SCRIPT.replace("for step", other).replace("torch.zeros(4096", "torch.zeros(rows")
    # when
    done = run(rig, tmp_path, script=script, capacity_bytes=round(0.85 * PLAIN_BYTES))
    # then one step is not what its plan expects, and the training goes on
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 9), done.stderr


IN_MICRO_BATCHES = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.zeros(4096, 1024, device="cuda")
for step in range(5):
    for _ in range(3):
        (model(batch).square().mean() / 3).backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, flush=True)
"""

OF_ONE_STORAGE = """
import torch
from torch import nn

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cells = nn.Embedding(4000, 512), nn.LSTM(512, 512, 2, batch_first=True)
        self.head = nn.Linear(512, 4000)

    def forward(self, x):
        return self.head(self.cells(self.words(x))[0])

model = Recurrent().cuda()
optimizer = torch.optim.AdamW(model.parameters())
words = torch.zeros(32, 128, device="cuda", dtype=torch.long)
for step in range(5):
    loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, flush=True)
"""
"""The LSTM's gradients lie in one storage, so they stay."""


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("script", "capacity_bytes"),
    [(IN_MICRO_BATCHES, round(0.7 * PLAIN_BYTES)), (OF_ONE_STORAGE, 380 << 20)],
    ids=["a batch that each micro-batch saves", "gradients that stay"],
)
def test_the_first_step_is_the_captured_one(rig: Path, tmp_path: Path, script: str, capacity_bytes: int) -> None:
    # when
    done = run(rig, tmp_path, script=script, capacity_bytes=capacity_bytes)
    # then
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 5), done.stderr
    assert "(5 steps, 0 mismatches)" in done.stderr


OF_FEW_LARGE = """
import sys
import torch
from tests.fakecuda.within_models import MODELS
if "elbowroom.run.room" in sys.modules:
    from tests.fakecuda.within import trust
    trust()
train = MODELS["autoencoder"]()
for step in range(5):
    train()
    print(step, any(each["is_expandable"] for each in torch.cuda.memory_snapshot() if each["total_size"] > 2 << 20))
"""


@pytest.mark.timeout(0)
def test_segments_are_of_the_kind_that_the_plan_needs(rig: Path, tmp_path: Path) -> None:
    # given a net of a few large storages
    path = {"PYTHONPATH": f"{SOURCES}:{SOURCES.parent}", "FAKECUDA_CC": "90"}
    # when it trains on a card where its plans fit in pages, and on one where they only fit in segments of a fixed size
    ends = [run(rig, tmp_path, script=OF_FEW_LARGE, capacity_bytes=size << 20, variables=path) for size in (230, 122)]
    # then
    for end, expandable in zip(ends, (True, False), strict=True):
        assert (end.returncode, end.stdout.splitlines()) == (0, [f"{n} {expandable}" for n in range(5)]), end.stderr


WITHIN = """
import torch
import elbowroom as er

def made():
    kept.append(torch.empty(32 << 20, dtype=torch.uint8, device="cuda"))
    return kept[-1].untyped_storage().data_ptr()

def is_expandable(address):
    segments = torch.cuda.memory_snapshot()
    return next(each["is_expandable"] for each in segments if 0 <= address - each["address"] < each["total_size"])

kept = []
found = [made()]
for _ in range(2):
    with er.within("1GiB"):
        found.append(made())
    found.append(made())
print([is_expandable(address) for address in found])
"""


@pytest.mark.timeout(0)
def test_segments_that_are_made_after_a_run_are_as_they_were_before(rig: Path, tmp_path: Path) -> None:
    # when something is made before, in, between, in and after two rooms
    done = run(rig, tmp_path, script=WITHIN, runs=())
    # then
    assert done.stdout == "[False, True, False, True, False]\n", done.stderr


EVALUATES = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
with torch.no_grad():
    best = model(torch.zeros(16384, 1024, device="cuda")).square().mean().item()
for step in range(4):
    loss = model(torch.zeros(4096, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item() < best, flush=True)
"""


@pytest.mark.timeout(0)
def test_an_evaluation_that_finds_no_memory_before_the_first_step_names_what_training_needs(
    rig: Path, tmp_path: Path
) -> None:
    # given a value that decides, so that the capture's refusal waits for the training, and an evaluation before that
    refused = run(rig, tmp_path, script=EVALUATES, capacity_bytes=120 << 20)
    # then
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Memory ran out before the first step." in refused.stderr
    assert "A capture of the script without its numbers says that its steps need a budget of" in refused.stderr


OF_WORKERS = f"""
import torch
from torch import nn
{ROWS}
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    for rows in torch.utils.data.DataLoader(Rows(3 * 4096, 1024), 4096, num_workers=2):
        loss = model(rows.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, flush=True)
"""


@pytest.mark.timeout(0)
def test_modules_of_workers_that_read_data_begin_no_steps(rig: Path, tmp_path: Path) -> None:
    # given transforms that are modules, as torchvision's are, in workers that are forked with a plan in force
    # (what is recomputed is compared, and here are no numbers: a busy host, on which copies are slow, recomputes)
    allowed = ("--allow", "swap,state,gradient")
    done = run(rig, tmp_path, *allowed, script=OF_WORKERS, capacity_bytes=round(0.85 * PLAIN_BYTES))
    # then
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 9), done.stderr
    assert "(9 steps, 0 mismatches)" in done.stderr
    assert "swapped to" in done.stderr
