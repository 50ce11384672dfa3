"""Memory really goes back to the system: what a child process holds (VmRSS) follows what is swapped."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elbowroom.engine import residence

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
MIB = 2**20


def child(program: str, *arguments: str) -> Any:
    """Run a program in a process of its own; it prints one JSON object."""
    path = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=50,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


SWAPPING = """
import json, sys
import torch
from elbowroom.engine import residence as memory
from elbowroom.engine.tiers.disk import DiskTier
from elbowroom.engine.executor import Executor
from elbowroom.engine.residence import resident_bytes
from tests.torch.moved_by_hand import save

torch.set_num_threads(1)
size_bytes, count, holes = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
for _ in range(3):
    blocks = [torch.ones(31 * 2**18) for _ in range(2)]  # glibc's threshold grows to 31 MiB as these are freed
    del blocks
pairs = [(torch.ones(20 * 2**18), torch.ones(100_000)) for _ in range(holes)]
between = [small for large, small in pairs]
del pairs  # 20 MiB are free below each of `between`
memory.give_back()
executor = Executor(DiskTier(sys.argv[1]))
before = resident_bytes()
tensors = [torch.full((size_bytes // 4,), float(n)) for n in range(count)]
held = resident_bytes()
handles = [save(executor, tensor, n) for n, tensor in enumerate(tensors)]
del tensors
executor.settle()
away = resident_bytes()
back = [executor.read(handle.entry) for handle in handles]
returned = resident_bytes()
right = all(
    torch.empty(0).set_(storage, 0, (size_bytes // 4,), (1,)).eq(n).all().item() for n, storage in enumerate(back)
)
del back, handles
again_away = resident_bytes()
print(json.dumps(dict(before=before, held=held, away=away, returned=returned, again_away=again_away, right=right)))
"""


def test_rss_falls_by_what_is_swapped_out_and_rises_by_what_comes_back(tmp_path: Path) -> None:
    # given: forty storages of 3 MiB, most of them in eight holes of 20 MiB
    size_bytes, count, holes = 3 * MIB, 40, 8
    # when
    rss = child(SWAPPING, str(tmp_path), str(size_bytes), str(count), str(holes))
    # then: within a tenth, and 4 MiB of buffer for each of two writing threads
    moved_bytes = size_bytes * count
    slack_bytes = moved_bytes // 10 + 8 * MIB
    assert rss["right"]
    assert rss["held"] - rss["before"] == pytest.approx(moved_bytes, abs=slack_bytes)
    assert rss["held"] - rss["away"] == pytest.approx(moved_bytes, abs=slack_bytes)
    assert rss["returned"] - rss["away"] == pytest.approx(moved_bytes, abs=slack_bytes)
    assert rss["returned"] - rss["again_away"] == pytest.approx(moved_bytes, abs=slack_bytes)


TRAINING = """
import gc, json, sys
import torch
import elbowroom as er
from elbowroom.engine.residence import resident_bytes, trim

torch.set_num_threads(1)
gc.freeze()
peak = 0
class Watched(torch.nn.Module):
    def forward(self, x):
        global peak
        x = x.sigmoid()
        peak = max(peak, resident_bytes())
        return x

model = torch.nn.Sequential(torch.nn.Linear(64, 64), *[Watched() for _ in range(10)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(32 * 1024, 64)  # 8 MiB

def step():
    global peak
    before = peak = resident_bytes()
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return peak - before

with er.within(sys.argv[2], spill_dir=sys.argv[1]) as room:
    within = [step() for _ in range(3)]
modes = [each.mode for each in room.steps]
trim()  # a free block that stayed resident would not show as a rise
print(json.dumps(dict(within=within, modes=modes, plain=step())))
"""


def test_rss_of_a_training_follows_its_budget(tmp_path: Path) -> None:
    # when: ten outputs of 8 MiB are saved; the batch, a gradient and a few of them fit
    rise = child(TRAINING, str(tmp_path), "48MiB")
    # then: without a budget all ten are there, within it a few; freed blocks stay for a while
    assert rise["plain"] > 75 * MIB
    assert rise["modes"][0] == "observe"
    assert rise["modes"][-1] == "plan"
    assert max(rise["within"]) < 48 * MIB + residence.slack_bytes(48 * MIB)


THRESHOLDS = """
import ctypes, gc, json, sys
import torch
import elbowroom as er
from elbowroom.run import open_room as opening
from tests.torch.helpers import mlp

class Info(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
library.malloc.restype = ctypes.c_void_p

def mapped(size_bytes):
    "Whether a block of this size gets a mapping of its own, which goes back to the system when it is freed."
    before = library.mallinfo2().hblks
    block = library.malloc(ctypes.c_size_t(size_bytes))
    after = library.mallinfo2().hblks
    library.free(ctypes.c_void_p(block))
    return after > before

torch.set_num_threads(1)
gc.freeze()
model, batch = mlp(width=256, depth=8), torch.randn(2048, 256)  # 2 MiB a layer
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(budget):
    seen = {}
    with er.within(budget, spill_dir=sys.argv[1]) as room:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            seen["in step"] = mapped(8 * 2**20)
            loss.backward()
            optimizer.step()
    return dict(seen, closed=mapped(8 * 2**20), mode=room.steps[-1].mode)

opening.PLENTY_BYTES, plenty_bytes = 1 << 62, opening.PLENTY_BYTES
short = train("22MiB")
opening.PLENTY_BYTES = plenty_bytes
print(json.dumps([short, train("22MiB"), train("2GiB")]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt and mallinfo2 are glibc's")
def test_blocks_go_back_at_once_only_where_a_job_is_swapped_and_memory_is_short(tmp_path: Path) -> None:
    # when
    short, plenty, fits = child(THRESHOLDS, str(tmp_path))
    # then
    assert short == {"in step": True, "closed": False, "mode": "plan"}
    assert plenty == {"in step": False, "closed": False, "mode": "plan"}
    assert fits == {"in step": False, "closed": False, "mode": "keep"}


def test_free_memory_goes_back_again_only_when_more_is_resident_than_stayed(monkeypatch: pytest.MonkeyPatch) -> None:
    # given: 10 MiB are held outside, and storages may take 20 MiB more
    held, trims = [10 * MIB], []
    monkeypatch.setattr(residence, "resident_bytes", lambda: held[0])
    monkeypatch.setattr(residence, "trim", lambda: trims.append(held[0]))
    monkeypatch.setattr(residence, "LOOK_NS", 0)
    monkeypatch.setattr(residence, "LOOK_SHARE", 0)
    ram = residence.RamResidence(20 * MIB)
    ram.measure(lambda: 0)
    trims.clear()
    # when: 40 MiB are held, and nothing of it goes back
    for held_mib in (30, 40, 40, 55, 57, 70):
        held[0] = held_mib * MIB
        ram.look()
    # then: only 16 MiB more are a reason to try again
    assert trims == [40 * MIB, 57 * MIB]
    # when: it has gone back by the next step
    held[0] = 20 * MIB
    ram.step_begins()
    for held_mib in (35, 37):
        held[0] = held_mib * MIB
        ram.look()
    # then
    assert trims[2:] == [37 * MIB]
