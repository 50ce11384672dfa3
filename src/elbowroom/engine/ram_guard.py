"""Guard of RAM: where the kernel would kill this process, a request for memory fails first.

Note: [Guard]
A memory cgroup with a hard limit, as containers and Slurm set one, is enforced by killing. The guard sets the soft
RLIMIT_DATA to what is held as data now, and what is left below the limit. Beyond that mmap fails, torch's allocator
raises an error, and the run refuses with figures. Data is counted when it is mapped, not when it is touched. So large
blocks must not lie in the heap: its holes are mapped, and not resident. residence.py sees to that.

What is left changes as other processes take memory, and as the heap's free pages go back. The guard follows it where a
run has control. A thread looks at the limit itself, which may be lowered while an op computes. A forked child gets back
the RLIMIT_DATA that was there.

Before the first step nothing is refused: weights may lie in a mapped file that is larger than the limit, and what is
mapped counts as data. A thread says it once if little is left then, as the kernel kills without a word.

To say what happened takes memory too. A few MiB are mapped for that beforehand, and go back as an error ends the run.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, final

from elbowroom.errors import Infeasible, TierFull
from elbowroom.hardware.ram import HardLimit
from elbowroom.units import format_bytes, format_exact_bytes

FOLLOW_NS = 20_000_000
"""Least time between two looks at what is left. A look takes about a tenth of a millisecond."""
WATCH_S = 0.01
"""Time between two looks at the limit itself. A look takes some hundredths of a millisecond."""
KEPT_BYTES = 16 << 20
"""Bytes below a limit that no large block may take: small ones may, and the kernel's page tables."""
LEAST_LEFT_BYTES = 4 << 20
"""If less is left, small blocks have taken the rest, and the run is refused where it has control."""
ANNOUNCED_BYTES = 64 << 20
"""If less is left before the first step, that is said: a process may fill half of it between two looks."""
RESERVED_BYTES = 4 << 20
"""Bytes that are mapped, and never touched, until an error is to be explained."""
COPIED_BYTES = 32 << 20
"""Bytes of its parent's memory that a child writes to, so that the system copies them."""
REFUSED = (
    "can't allocate memory",
    "not enough memory: you tried",
    "bad_alloc",
    "could not create a primitive",
    "could not execute a primitive",
    "can't start new thread",
)
"""Parts of the messages with which torch and its libraries say that the system refused memory."""
_ASKED = re.compile(r"tried to allocate (\d+) bytes")

_on: list[RamGuard] = []


def _after_fork() -> None:
    for guard in _on:
        guard.lift()


os.register_at_fork(after_in_child=_after_fork)


@final
class _TooLittleLeft(MemoryError):
    """Almost nothing is left below a limit."""


class LeastLimit(NamedTuple):
    """The least limit that may be enough: in bytes, and whether a capture of the script says so."""

    limit_bytes: int
    is_captured: bool


@final
class RamGuard:
    """Guard below the hard limits on the memory of this process.

    Args:
        limits: the limits.
        sharers: ranks of a job below the same limit, this one included.

    Attributes:
        kills: whether the kernel kills the process beyond one of them.
    """

    def __init__(self, limits: Sequence[HardLimit], sharers: int = 1) -> None:
        self._sharers = sharers
        self._limits = limits
        self._killing = [limit for limit in limits if limit.kills]
        self.kills = bool(self._killing)
        self._before: tuple[int, int] | None = None
        self._reserved: mmap.mmap | None = None
        with suppress(OSError):
            self._reserved = mmap.mmap(-1, RESERVED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._looked_ns = 0
        self._watch: threading.Thread | None = None
        self._ends = threading.Event()
        self._met_bytes = self.allowed_bytes()

    def allowed_bytes(self) -> int:
        """Return the least that the limits allow now."""
        return min((limit.now_bytes() for limit in self._limits), default=0)

    def was_lowered(self) -> bool:
        """Return whether less is allowed now than when this was asked last."""
        before_bytes, self._met_bytes = self._met_bytes, self.allowed_bytes()
        return self._met_bytes < before_bytes

    @property
    def limit(self) -> HardLimit:
        """The limit that leaves least now."""
        return min(self._limits, key=lambda limit: limit.left_bytes())

    def left_bytes(self) -> int:
        """Return the bytes that may still be taken now; 0 if there are none."""
        return max(0, min(limit.left_bytes() for limit in self._limits) - KEPT_BYTES)

    def own_left_bytes(self) -> int:
        """Return this rank's part of what is left. Limits that kill hold all ranks, others are each process's own."""
        left = (limit.left_bytes() // (self._sharers if limit.kills else 1) for limit in self._limits)
        return max(0, min(left) - KEPT_BYTES)

    def needed_bytes(self, asked_bytes: int) -> int:
        """Return the limit in bytes that has room for a request of this size, with what is held now."""
        return self.limit.limit_bytes + max(0, asked_bytes - self.own_left_bytes())

    def stand_by(self) -> None:
        """Say it once if little is left before the guard stands."""
        if self.kills and self._watch is None:
            self._watch_by(self._announces)

    def _announces(self) -> None:
        while not self._ends.wait(WATCH_S):
            limit = min(self._killing, key=lambda each: each.left_bytes())
            left_bytes = limit.left_bytes()
            if left_bytes < ANNOUNCED_BYTES:
                sys.stderr.write(  # a warning that is an error would end this thread alone
                    f"elbowroom: {limit.name} allows {format_bytes(limit.limit_bytes)}, of which "
                    f"{format_bytes(max(0, left_bytes))} are left before the first step. The kernel kills a process "
                    "that takes more: if it does, raise the limit, or take a smaller model\n"
                )
                sys.stderr.flush()
                return

    def _watch_by(self, watches: Callable[[], None]) -> None:
        """Let a thread watch in this way."""
        self._ends.clear()
        self._watch = threading.Thread(target=watches, name="elbowroom limit", daemon=True)
        self._watch.start()

    def _end_watch(self) -> None:
        self._ends.set()
        if self._watch is not None and self._watch.is_alive():
            self._watch.join()
        self._watch = None

    def stand(self, *, alone: bool = False) -> None:
        """Begin to guard. Where no limit kills there is nothing to do, as requests fail by themselves.

        Args:
            alone: whether no run has control in this process: the guard follows what is left by itself.
        """
        if self.kills and self._before is None:
            self._before = resource.getrlimit(resource.RLIMIT_DATA)
            _on.append(self)
            self._end_watch()
            self._watch_by(self._follows if alone else self._watches)
        self.follow(now=True)

    def _watches(self) -> None:
        """Follow the limit from the time that it is lowered until the run has control again.

        A block that an op has asked for and not yet filled counts as held and as left. So the least of all looks holds.
        """
        allowed_bytes, lowered_ns = self.allowed_bytes(), 0
        while not self._ends.wait(WATCH_S):
            before_bytes, allowed_bytes = allowed_bytes, self.allowed_bytes()
            if allowed_bytes < before_bytes:
                lowered_ns = time.perf_counter_ns()
            if lowered_ns > self._looked_ns:
                with suppress(MemoryError):  # the training meets it too
                    self._allow(min(limit.left_bytes() for limit in self._killing), at_most=_soft())

    def _follows(self) -> None:
        """Follow what is left all the time."""
        while not self._ends.wait(WATCH_S):
            with suppress(MemoryError):
                self.follow()

    def follow(self, *, now: bool = False) -> None:
        """Follow what is left, unless that was done a moment ago."""
        if self._before is None:
            return
        now_ns = time.perf_counter_ns()
        if not now and now_ns - self._looked_ns < FOLLOW_NS:
            return
        self._looked_ns = now_ns
        limit = min(self._killing, key=lambda each: each.left_bytes())
        left_bytes = limit.left_bytes()
        if left_bytes < LEAST_LEFT_BYTES:
            raise _TooLittleLeft(limit.name)
        self._allow(left_bytes)

    def _allow(self, left_bytes: int, at_most: int = 2**62) -> None:
        """Set the RLIMIT_DATA to what is held and what is left."""
        if self._before is None:
            return
        hard_bytes = self._before[1]
        allowed = [each for each in self._before if each != resource.RLIM_INFINITY]
        _set_soft(min(data_bytes() + max(0, left_bytes - KEPT_BYTES), *allowed, at_most), hard_bytes)

    def stand_in_child(self) -> None:
        """Guard a child of the process, which holds what that held: it may take what is left now and no more."""
        if self.kills:
            soft_bytes, hard_bytes = resource.getrlimit(resource.RLIMIT_DATA)
            room_bytes = data_bytes() + max(0, self.left_bytes() - COPIED_BYTES)
            _set_soft(room_bytes if soft_bytes == resource.RLIM_INFINITY else min(soft_bytes, room_bytes), hard_bytes)

    def lift(self) -> None:
        """End to guard: set the limit that was there before."""
        self._free_reserved()
        self._end_watch()
        if self._before is not None:
            soft_bytes, hard_bytes = self._before
            self._before = None
            with suppress(ValueError):
                _on.remove(self)
            _set_soft(soft_bytes, hard_bytes)

    def _free_reserved(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def asked_bytes(self, problem: BaseException) -> int | None:
        """Return the bytes to make room for, if this error says that a request was refused; None for any other error.

        They are KEPT_BYTES at least: to go on without a plan takes memory too.
        """
        return max(_said_bytes(problem), KEPT_BYTES) if _is_refused(problem) else None

    def refusal(self, problem: BaseException, budget_bytes: int, least: LeastLimit | None = None) -> Infeasible | None:
        """Return what to raise for an error that a refused request for memory caused; None for any other error.

        Args:
            problem: the error that ended the training.
            budget_bytes: the budget of the run.
            least: what is known of the limit that is needed, besides the size of the request.
        """
        self._free_reserved()
        cause = next((each for each in _causes(problem) if _is_refused(each) or self._has_hidden(each)), None)
        if cause is None:
            return None
        said_bytes = _said_bytes(cause)
        asked = format_bytes(said_bytes) if said_bytes else "whose size is not known"
        why = f"The training asked for more. Its last request, {asked}, goes beyond it."
        if least is None:
            return self.refused(why, said_bytes, budget_bytes)
        needed_bytes = max(least.limit_bytes, self.needed_bytes(said_bytes))  # the request may be another one
        is_captured = least.is_captured and needed_bytes == least.limit_bytes
        shown_by = ", as a capture of the script shows" if is_captured else ""
        return self.refused(why, needed_bytes - self.limit.limit_bytes, budget_bytes, shown_by)

    def _has_hidden(self, problem: BaseException) -> bool:
        """Return whether an error came up as nothing was left: linecache takes a MemoryError for an empty file."""
        if not isinstance(problem, OSError) or problem.errno is not None:
            return False
        return min(limit.left_bytes() for limit in self._limits) < LEAST_LEFT_BYTES + RESERVED_BYTES

    def refused(self, why: str, more_bytes: int, budget_bytes: int, shown_by: str = "") -> Infeasible:
        """Return the refusal of a run whose limit is too low.

        Args:
            why: what happened.
            more_bytes: the bytes that would be enough for that beyond the limit.
            budget_bytes: the budget of the run.
            shown_by: what shows that, in words; "" for the run itself.
        """
        limit, more_bytes = self.limit, max(more_bytes, KEPT_BYTES)
        needed = format_exact_bytes(limit.limit_bytes + more_bytes)
        outcome = "The kernel would have killed the process." if limit.kills else "The system refused it."
        return Infeasible(
            f"memory: {limit.name} allows {format_exact_bytes(limit.limit_bytes)}.\n{why} {outcome}\n"
            f"Try a limit of at least {needed}{shown_by}, or a smaller batch.",
            budget_bytes=budget_bytes,
            least_feasible_bytes=budget_bytes + more_bytes,
        )


def data_bytes() -> int:
    """Return the bytes that RLIMIT_DATA counts: writable private mappings, touched or not."""
    with open("/proc/self/statm", "rb", buffering=0) as statm:
        return int(statm.read(200).split()[5]) * resource.getpagesize()


def _soft() -> int:
    soft_bytes = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return 2**62 if soft_bytes == resource.RLIM_INFINITY else soft_bytes


def _set_soft(soft_bytes: int, hard_bytes: int) -> None:
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (soft_bytes, hard_bytes))


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it came from."""
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        yield problem
        problem = problem.__cause__ or problem.__context__


def _said_bytes(problem: BaseException) -> int:
    """Return the bytes that an error says were asked for; 0 if it does not say."""
    found = _ASKED.search(str(problem))
    return int(found[1]) if found else 0


def _is_refused(problem: BaseException) -> bool:
    if isinstance(problem, MemoryError):
        return True
    if isinstance(problem, SystemError):  # C code that got no memory, and did not say so
        return "without" in str(problem)
    if isinstance(problem, TierFull):
        return problem.tier == "device"
    if isinstance(problem, OSError):
        return problem.errno == errno.ENOMEM
    return isinstance(problem, RuntimeError) and any(part in str(problem) for part in REFUSED)
