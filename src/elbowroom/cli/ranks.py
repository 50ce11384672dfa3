"""Ranks: `--ranks`, `--local` and `--rank`: which processes of a job of many a verb looks at."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from elbowroom.capture.job_rank import JobRank
from elbowroom.cli.scripts import RECORD
from elbowroom.errors import UsageError
from elbowroom.hardware.interconnects import Interconnect
from elbowroom.machine import Machine

LAST, ALL = "last", "all"
_FORM = f"a rank or several, as in 0,7 or 0,{LAST}, or {ALL}"
MOST = 64
"""Most ranks that "all" stands for: each is captured by itself."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of a verb."""
    parser.add_argument("--ranks", type=int, metavar="N", help="as one of N processes that torchrun starts, a GPU each")
    parser.add_argument("--local", type=int, metavar="L", help="of these on each computer (default: all of up to 8)")
    parser.add_argument("--rank", metavar="R", help=f"the ranks to look at: 0,7 or 0,{LAST} or {ALL} (default: 0)")
    parser.add_argument(
        "--interconnect",
        metavar="A,B",
        help="links inside a computer and its network, as in nvlink-4,8xndr or 300GB/s,8x25GB/s (default: by the GPU)",
    )


def wires_of(arguments: argparse.Namespace, machine: Machine) -> Interconnect:
    """Return how the ranks reach each other: what is given, else what is usual with the GPU.

    Raises:
        UsageError: it is no interconnect.
    """
    return Interconnect.of_gpu(machine.name, machine.compute_capability, arguments.interconnect)


def jobs_of(arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> list[JobRank | None]:
    """Return the processes to look at; [None] if no job of many was asked for.

    Behind a launcher, `--rank` alone is enough: its options say how many processes there are.

    Raises:
        UsageError: there is no such process, or one is given twice.
    """
    environment = os.environ if environment is None else environment
    ranks, local, asked = arguments.ranks, arguments.local, arguments.rank
    if asked is not None:
        ranks, local = size_of(arguments, environment)
    if ranks is None:
        for name, value in (("--rank", asked), ("--local", local)):
            if value is not None:
                raise UsageError(
                    f"{name}: given {value} without --ranks; allowed is both; add the size of the job, as in --ranks 8"
                )
        return [None]
    found: list[JobRank | None] = []
    if asked == ALL:
        return [_job(str(rank), ranks, local) for rank in range(checked_all(ranks))]
    for word in (asked or "0").split(","):
        job = _job(word.strip(), ranks, local)
        if job in found:
            raise UsageError(f"--rank: given {word.strip()} twice; allowed is each once; leave one out")
        found.append(job)
    return found


def job_of(arguments: argparse.Namespace, verb: str) -> JobRank | None:
    """Return the one process to look at; None if no job of many was asked for.

    Raises:
        UsageError: several are given, or as for `jobs_of`.
    """
    found = jobs_of(arguments)
    if len(found) > 1:
        raise UsageError(
            f"--rank: given {len(found)} ranks; {verb} takes one, as each rank has its own; run it once for each"
        )
    return found[0]


def refuse_trace(path: str, job: JobRank | None) -> None:
    """Refuse a trace where a rank is asked for.

    Raises:
        UsageError: both are given.
    """
    if path.endswith(RECORD) and job is not None:
        raise UsageError(
            f"--ranks: given with the trace {path}; allowed is a script: a trace is of the rank it was made for; name "
            "the script, or leave out --ranks"
        )


def size_of(
    arguments: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> tuple[int | None, int | None]:
    """Return the ranks of a job and of each computer: what is given, else what a launcher says; None if nothing is."""
    environment = os.environ if environment is None else environment
    said = environment.get("WORLD_SIZE", "")
    if arguments.ranks is not None or not said.isdigit():
        return arguments.ranks, arguments.local
    local = int(environment.get("LOCAL_WORLD_SIZE") or said)
    return int(said), local if arguments.local is None else arguments.local


def numbers_of(arguments: argparse.Namespace) -> list[int]:
    """Return the ranks to look at whatever the size of the job: -1 for the last one, none for all of them.

    Raises:
        UsageError: a word is no rank.
    """
    if arguments.rank == ALL:
        return []
    words = [word.strip() for word in (arguments.rank or "0").split(",")]
    return [-1 if word == LAST else _number(word) for word in dict.fromkeys(words)]


def checked_all(ranks: int) -> int:
    """Return the size of a job all of whose ranks are looked at.

    Raises:
        UsageError: they are too many.
    """
    if ranks > MOST:
        raise UsageError(
            f"--rank: given {ALL} of {ranks} ranks; allowed is up to {MOST}, as each is captured; name some of them, "
            f"as in --rank 0,{LAST}"
        )
    return ranks


def _number(word: str) -> int:
    if not word.isdecimal():
        raise UsageError(f"--rank: given {word!r}; allowed is {_FORM}; write for example --rank 0,{LAST}")
    return int(word)


def _job(word: str, ranks: int, local: int | None) -> JobRank:
    """Return one process.

    Raises:
        UsageError: there is no such process.
    """
    number = ranks - 1 if word == LAST else _number(word)
    try:
        return JobRank.of(number, ranks, local)
    except UsageError as problem:
        raise UsageError(f"--{problem}") from None
