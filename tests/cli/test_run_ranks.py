"""`elbowroom run` behind torchrun: two ranks over gloo, from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="elbowroom run runs torch scripts")

import torch.distributed as dist

from tests.cli.answers import answered

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this build has no gloo"),
]

SOURCES = Path(__file__).parents[2] / "src"

# 8 linear layers of 256 x 256 on 4096 rows: each saves an output of 4 MiB. Each rank has its own data. The first step
# has twice the rows: it is observed, and holds more than a budget of 32 MiB. How it ends: Note: [The end of a rank] in
# tests/rank_ends.py.
SCRIPT = """
import torch, torch.distributed as dist, torch.distributed.nn

def train():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(8192, 256, generator=torch.Generator().manual_seed(dist.get_rank()))
    for step in range(7):
        optimizer.zero_grad()
        loss = model(data[step and 4096 :]).square().mean()
        loss.backward()
        optimizer.step()
    print(f"rank {dist.get_rank()}: {loss.item().hex()}\\n", end="", flush=True)

dist.init_process_group("gloo")
train()
dist.destroy_process_group()
"""


def two_ranks(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in environment.items() if not name.startswith("ELBOWROOM_")}
    environment = {**environment, "ELBOWROOM_KEEPS_PLANS": "0"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, *words], capture_output=True, text=True, check=False, env=environment, cwd=folder, timeout=200
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_each_rank_trains_inside_its_budget_and_writes_files_of_its_own(folder: Path) -> None:
    plain = two_ranks(folder, "train.py")
    options = ["--budget", "32MiB", "--json", "figures.json", "--report", "page.txt", "--spill-dir", str(folder)]

    inside = two_ranks(folder, "-m", "elbowroom", "run", *options, "train.py")

    # then the numbers are those without elbowroom, and no exit code has the launcher end the other rank
    assert plain.returncode == 0, plain.stderr
    assert inside.returncode == 0, inside.stderr
    assert sorted(inside.stdout.split("\n")) == sorted(plain.stdout.split("\n"))
    # then a rank says who it is, and one of them where the files are
    assert "elbowroom: rank 0 of 2, budget 32.0 MiB" in inside.stderr
    assert "elbowroom: rank 1 of 2, budget 32.0 MiB" in inside.stderr
    assert "each rank wrote a file of its own in place of figures.json: figures.rank0.json" in inside.stderr
    for rank in (0, 1):
        figures = answered((folder / f"figures.rank{rank}.json").read_text(), "run")
        assert figures["swaps"] > 0
        assert figures["over_budget_bytes"] > 0
        assert (folder / f"page.rank{rank}.txt").is_file()
    # then one file has the figures of both
    merged = answered((folder / "figures.json").read_text(), "ranks")
    assert [each["name"] for each in merged["ranks"]] == ["figures.rank0.json", "figures.rank1.json"]
    # then a step of each was measured, with its waits for the reduction of gradients
    assert all(each["wait_ns"] is not None for each in merged["ranks"])
    assert "elbowroom: figures.json has the figures of all 2 ranks" in inside.stderr
    assert sorted(each.name for each in folder.iterdir() if each.name.startswith(".")) == []
    assert not list(folder.glob("page.txt"))


def test_a_rank_that_is_killed_leaves_no_file_and_holds_up_no_other(folder: Path) -> None:
    # given: rank 1 dies by itself as the last step begins
    dies = "        if step == 6 and dist.get_rank() == 1:\n            os.kill(os.getpid(), signal.SIGKILL)\n"
    text = SCRIPT.replace("        optimizer.zero_grad()\n", dies + "        optimizer.zero_grad()\n")
    (folder / "train.py").write_text("import os, signal\n" + text)
    spill = folder / "spill"
    spill.mkdir()

    # when
    options = ["--budget", "48MiB", "--spill-dir", str(spill)]
    inside = two_ranks(folder, "-m", "elbowroom", "run", *options, "train.py")

    # then
    assert inside.returncode == 1, inside.stderr
    assert "exitcode: -9" in inside.stderr
    assert inside.stdout == ""
    assert list(spill.iterdir()) == []
