"""`elbowroom watch`: the runs of this user that go on, and the live lines of one of them."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from elbowroom.cli import output
from elbowroom.cli.answer_types import WatchAnswer, WatchedRun
from elbowroom.errors import UsageError

if TYPE_CHECKING:
    from elbowroom.live.running_jobs import RunningJob

EVERY_S = 1.0
"""Seconds between two looks."""
PATIENCE_S = 10.0
"""Seconds that a run may take to answer: an op that keeps Python's lock holds up its answer."""
WIDE = 1000
"""Columns where no terminal says how wide it is."""


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser(
        "watch",
        help="what a run does now, in another terminal",
        epilog="Runs of this user on this computer that were started with --live or --live-port are found. A single "
        "one is shown until it ends; several are listed. Where standard output is no terminal, one moment is shown.",
    )
    parser.add_argument("process", nargs="?", type=int, metavar="PID", help="which run, by the number of its process")
    parser.add_argument("--list", action="store_true", help="list the runs, and show none")
    parser.add_argument("--json", action="store_true", help="answer in JSON: one moment of each run")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """List the runs, or show one until it ends."""
    from elbowroom.live.running_jobs import running_jobs

    jobs = _chosen(running_jobs(), arguments.process)
    if arguments.json:
        found = [(job, figures) for job in jobs if (figures := _figures(job)) is not None]
        output.write_answer(WatchAnswer(runs=tuple(_watched(job, figures) for job, figures in found)), output.STDOUT)
    elif not jobs:
        print("no run of yours goes on here that was started with --live or --live-port")
    elif arguments.list or len(jobs) > 1:
        for job in jobs:
            print(f"{job.process}  {job.script}")
        if not arguments.list:
            print("`elbowroom watch PID` shows one of them")
    else:
        _watch(jobs[0])
    return 0


def _chosen(jobs: Sequence[RunningJob], process: int | None) -> Sequence[RunningJob]:
    """Return the run of this process; all without one. Raises UsageError."""
    if process is None:
        return jobs
    found = [job for job in jobs if job.process == process]
    if not found:
        there = ", ".join(str(job.process) for job in jobs) or "none: no run of yours with --live goes on here"
        raise UsageError(f"watch: given process {process}; allowed are {there}; name one that `elbowroom watch` lists")
    return found


def _watch(job: RunningJob) -> None:
    """Show the lines of a run until it ends or Ctrl-C is pressed; one moment where no terminal shows them."""
    from elbowroom.live.live_lines import live_lines

    console = output.console()
    figures, drawn = _figures(job), 0
    with suppress(KeyboardInterrupt):
        while figures is not None:
            width = console.width - 1 if console.is_terminal else WIDE
            lines = [f"{job.process}  {job.script}"[:width], *live_lines(figures, width)]
            up = f"\x1b[{drawn}A" if drawn else ""
            clean = "\r\x1b[2K" if console.is_terminal else ""
            sys.stdout.write(up + "".join(f"{clean}{line}\n" for line in lines))
            sys.stdout.flush()
            if not console.is_terminal:
                return
            drawn = len(lines)
            time.sleep(EVERY_S)
            figures = _figures(job)
        print("the run has ended")


def _watched(job: RunningJob, figures: Mapping[str, Any]) -> WatchedRun:
    named = {each.name: figures[each.name] for each in fields(WatchedRun) if each.name in figures}
    totals = {name: value for name, value in figures["totals"].items() if name != "steps"}
    return WatchedRun(**{**named, "process": job.process, "script": job.script, "totals": totals})


def _figures(job: RunningJob) -> dict[str, Any] | None:
    """Ask a run for its figures; None if it has ended.

    Raises:
        UsageError: it is there, and does not answer.
    """
    connection = http.client.HTTPConnection("127.0.0.1", job.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/figures", headers={"Authorization": f"Bearer {job.token}"})
        answer = connection.getresponse()
        return json.loads(answer.read()) if answer.status == http.client.OK else None
    except TimeoutError:
        raise UsageError(
            f"watch: the run {job.process} has not answered for {PATIENCE_S:g} s; it may be stopped, or in one long "
            "op; try again later"
        ) from None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
