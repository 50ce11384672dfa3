"""`elbowroom run --live` and `--live-port`, and `elbowroom watch`, in a real pseudo terminal and from outside."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="elbowroom run runs torch scripts")

from tests.cli.answers import answered
from tests.cli.processes import environment, layers, python
from tests.core.small_terminal import SmallTerminal

pytestmark = pytest.mark.long

ROWS, COLUMNS = 20, 100

# Each layer saves an output of 1 MiB. After the fifth of ten steps the script waits until the test has looked, so that
# nothing depends on time.
SCRIPT = (
    layers(1024)
    + """
for n in range(10):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    if sys.argv[1] == "bar":
        print(f"\\r{n + 1:2}/10 [{'#' * n:9}] loss {loss.item().hex()}", end="", file=sys.stderr, flush=True)
    else:
        print("loss", loss.item().hex(), flush=True)
    while n == 4 and sys.argv[2] == "wait" and not os.path.exists("looked"):
        time.sleep(0.02)
print()
print("weights", model[0][0].weight.sum().item().hex())
"""
)
OPTIONS = ("-m", "elbowroom", "run", "--budget", "14MiB", "--min-size", "512KiB", "--no-check")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def own(folder: Path) -> dict[str, str]:
    return {"ELBOWROOM_CACHE_DIR": str(folder / "cache"), "TERM": "xterm"}


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python(folder, *words, **own(folder))


class Shown:
    """A command in a pseudo terminal, and its screen."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        command = [sys.executable, *words]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**own(folder)), cwd=folder
        )
        os.close(theirs)
        self.screen = SmallTerminal(COLUMNS, ROWS)
        self._rest = b""

    def reads(self) -> bool:
        """Take what is written next; False at its end."""
        select.select([self.ours], [], [])
        try:
            found = os.read(self.ours, 65536)
        except OSError:  # Linux: nobody has the other end any more
            return False
        text, self._rest = _whole(self._rest + found)
        self.screen.write(text.decode())
        return bool(found)

    def waits_for(self, pattern: str) -> re.Match[str]:
        """Read until the screen has a pattern."""
        while (found := re.search(pattern, "\n".join(self.screen.screen))) is None:
            assert self.reads(), f"it ended before {pattern!r}: {self.screen.written}"
        return found

    def ends(self) -> int:
        while self.reads():
            pass
        os.close(self.ours)
        return self.process.wait()


def _whole(found: bytes) -> tuple[bytes, bytes]:
    """Split bytes before a character that has not come whole."""
    for end in range(len(found), max(-1, len(found) - 4), -1):
        try:
            found[:end].decode()
        except UnicodeDecodeError:
            continue
        return found[:end], found[end:]
    raise AssertionError(found)


@pytest.fixture
def shown(folder: Path) -> Iterator[list[Shown]]:
    started: list[Shown] = []
    yield started
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def test_prints_come_as_without_it_and_the_lines_are_below_them(folder: Path, shown: list[Shown]) -> None:
    plain = ran(folder, "train.py", "print", "run")
    shown.append(run := Shown(folder, *OPTIONS, "--live", "train.py", "print", "wait"))

    lines = run.waits_for(r"elbowroom: 5 steps ended \| .* back|elbowroom: in step 5 for .* back")
    bottom = run.screen.screen[-3:]
    (folder / "looked").touch()
    code = run.ends()

    assert code == 0
    assert lines[0] == bottom[0][: len(lines[0])]
    assert re.fullmatch(r"cpu \[[#.]{20}\] (\S+ MiB at the peak|not yet measured,) of 14.0 MiB \| .*", bottom[1])
    assert bottom[2].startswith("plan: ")
    written = run.screen.written
    assert written[:12] == plain.stdout.splitlines()
    assert written[12].startswith("elbowroom: budget 14.0 MiB, planned peak ")
    assert not any(line.startswith(("cpu [", "plan: ")) for line in written)
    assert (run.screen.top, run.screen.bottom) == (0, ROWS - 1)


def test_a_stopped_run_gives_the_rows_back_and_takes_them_again(folder: Path, shown: list[Shown]) -> None:
    # given a run that Ctrl-Z stops in the middle
    shown.append(run := Shown(folder, *OPTIONS, "--live", "train.py", "print", "wait"))
    run.waits_for(r"elbowroom: 5 steps ended|elbowroom: in step 5 for")
    assert run.screen.bottom == ROWS - 4

    os.kill(run.process.pid, signal.SIGTSTP)
    while run.screen.bottom != ROWS - 1:
        assert run.reads()
    _, status = os.waitpid(run.process.pid, os.WUNTRACED)

    # then the shell has all rows, and none of the lines
    assert os.WIFSTOPPED(status)
    assert not any("elbowroom: " in line or "plan: " in line for line in run.screen.screen)

    # and when it goes on, they come back below the script's own
    os.kill(run.process.pid, signal.SIGCONT)
    run.waits_for(r"elbowroom: 5 steps ended|elbowroom: in step 5 for")
    assert run.screen.bottom == ROWS - 4
    (folder / "looked").touch()
    assert run.ends() == 0
    assert (run.screen.top, run.screen.bottom) == (0, ROWS - 1)


def test_a_progress_bar_stays_in_one_line(folder: Path, shown: list[Shown]) -> None:
    shown.append(run := Shown(folder, *OPTIONS, "--live", "train.py", "bar", "wait"))

    run.waits_for(r"5 steps ended|in step 5 for")
    in_the_middle = [line for line in run.screen.written if line.startswith(" 5/10 [####     ] loss 0x")]
    (folder / "looked").touch()
    code = run.ends()

    assert code == 0
    assert len(in_the_middle) == 1
    assert [line for line in run.screen.written if "/10 [" in line] == [
        line for line in run.screen.written if line.startswith("10/10 [#########] loss 0x")
    ]


def test_without_a_terminal_it_says_so_and_the_numbers_are_the_same(folder: Path) -> None:
    plain = ran(folder, "train.py", "print", "run")

    inside = ran(folder, *OPTIONS, "--live", "train.py", "print", "run")

    assert (inside.returncode, inside.stdout) == (0, plain.stdout)
    assert inside.stderr.startswith("elbowroom: --live: standard error and output are no terminal that can show lines")
    assert "\x1b" not in inside.stderr


def test_the_page_and_watch_show_the_run_until_it_ends(folder: Path, shown: list[Shown]) -> None:
    words = (*OPTIONS, "--live-port", "0", "train.py", "print", "wait")
    shown.append(run := Shown(folder, *words))
    address = run.waits_for(r"elbowroom: this run is at (http://127\.0\.0\.1:\d+/\?token=[\w-]{32})")[1]
    run.waits_for(r"(?s)(loss.*){5}")
    base, _, query = address.partition("?")

    # the page takes a look once a second
    figures = json.loads(urllib.request.urlopen(f"{base}figures?{query}").read())
    while figures["steps"] < 4:
        figures = json.loads(urllib.request.urlopen(f"{base}figures?{query}").read())
    watched = ran(folder, "-m", "elbowroom", "watch")
    in_json = answered(ran(folder, "-m", "elbowroom", "watch", "--json").stdout, "watch")
    listed = ran(folder, "-m", "elbowroom", "watch", "--list")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(base)
    modes = [path.stat().st_mode & 0o777 for path in (folder / "cache" / "running").iterdir()]
    (folder / "looked").touch()
    code = run.ends()

    assert code == 0
    assert (figures["script"], figures["budget_bytes"]) == ("train.py", 14 * 2**20)
    assert watched.stdout.splitlines()[0] == f"{run.process.pid}  train.py"
    assert watched.stdout.splitlines()[3].startswith("plan: ")
    assert [(each["process"], each["budget_bytes"]) for each in in_json["runs"]] == [(run.process.pid, 14 * 2**20)]
    assert listed.stdout == f"{run.process.pid}  train.py\n"
    assert modes == [0o600]
    # afterwards there is neither a file nor a port
    assert not list((folder / "cache" / "running").iterdir())
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)
    assert "no run of yours goes on" in ran(folder, "-m", "elbowroom", "watch").stdout


def test_a_run_that_is_ended_from_outside_gives_the_terminal_back(folder: Path, shown: list[Shown]) -> None:
    shown.append(run := Shown(folder, *OPTIONS, "--live", "train.py", "print", "wait"))
    run.waits_for(r"5 steps ended|in step 5 for")

    run.process.terminate()
    code = run.ends()

    assert code == -15
    assert (run.screen.top, run.screen.bottom) == (0, ROWS - 1)
    assert not any(line.startswith(("cpu [", "plan: ")) for line in run.screen.written)
    # its file is cleared away as the runs are listed
    assert "no run of yours goes on" in ran(folder, "-m", "elbowroom", "watch").stdout
    assert not list((folder / "cache" / "running").iterdir())


def test_a_fork_of_the_scripts_ends_without_the_lines(folder: Path, shown: list[Shown]) -> None:
    (folder / "forks.py").write_text(
        "import os, sys\nchild = os.fork()\nif child == 0:\n    sys.exit(5)\n"
        "print('child', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    shown.append(run := Shown(folder, *OPTIONS, "--live", "--live-port", "0", "forks.py"))

    code = run.ends()

    assert code == 0
    assert "child 5" in run.screen.written


def test_a_port_that_is_no_port_is_refused_before_the_script_starts(folder: Path) -> None:
    found = ran(folder, *OPTIONS, "--live-port", "70000", "train.py", "print", "run")

    assert (found.returncode, found.stdout) == (2, "")
    assert "--live-port: given 70000; allowed is a free port from 1024 to 65535" in found.stderr


def test_a_process_that_is_no_run_is_refused(folder: Path) -> None:
    found = ran(folder, "-m", "elbowroom", "watch", "1")

    assert found.returncode == 2
    assert "watch: given process 1; allowed are none: no run of yours with --live goes on here" in found.stderr
