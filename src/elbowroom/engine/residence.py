"""Residence: how memory that storages left goes back to the system, by the C library's allocator in RAM.

glibc serves a request above M_MMAP_THRESHOLD from a mapping of its own, which goes back to the system when freed. The
threshold grows by itself up to 32 MiB as such blocks are freed. Blocks below it stay with the process. Memory that
stays is used again without page faults, which makes it fast, and counts as RSS. See mallopt(3).

Note: [Giving back]
How freed blocks go back depends on how much RAM there is beyond the budget. With little RAM, the thresholds are fixed
low, and free memory goes back for every few storages that leave. RSS is then what is allocated and no more. With plenty
of RAM, blocks stay as they would without elbowroom until RSS reaches a mark. Then all free memory goes back. Measured
on a ResNet-50 step: 200,000 page faults the first way, 60,000 the second, 15,000 in plain training. The second way
saves a tenth or more of the step's time.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, final

import torch

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LOW_BYTES = 1 << 20
GROWN_BYTES = 32 << 20
"""Threshold that a process reaches by itself when it frees large blocks (DEFAULT_MMAP_THRESHOLD_MAX)."""
TRIM_BYTES = 16 << 20
"""If memory is short, free memory goes back each time that storages of this size have left."""
LOOK_NS = 1_000_000
"""Least time between two reads of RSS. A read takes tens of microseconds; page faults add some MiB in between."""
CODE_BYTES = 8 << 20
"""Resident memory grows by this much in a step whose storages did not: libraries load, and threads get their heaps."""
SYSTEM_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def give_back() -> bool:
    """Fix the thresholds low, and return memory that is free already. False if the C library has no mallopt."""
    return _set(LOW_BYTES)


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
    if threshold_bytes == LOW_BYTES:
        trim()
    return bool(done)


def slack_bytes(budget_bytes: int) -> int:
    """Return how much resident memory may exceed a budget, by freed blocks that stay with the process."""
    return budget_bytes // 8


def resident_bytes() -> int:
    """Return the RSS of this process; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            return int(statm.read(100).split()[1]) * SYSTEM_PAGE_BYTES
    except OSError:
        return 0


class AllocatorBytes(NamedTuple):
    """Bytes that a caching allocator holds: in blocks that are in use, and in all its segments."""

    allocated_bytes: int
    reserved_bytes: int


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
    """Returns memory that storages left to where it came from: the system or the driver."""

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

    def beyond(self, budget_bytes: int) -> int:  # noqa: ARG002 - for devices without exact counts
        """Return the bytes that the device holds now beyond a budget."""
        return 0

    def training_begins(self, root: torch.nn.Module | None) -> None:  # noqa: B027
        """Prepare for the first observed step, which begins with a call of this module."""

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

    def held(self) -> AllocatorBytes:
        """Return the bytes that a caching allocator holds now; 0 if there is none."""
        return AllocatorBytes(0, 0)

    def limit(self, size_bytes: int | None) -> None:  # noqa: B027
        """Give back all free memory, and limit what may be held from now on; None restores the earlier limit."""

    def begin(self) -> None:  # noqa: B027 - for devices that need nothing
        """Prepare for storages that leave from now on."""

    def end(self) -> None:  # noqa: B027
        """Return to normal: nothing moves any more."""

    def let_go(self, size_bytes: int) -> None:  # noqa: B027
        """Count a storage of this size that has left. A remaining reader frees it later."""

    def look(self) -> None:  # noqa: B027
        """Give back free memory if it is time to. Costs some microseconds otherwise."""


@final
class RamResidence(Residence):
    """RAM of the process, which goes back to the system: see Note: [Giving back].

    What it holds besides storages is the interpreter, libraries and their caches.

    Args:
        storages_bytes: RSS beyond these other bytes up to which freed blocks stay; None returns them at once.
    """

    def __init__(self, storages_bytes: int | None = None) -> None:
        self._storages_bytes = storages_bytes
        self._outside_bytes = self._most_bytes = 0
        self._on = True
        self._let_go_bytes = self._looked_ns = 0

    def measure(self, live_bytes: Callable[[], int]) -> int:
        trim()
        self._outside_bytes = max(0, resident_bytes() - live_bytes())
        self._most_bytes = self._outside_bytes + (self._storages_bytes or 0)
        return self._outside_bytes

    def so_far(self, budget_bytes: int) -> SoFar:
        most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        beyond_bytes = most_bytes - self._outside_bytes - budget_bytes - slack_bytes(budget_bytes)
        return SoFar(0, max(0, beyond_bytes), most_bytes)

    def begin(self) -> None:
        self._on = True
        (give_back if self._storages_bytes is None else as_usual)()

    def end(self) -> None:
        self._on = False
        as_usual()

    def let_go(self, size_bytes: int) -> None:
        self._let_go_bytes += size_bytes

    def look(self) -> None:
        if not self._on:
            return
        if self._storages_bytes is not None:
            now_ns = time.perf_counter_ns()
            if now_ns - self._looked_ns >= LOOK_NS:
                self._looked_ns = now_ns
                if resident_bytes() > self._most_bytes:
                    trim()
        elif self._let_go_bytes >= TRIM_BYTES:
            self._let_go_bytes = 0
            trim()
