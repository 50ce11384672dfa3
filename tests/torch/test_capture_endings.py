"""How a script ends: later than the steps that count, on the CPU, or never."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from elbowroom.capture.script import capture_script
from elbowroom.capture.script.guard import OVER
from elbowroom.capture.script.on_cpu import hint
from elbowroom.errors import CaptureError
from elbowroom.machine import Machine
from elbowroom.trace import Trace

pytestmark = pytest.mark.long

A100 = Machine.of("a100-40gb")
TRAINING = """
import sys, torch
device = "DEVICE"
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.Adam(model.parameters())
def train(steps):
    for _ in range(steps):
        model(torch.randn(8, 64, device=device)).sum().backward()
        optimizer.step()
"""


def captured(folder: Path, text: str, *arguments: str, device: str = "cuda", **how: object) -> Trace:
    path = folder / "train.py"
    path.write_text(TRAINING.replace("DEVICE", device) + text)
    return capture_script(path, arguments, machine=A100, **how)  # pyright: ignore[reportArgumentType]


def ended(trace: Trace) -> list[str]:
    return [remark.name.partition("train.py")[2] for remark in trace.remarks if remark.kind == "ended_early"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('bad', torch.zeros(2, device=device))", "ValueError: ('bad', tensor("),
        ("assert torch.zeros(2) is None, 'metric'", "AssertionError: metric"),
        ("open('ck/best.pt', 'wb')", "FileNotFoundError: [Errno 2] No such file or directory: 'ck/best.pt'"),
        ("import no_such_metric", "ModuleNotFoundError: No module named 'no_such_metric'"),
        ("sys.exit(3)", "sys.exit(3)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd", "Odd: (a Odd that cannot be"),
    ],
)
def test_what_fails_after_steps_were_seen_is_a_remark(text: str, said: str, tmp_path: Path) -> None:
    # when a script fails after two of three steps
    trace = captured(tmp_path, f"train(2)\n{text}\n")

    # then there is a trace of these two, which says what failed and in which line of the script
    assert len(trace.steps) == 2
    (remark,) = ended(trace)
    line = len((tmp_path / "train.py").read_text().rstrip().splitlines())
    assert remark.startswith(f":{line}: {said}")
    assert remark.endswith(", after 2 of 3 steps")


def test_a_script_that_ends_well_has_no_such_remark(tmp_path: Path) -> None:
    assert ended(captured(tmp_path, "train(2)\nsys.exit(0)\n")) == []
    assert ended(captured(tmp_path, "train(9)\nraise ValueError\n")) == []


def test_a_failure_before_the_first_step_is_explained_whatever_it_holds(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"train\.py:\d+: the script failed with ValueError: \('bad loss', tensor\("):
        captured(tmp_path, "raise ValueError('bad loss', torch.zeros((), device='cuda'))")


def test_a_script_that_trains_on_the_cpu_is_told_so_with_its_own_option(tmp_path: Path) -> None:
    # given a script that goes to cuda where --accel is given, and has an endless training
    text = "import argparse\nargparse.ArgumentParser().add_argument('--accel', action='store_true')\ntrain(10**9)\n"

    # then its tensors, 1 weight and 1 bias, are counted, and the option is named
    said = r"train\.py: 30 optimizer steps were made with 2 tensors on cpu, and nothing was on cuda; .*mean --accel\?"
    with pytest.raises(CaptureError, match=said):
        captured(tmp_path, text, device="cpu")
    with pytest.raises(CaptureError, match=r"1 optimizer step was made with 2 tensors on cpu, .*model\.to\(\"cuda\"\)"):
        captured(tmp_path, "train(1)\n", device="cpu")

    # and a loss whose backward makes constants is no training on the GPU
    policy = "torch.distributions.Categorical(model(torch.randn(4, 64)).softmax(-1)).log_prob(torch.zeros(4)).mean()"
    with pytest.raises(CaptureError, match="1 optimizer step was made with 2 tensors on cpu"):
        captured(tmp_path, f"{policy}.backward()\noptimizer.step()\n", device="cpu")


def test_a_script_that_trains_other_tensors_than_parameters_on_the_cpu_is_told_so(tmp_path: Path) -> None:
    weights = "model, scale = torch.nn.Linear(512, 512), torch.ones(512).requires_grad_()\n"
    (tmp_path / "train.py").write_text(f"import torch\n{weights}torch.dot(model(torch.randn(512)), scale).backward()\n")
    with pytest.raises(CaptureError, match=r"train\.py:3: it trains tensors on cpu, .*\.to\(\"cuda\"\)"):
        capture_script(str(tmp_path / "train.py"), machine="a100-40gb")


def test_steps_on_the_cpu_before_a_training_on_the_gpu_are_none_of_it(tmp_path: Path) -> None:
    trace = captured(tmp_path, "device = 'cpu'; train(4); device = 'cuda'; model.to(device); train(9)", device="cpu")

    assert len(trace.steps) == 3


@pytest.mark.parametrize(
    ("options", "arguments", "said"),
    [
        ("add('--no-cuda', action='store_true'); add('--device')", ["--no-cuda"], "leave out --no-cuda"),
        ("add('--lr'); add('-d', '--device', default='cpu')", [], "did you mean --device cuda?"),
        ("add('--device'); add('--use_cuda', action='store_true')", [], "did you mean --use_cuda?"),
        ("add('--gpu', type=int)", ["--lr", "1"], "did you mean --gpu 0?"),
        ("add('--device')", ["--device=cpu"], "it was given --device=cpu; give --device another value, such as cuda"),
        ("click.option('--cuda/--no-cuda', is_flag=True)", [], "did you mean --cuda?"),
        ("add('--lr')", [], 'move its model and data to the GPU, as in model.to("cuda")'),
        ("def (:", [], 'move its model and data to the GPU, as in model.to("cuda")'),
    ],
)
def test_the_hint_is_made_of_the_options_of_the_script(
    options: str, arguments: list[str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(options)

    assert hint(str(path), arguments) == said


PROCESSES = """
import os, subprocess, sys, time
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)", "TAG"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
subprocess.Popen(["sh", "-c", '"$@" & exit 0', "sh", *sleep], start_new_session=True)
print("started", flush=True)
time.sleep(600)
"""
CALL = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore these
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from elbowroom.capture.script import capture_script
capture_script(sys.argv[1], machine="a100-40gb", timeout_s=float(sys.argv[2]))
"""


def tagged(tag: str) -> list[int]:
    """Processes with a word in their command lines."""
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if tag.encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


def waited(until: Callable[[], object]) -> bool:
    """Whether something is so before a minute is over."""
    return any(until() or time.sleep(0.05) for _ in range(1200))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found under /proc, which is Linux")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_who_asked_however_that_ends(number: signal.Signals, tmp_path: Path) -> None:
    # given a script that has processes of its own, some in sessions of their own, one of them an orphan
    tag, temporary = f"tag-of-{tmp_path.name}-{number}", tmp_path / "temporary"
    (tmp_path / "train.py").write_text(PROCESSES.replace("TAG", tag))
    temporary.mkdir()
    asking = subprocess.Popen(
        [sys.executable, "-c", CALL, str(tmp_path / "train.py"), "600"],
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        assert waited(lambda: len(tagged(tag)) == 3)

        # when who asked for the estimate is ended
        asking.send_signal(number)
        asking.wait(60)
    finally:
        asking.kill()
        asking.wait()

    # then soon there is no process and no file of it
    assert waited(lambda: not tagged(tag))
    assert waited(lambda: not list(temporary.iterdir()))


TIME_IS_OVER = f"import os, time; os.kill(os.getpid(), {OVER:d})\ntime.sleep(600)\n"
"""As the guard says it, in a line of the script that is known."""


def test_the_time_limit_leaves_an_answer_of_the_steps_that_were_done(tmp_path: Path) -> None:
    trace = captured(tmp_path, f"train(2)\n{TIME_IS_OVER}", timeout_s=600)

    assert len(trace.steps) == 2
    assert re.fullmatch(r":\d+: the time limit \(600 s\), after 2 of 3 steps", ended(trace)[0])


def test_where_the_time_went_is_said_where_there_is_no_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"print('reading')\n{TIME_IS_OVER}")

    said = r"(?s)0 of 3 steps were done after 600 s, the time limit, in \S*train\.py:[23]; allowed is .*\n +reading"
    with pytest.raises(CaptureError, match=said):
        capture_script(tmp_path / "train.py", machine=A100, timeout_s=600)


def test_a_script_is_left_when_its_time_is_over(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"0 of 3 steps were done after 0\.5 s, the time limit"):
        captured(tmp_path, "import time\ntime.sleep(600)\n", timeout_s=0.5)


def test_a_script_can_ask_the_terminal_for_its_size_and_reads_nothing_from_it(tmp_path: Path) -> None:
    # given an estimate that is asked for from a terminal of 30 lines of 90 characters
    (tmp_path / "train.py").write_text("import os\nraise ValueError(os.popen('stty size').read().split())")
    (tmp_path / "waits.py").write_text("input()")
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))

    def said(name: str) -> str:
        command = [sys.executable, "-m", "elbowroom", "estimate", "--gpu", "t4", str(tmp_path / name)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, stdin=terminal, capture_output=True, text=True, env=environment, check=False)
        return done.stderr

    # then it is told so, and does not wait for a key
    assert "['30', '90']" in said("train.py")
    assert "EOFError" in said("waits.py")
    os.close(terminal)
    os.close(main)
