"""Processes that are killed or interrupted in the middle of a step: what stays on the disk, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elbowroom.engine.tiers.spillfile import GROWTH_BYTES
from tests.torch.small_disk import small_disk_in

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
TRAINING = """
import gc, os, signal, sys, time
import torch
import elbowroom as er
from tests.torch.broken_training import setup
from tests.torch.helpers import seeded, tight_budget

torch.set_num_threads(1)
gc.freeze()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits that it is ignored
spill_dir, at, moment, what = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]

def stop_here():
    if what == "wait":
        print("here", flush=True)
        time.sleep(60)
    elif what == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    elif what == "slow":
        real = os.pwrite
        def slow(*args):
            time.sleep(0.5)
            return real(*args)
        os.pwrite = slow
        print("here", flush=True)

budget = tight_budget(setup)
training = seeded(lambda: setup(at, moment, stop_here))
with er.within(budget, spill_dir=spill_dir, min_size=1024) as room:
    for i in range(6):
        training.step(i)
print("done", flush=True)
"""


@contextmanager
def training(directory: Path, at: int, moment: str, what: str) -> Iterator[subprocess.Popen[str]]:
    """A child process that trains and does something at one moment of one step."""
    path = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    child = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(directory), str(at), moment, what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def wait_until_there(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line == "here\n", child.communicate()[1]


def free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bfree * found.f_frsize


def spill_file_of(process: int, directory: Path) -> str:
    """What /proc calls the one file that a process has open in a directory."""
    links = [os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()]
    (found,) = [link for link in links if link.startswith(f"{directory}/")]
    return found


def test_kill_9_in_the_middle_of_a_step_leaves_nothing_on_the_disk(tmp_path_factory: pytest.TempPathFactory) -> None:
    # given
    with small_disk_in(tmp_path_factory, "80m") as directory:
        before = free_bytes(directory)
        with training(directory, 3, "between", "wait") as child:
            wait_until_there(child)
            # then: there is a file, and it has no name
            assert before - free_bytes(directory) == GROWTH_BYTES
            assert spill_file_of(child.pid, directory).endswith("(deleted)")
            assert os.listdir(directory) == []
            # when
            child.send_signal(signal.SIGKILL)
            assert child.wait(10) == -signal.SIGKILL
        # then
        assert os.listdir(directory) == []
        assert free_bytes(directory) == before


def test_ctrl_c_in_the_middle_of_the_first_step_ends_the_process_as_python_does(tmp_path: Path) -> None:
    # when
    with training(tmp_path, 0, "between", "interrupt") as child:
        printed, said = child.communicate(timeout=40)
    # then
    assert child.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in said
    assert "done" not in printed
    assert os.listdir(tmp_path) == []


def test_ctrl_c_does_not_wait_for_the_writes_that_a_slow_disk_still_has_to_do(tmp_path: Path) -> None:
    # given: half a second a write
    with training(tmp_path, 3, "before", "slow") as child:
        wait_until_there(child)
        time.sleep(0.1)
        began = time.monotonic()
        # when
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=40)
        took_s = time.monotonic() - began
    # then: two writes under way are waited for, and a busy machine needs time to end a process
    assert child.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert took_s < 5
