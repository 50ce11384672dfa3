"""Residence: how memory that storages left goes back to the system, by the C library's allocator in RAM.

glibc serves a request above M_MMAP_THRESHOLD from a mapping of its own, which goes back to the system when freed. The
threshold grows by itself up to 32 MiB as such blocks are freed. Blocks below it stay with the process. Memory that
stays is used again without page faults, which makes it fast, and counts as RSS. See mallopt(3).

Note: [Giving back]
How freed blocks go back depends on how much RAM there is beyond the budget. With little RAM, the thresholds are fixed
low, and free memory goes back for every few storages that leave. RSS is then what is allocated and no more. With plenty
of RAM, blocks stay as they would without elbowroom until RSS reaches a mark. Then all free memory goes back. Measured
on a ResNet-50 step: 200,000 page faults the first way, 60,000 the second, 15,000 in plain training. The second way
saves a tenth or more of the step's time. What is resident after that does not go back: it is in use, or lies between
blocks that are. So free memory goes back next when RSS has grown from there.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, final

import torch

from elbowroom.engine.ram_guard import RamGuard
from elbowroom.errors import Infeasible
from elbowroom.hardware import ram

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LOW_BYTES = 1 << 20
GUARDED_BYTES = 128 << 10
"""Threshold below a hard limit. Larger blocks are mapped by themselves there: Note: [Guard] in ram_guard.py."""
GROWN_BYTES = 32 << 20
"""Threshold that a process reaches by itself when it frees large blocks (DEFAULT_MMAP_THRESHOLD_MAX)."""
TRIM_BYTES = 16 << 20
"""If memory is short, free memory goes back each time that storages of this size have left."""
LOOK_NS = 1_000_000
"""Least time between two reads of RSS. Page faults add some MiB in between."""
LOOK_SHARE = 50
"""A read of RSS takes microseconds, or hundreds of them in some virtual machines: at most one such part of the time."""
LOOK_BYTES = 8 << 20
"""RSS is read at once when storages of this size have left: new ones take as much, and their page faults cost more."""
CODE_BYTES = 8 << 20
"""Resident memory grows by this much in a step whose storages did not: libraries load, and threads get their heaps."""
LEAST_SPARE_BYTES = 24 << 20
SPARE_SHARE = 12
"""Below a hard limit, 1/SPARE_SHARE of the room for storages stays free, or LEAST_SPARE_BYTES if that is more."""
END_SHARE = 8
"""As a run ends, 1/END_SHARE of the memory stays free for what the process does next."""
_MOST = re.compile(rb"VmHWM:\s+(\d+) kB")
SYSTEM_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def give_back(threshold_bytes: int = LOW_BYTES) -> bool:
    """Fix the thresholds low, and return memory that is free already. False if the C library has no mallopt."""
    done = _set(threshold_bytes)
    trim()
    return done


def trim() -> None:
    """Return free memory to the system now. Free blocks in holes of the heap would stay with the process otherwise."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def as_usual() -> bool:
    """Set the thresholds to what they would have grown to. A job that fits then runs as it would without elbowroom."""
    return _set(GROWN_BYTES)


def _set(threshold_bytes: int) -> bool:
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    done = library.mallopt(M_MMAP_THRESHOLD, threshold_bytes) and library.mallopt(M_TRIM_THRESHOLD, 2 * threshold_bytes)
    return bool(done)


def slack_bytes(budget_bytes: int) -> int:
    """Return how much resident memory may exceed a budget, by freed blocks that stay with the process."""
    return budget_bytes // 8


def most_resident_bytes() -> int:
    """Return the most that was resident since the last `forget_most`, or else since the process began.

    ru_maxrss is no answer on Linux: a process takes over that of the one that started it, and nothing resets it.
    """
    with suppress(OSError), open("/proc/self/status", "rb", buffering=0) as status:
        found = _MOST.search(status.read(4096))
        if found is not None:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_forgotten = [0]


def most_ever_bytes() -> int:
    """Return the most that was resident since the process began, whatever was forgotten."""
    return max(_forgotten[0], most_resident_bytes())


def forget_most() -> bool:
    """Count the most that is resident anew from now on. False if the system does not allow it: proc(5), clear_refs."""
    _forgotten[0] = most_ever_bytes()
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as counters:
            counters.write(b"5")
    except OSError:
        return False
    return True


def resident_bytes() -> int:
    """Return the RSS of this process; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            return int(statm.read(100).split()[1]) * SYSTEM_PAGE_BYTES
    except OSError:
        return 0


class SoFar(NamedTuple):
    """Counts of a device up to now.

    Attributes:
        asked_bytes: sum of all bytes that its allocator was asked for; 0 if nothing counts them.
        beyond_bytes: bytes that it has held beyond a budget.
        resident_bytes: the most that was resident, where only that is known; 0 where storages are counted. It grows by
            loaded code too.
    """

    asked_bytes: int
    beyond_bytes: int
    resident_bytes: int = 0

    def excess_since(self, before: SoFar) -> int:
        """Return the bytes beyond the budget that a step is to blame for."""
        if self.beyond_bytes <= before.beyond_bytes:
            return 0
        if not self.resident_bytes:
            return self.beyond_bytes
        grown_bytes = self.resident_bytes - before.resident_bytes
        return min(self.beyond_bytes, grown_bytes) if grown_bytes > CODE_BYTES else 0


class Residence(ABC):
    """Returns memory that storages left to where it came from: the system or the driver.

    Attributes:
        other_allocators: other settings that a run may give a caching allocator, as in PYTORCH_ALLOC_CONF.
    """

    other_allocators: tuple[str, ...] = ()

    @abstractmethod
    def measure(self, live_bytes: Callable[[], int]) -> int:
        """Give back all free memory, and return the bytes that the device holds besides storages.

        Args:
            live_bytes: returns the bytes of all storages in RAM; takes tens of milliseconds.
        """

    @abstractmethod
    def so_far(self, budget_bytes: int) -> SoFar:
        """Return the counts of the device up to now. Costs some microseconds."""

    def most_bytes(self) -> int:
        """Return the most bytes that the allocator has held since this room opened; 0 if nothing counts them."""
        return 0

    def held_bytes(self) -> int | None:
        """Return the bytes that the device holds now, as a budget counts them; None if only a recording says it."""
        return None

    def beyond(self, budget_bytes: int) -> int:  # noqa: ARG002 - for devices without exact counts
        """Return the bytes that the device holds now beyond a budget."""
        return 0

    def run_opens(self) -> None:  # noqa: B027
        """Prepare for what comes before the first step: models are made, and weights are loaded."""

    def training_begins(self, root: torch.nn.Module | None) -> None:  # noqa: B027
        """Prepare for the first step, which begins with a call of this module."""

    def others_come(self, needed_bytes: int, budget_bytes: int) -> bool:  # noqa: ARG002 - for devices without a cache
        """Make room for a step of a known kind that holds other storages than the step before.

        Args:
            needed_bytes: peak of the step from an empty cache, with all that is held now.
            budget_bytes: budget of the device.

        Returns:
            Whether all free memory was given back, as both would not fit.
        """
        return False

    def empty(self) -> None:  # noqa: B027
        """Give back all free memory: when a plan says so, and before steps of new kinds.

        Work of the device that still reads it ends first.
        """

    def allocated_bytes(self) -> int:
        """Return the bytes in blocks of a caching allocator that are in use; 0 if there is none."""
        return 0

    def room_at_end(self, most_bytes: int) -> int:
        """Return the bytes that may come back to the device as a run ends, which may hold `most_bytes` in blocks."""
        return most_bytes - self.allocated_bytes()

    def allocate_by(self, settings: str) -> None:  # noqa: B027 - for devices without a caching allocator
        """Give the caching allocator one of `other_allocators` for the segments that it makes from now on."""

    def limit(self, size_bytes: int | None) -> bool:  # noqa: ARG002 - for devices without a caching allocator
        """Limit what a caching allocator may hold from now on; None restores the earlier limit.

        Returns whether that is another limit than before.
        """
        return False

    def begin(self) -> None:  # noqa: B027 - for devices that need nothing
        """Prepare for storages that leave from now on."""

    def end(self) -> None:  # noqa: B027
        """Return to normal: nothing moves any more."""

    def let_go(self, size_bytes: int) -> None:  # noqa: B027
        """Count a storage of this size that has left. A remaining reader frees it later."""

    def look(self) -> None:  # noqa: B027
        """Give back free memory if it is time to. Costs some microseconds otherwise."""

    def step_begins(self) -> None:  # noqa: B027
        """Note that a step begins."""

    def short_bytes(self) -> int:
        """Return how much more should have been left below a hard limit in the step that has just ended."""
        return 0

    def room_bytes(self, live_bytes: Callable[[], int], peak_bytes: int) -> int | None:  # noqa: ARG002
        """Return the bytes that all storages may hold below a hard limit on the process; None without such a limit.

        Args:
            live_bytes: returns the bytes of all storages in RAM; takes tens of milliseconds.
            peak_bytes: the most that storages held in the recorded step that has just ended.
        """
        return None

    def refusal(self, problem: BaseException, budget_bytes: int, where: str) -> Infeasible | None:  # noqa: ARG002
        """Return what to raise for an error that ended a run, if the device ran out of memory; None otherwise.

        Args:
            problem: the error.
            budget_bytes: the budget of the run.
            where: the place in the training, in words.
        """
        return None

    @property
    def refuses(self) -> bool:
        """Whether the device refuses memory with an error that `asked_bytes` knows."""
        return False

    def asked_bytes(self, problem: BaseException) -> int | None:  # noqa: ARG002
        """Return the bytes that were asked for, if this error says that the device did not have them; else None."""
        return None

    def needed_bytes(self, asked_bytes: int) -> int:  # noqa: ARG002
        """Return the least that a budget, or else a hard limit, must allow for a request that has just been refused.

        Args:
            asked_bytes: what was asked for.

        Returns:
            Bytes; 0 if nothing is known of them.
        """
        return 0

    def is_short(self, peak_bytes: int) -> bool:  # noqa: ARG002 - for devices without a hard limit
        """Return whether a step that holds `peak_bytes` of storages comes near a hard limit."""
        return False

    def close(self) -> None:  # noqa: B027
        """End: the run is over."""


@final
class RamResidence(Residence):
    """RAM of the process, which goes back to the system: see Note: [Giving back].

    What it holds besides storages is the interpreter, libraries and their caches.

    Args:
        storages_bytes: RSS beyond these other bytes up to which freed blocks stay; None returns them at once.
        guard: keeps the process below a hard limit; None if there is no such limit.
    """

    def __init__(self, storages_bytes: int | None = None, guard: RamGuard | None = None) -> None:
        self._storages_bytes = storages_bytes
        self._guard = guard
        self._low_bytes = LOW_BYTES if guard is None else GUARDED_BYTES
        self._outside_bytes = self._most_bytes = self._mark_bytes = 0
        self._on, self._counts_most = True, False
        self._let_go_bytes = self._next_look_ns = 0

    def measure(self, live_bytes: Callable[[], int]) -> int:
        trim()
        self._outside_bytes = max(0, resident_bytes() - live_bytes())
        self._most_bytes = self._mark_bytes = self._outside_bytes + (self._storages_bytes or 0)
        return self._outside_bytes

    def so_far(self, budget_bytes: int) -> SoFar:
        most_bytes = most_resident_bytes()
        beyond_bytes = most_bytes - self._outside_bytes - budget_bytes - slack_bytes(budget_bytes)
        return SoFar(0, max(0, beyond_bytes), most_bytes)

    def begin(self) -> None:
        self._on = True
        if self._storages_bytes is None:
            give_back(self._low_bytes)
        else:
            as_usual()

    def end(self) -> None:
        self._on = False
        as_usual()

    def let_go(self, size_bytes: int) -> None:
        self._let_go_bytes += size_bytes

    def step_begins(self) -> None:
        self._counts_most = self._guard is not None and forget_most()
        if self._storages_bytes is not None and self._mark_bytes > self._most_bytes:
            self._mark_bytes = min(self._mark_bytes, self._mark_above(resident_bytes()))

    def short_bytes(self) -> int:
        if self._guard is None or not self._counts_most:
            return 0
        return max(0, most_resident_bytes() - resident_bytes() - self._guard.left_bytes())

    def room_bytes(self, live_bytes: Callable[[], int], peak_bytes: int) -> int | None:
        if self._guard is None:
            return None
        at_peak_bytes = most_resident_bytes() - peak_bytes if self._counts_most else 0
        outside_bytes = max(at_peak_bytes, self.measure(live_bytes))
        room_bytes = self._guard.own_left_bytes() + resident_bytes() - outside_bytes
        return max(0, room_bytes - max(LEAST_SPARE_BYTES, room_bytes // SPARE_SHARE))

    def room_at_end(self, most_bytes: int) -> int:  # noqa: ARG002 - the computer counts, and no budget any more
        if self._guard is None:
            return ram.free_bytes() * (END_SHARE - 1) // END_SHARE
        return self._guard.own_left_bytes() - self._guard.allowed_bytes() // END_SHARE

    def is_short(self, peak_bytes: int) -> bool:
        if self._guard is None:
            return False
        self._guard.follow(now=True)  # the limit may have been lowered since
        return self._guard.left_bytes() < 2 * peak_bytes

    @property
    def refuses(self) -> bool:
        return self._guard is not None

    def asked_bytes(self, problem: BaseException) -> int | None:
        return None if self._guard is None else self._guard.asked_bytes(problem)

    def needed_bytes(self, asked_bytes: int) -> int:
        return 0 if self._guard is None else self._guard.needed_bytes(asked_bytes)

    def close(self) -> None:
        if self._guard is not None:
            self._guard.lift()

    def run_opens(self) -> None:
        if self._guard is not None:
            self._guard.stand_by()

    def training_begins(self, root: torch.nn.Module | None) -> None:  # noqa: ARG002
        if self._guard is not None:
            self._guard.stand()

    def look(self) -> None:
        if self._guard is not None:
            self._guard.follow()
        if not self._on:
            return
        if self._storages_bytes is not None:
            if self._let_go_bytes >= LOOK_BYTES or time.perf_counter_ns() >= self._next_look_ns:
                self._let_go_bytes = 0
                self._look_at_mark()
        elif self._let_go_bytes >= TRIM_BYTES:
            self._let_go_bytes = 0
            trim()

    def _look_at_mark(self) -> None:
        began_ns = time.perf_counter_ns()
        held_bytes = resident_bytes()
        now_ns = time.perf_counter_ns()
        self._next_look_ns = now_ns + max(LOOK_NS, LOOK_SHARE * (now_ns - began_ns))
        if held_bytes > self._mark_bytes:
            trim()
            self._mark_bytes = self._mark_above(resident_bytes())

    def _mark_above(self, held_bytes: int) -> int:
        """Return up to where RSS may grow from here before free memory goes back."""
        return max(self._most_bytes, held_bytes + max(TRIM_BYTES, slack_bytes(self._storages_bytes or 0)))
