"""Limited run: a child process under a limit or none, and its reports until it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, ClassVar, Protocol

from elbowroom.demo.limits import CommandLimit

Watcher = Callable[[Mapping[str, Any]], None]

ENVIRONMENT = {
    # Otherwise torch's profiler writes to standard output, and MONAI's imports warn of parts that are not used here.
    "KINETO_LOG_LEVEL": "5",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
    # Threads of an op wait asleep: on a busy computer, spinning threads take the cores from working ones.
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Environment variables of all children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedTrial:
    """What a child reported, and how it ended.

    Attributes:
        events: its events in order, as the child makes them.
        exit_code: its exit code; negative for the signal that ended it.
        peak_rss_bytes: resident peak as the system counted it, until its end.
        output: the end of its text output.
    """

    events: tuple[Mapping[str, Any], ...]
    exit_code: int
    peak_rss_bytes: int
    output: str

    @property
    def failed(self) -> bool:
        """Whether it ended before its last step."""
        return self.exit_code != 0

    @property
    def out_of_memory(self) -> bool:
        """Whether it failed for lack of memory: the kernel killed it, or an allocation was refused."""
        refused = ("MemoryError", "can't allocate memory", "not enough memory", "Cannot allocate memory", "bad_alloc")
        return self.exit_code in (-signal.SIGKILL, 137) or (
            self.failed and any(word in self.output for word in refused)
        )

    @property
    def losses(self) -> list[float]:
        """Loss of each step that ended."""
        return [event["loss"] for event in self.all_of("step")]

    def step_ns(self, first: int) -> int | None:
        """Return the median duration of the steps from `first` on; None if there was none."""
        durations = [event["step_ns"] for event in self.all_of("step")[first:]]
        return round(median(durations)) if durations else None

    def all_of(self, name: str) -> list[Mapping[str, Any]]:
        """Return the events of a name."""
        return [event for event in self.events if event["event"] == name]

    def figure(self, name: str, of: str) -> Any:
        """Return a figure of the last event of a name; None if there is no such event."""
        found = self.all_of(of)
        return found[-1].get(name) if found else None

    def has_numbers_of(self, other: LimitedTrial) -> bool:
        """Whether losses and final weights are those of another trial, bit by bit."""
        weights = [of.figure("weights_sha256", "trained") for of in (self, other)]
        return self.losses == other.losses and weights[0] is not None and weights[0] == weights[1]

    def warnings(self) -> list[str]:
        """Return what elbowroom warned of."""
        return [line for line in self.output.splitlines() if "Warning: elbowroom: " in line]

    def ending(self) -> str:
        """Say how it ended, in words."""
        if not self.failed:
            return "finished"
        if self.exit_code in (-signal.SIGKILL, 137):
            return "killed by the kernel: out of memory"
        last = next((line for line in reversed(self.output.splitlines()) if line.strip()), "")
        return f"exit code {self.exit_code}: {last.strip()}"


class ChildOrder(Protocol):
    """Order for a child process: a frozen record.

    Attributes:
        module: the module that carries it out.
    """

    module: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def argument(self) -> str:
        """Write it as a word of a command line."""
        ...


def run(order: ChildOrder, limit: CommandLimit | None, watch: Watcher) -> LimitedTrial:
    """Run a child to its end.

    Args:
        order: what the child does; its pipe is filled in here.
        limit: the limit that it runs under; None for no limit.
        watch: called with each event as it comes.
    """
    reading, writing = os.pipe()
    command = [sys.executable, "-m", order.module, replace(order, pipe=writing).argument()]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        child = subprocess.Popen(
            limit.wrap(command) if limit else command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(writing,),
            env=ENVIRONMENT | os.environ,
        )
        os.close(writing)
        try:
            events = _collected(reading, watch)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            child.kill()
            child.wait()
        output.seek(0)
        return LimitedTrial(
            events=tuple(events),
            exit_code=child.returncode,
            peak_rss_bytes=usage.ru_maxrss * 1024,
            output=output.read()[-20_000:],
        )


def _collected(reading: int, watch: Watcher) -> list[Mapping[str, Any]]:
    """Collect events until the child closes its end of the pipe; an incomplete last line is left out."""
    events: list[Mapping[str, Any]] = []
    with os.fdopen(reading, encoding="utf-8") as pipe:
        for line in pipe:
            if line.endswith("\n"):
                event = json.loads(line)
                events.append(event)
                watch(event)
    return events
