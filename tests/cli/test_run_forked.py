"""`elbowroom run` of scripts that fork: workers that read data, and processes that train beside their parent."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="elbowroom run runs torch scripts")

from elbowroom.cli.run_verb import HELD_MORE
from tests.cli.processes import python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")

# 6 linear layers of 256 x 256 on 2048 rows: each saves an output of 2 MiB
NET = """
import hashlib, multiprocessing, os, sys
import torch
from torch import nn
torch.set_num_threads(1)


def trained(steps, seed, batch=lambda: torch.randn(2048, 256)):
    torch.manual_seed(seed)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)])
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()
    return model, optimizer


def digest(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
"""

OF_CHILDREN = """
def train(name, steps, seed):
    print(f"{name} {digest(trained(steps, seed)[0])}\\n", end="", flush=True)


train("first", 4, 1)
context = multiprocessing.get_context("fork")
children = [context.Process(target=train, args=(f"child {seed}", 6, seed)) for seed in (2, 3)]
for child in children:
    child.start()
train("parent", 6, 4)
for child in children:
    child.join(120)
print("ended", [child.exitcode for child in children])
"""

# a transform of torchvision is a module, which a worker calls where gradients are enabled
ROWS = """
class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * 0.5


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows, columns):
        self.rows, self.columns, self.transform = rows, columns, Scaled()

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        return self.transform(torch.full((self.columns,), index / self.rows))


"""

OF_WORKERS = (
    ROWS
    + """
def batches():
    for _ in range(2):
        yield from torch.utils.data.DataLoader(Rows(6 * 2048, 256), 2048, num_workers=2, multiprocessing_context="fork")


source = batches()
print("weights", digest(trained(12, 1, lambda: next(source))[0]))
"""
)

OF_STATES = """
model, optimizer = trained(6, 1)
child = os.fork()
if not child:
    try:
        print(sum(float(state["exp_avg"].sum()) for state in optimizer.state.values()), flush=True)
    except RuntimeError as problem:
        print("refused", problem, flush=True)
    sys.exit(3)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("sums", sum(float(state["exp_avg"].sum()) for state in optimizer.state.values()))
"""


def ran(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(NET + script)
    return python(folder, *words, "train.py", OMP_NUM_THREADS="1")


def within(folder: Path, script: str, budget: str = "15MiB") -> subprocess.CompletedProcess[str]:
    return ran(folder, script, "-m", "elbowroom", "run", "--budget", budget, "--spill-dir", str(folder))


def test_forked_processes_train_as_without_elbowroom_and_say_that_no_budget_holds_them(tmp_path: Path) -> None:
    # when
    plain, inside = ran(tmp_path, OF_CHILDREN), within(tmp_path, OF_CHILDREN, "22MiB")
    # then all of them end, and have the same bits
    assert sorted(inside.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    assert inside.returncode == plain.returncode == 0
    assert "ended [0, 0]" in inside.stdout
    # then the parent was planned for, and each child said that it was not
    assert inside.stderr.count("in a process that was forked from this one") == 2
    assert "swapped to disk" in inside.stderr


def test_modules_of_workers_that_read_data_begin_no_steps(tmp_path: Path) -> None:
    plain, inside = ran(tmp_path, OF_WORKERS), within(tmp_path, OF_WORKERS)
    assert inside.stdout == plain.stdout
    # batches that workers have sent ahead count as memory of the step: how many these are is up to the clock
    assert inside.returncode in (0, HELD_MORE), inside.stderr
    assert "(12 steps, 0 mismatches)" in inside.stderr


def test_what_is_away_cannot_be_read_in_a_forked_process_and_says_so(tmp_path: Path) -> None:
    # when
    plain, inside = ran(tmp_path, OF_STATES), within(tmp_path, OF_STATES)
    # then the child ends as it would, and its parent has all bytes
    assert inside.stdout.splitlines()[0].startswith("refused a process that was forked from the training uses a tensor")
    assert inside.stdout.splitlines()[1:] == plain.stdout.splitlines()[1:]
    assert (inside.returncode, plain.returncode) == (0, 0), inside.stderr
    # then the summary is that of the parent alone
    assert inside.stderr.count("elbowroom: budget 15.0 MiB") == 1
