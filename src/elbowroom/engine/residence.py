"""The C library's allocator, told when to give freed blocks back.

glibc serves a request above M_MMAP_THRESHOLD from a mapping of its own, which goes back to the system when freed; the
threshold grows by itself up to 32 MiB as such blocks are freed, and blocks below it stay with the process. Memory that
stays is used again without page faults, which is what makes it fast; it also counts as RSS. See mallopt(3).

Note: [Giving back]
How freed blocks go back depends on how much RAM there is beside the budget. Where there is little, the thresholds are
fixed low, and what is free goes back for every few storages that leave: RSS is then what is allocated and no more.
Where there is plenty, blocks stay as they would without us until RSS reaches a mark, and all that is free goes back
there. Measured on a ResNet-50 step: 200,000 page faults the first way, 60,000 the second, 15,000 in plain training; a
tenth or more of its time lies between the first and the second.
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
"""Where the threshold ends up by itself in a process that frees large blocks (DEFAULT_MMAP_THRESHOLD_MAX)."""
TRIM_BYTES = 16 << 20
"""Where memory is short, what is free goes back whenever so many bytes have left."""
LOOK_NS = 1_000_000
"""RSS is asked for so rarely: that takes tens of microseconds, and meanwhile page faults add some MiB to it at most."""
SYSTEM_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def give_back() -> bool:
    """Fix the thresholds low and return what is free already; False where the C library has no mallopt."""
    return _set(LOW_BYTES)


def trim() -> None:
    """Return what is free now. Blocks in holes that the heap had before stay with the process otherwise."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def as_usual() -> bool:
    """Put the thresholds where they would have grown to, so that a job that fits runs as it would without us."""
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
    """What resident memory may have beyond a budget: freed blocks that stay with the process."""
    return budget_bytes // 8


def resident_bytes() -> int:
    """RSS of this process, 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            return int(statm.read(100).split()[1]) * SYSTEM_PAGE_BYTES
    except OSError:
        return 0


class AllocatorBytes(NamedTuple):
    """What a caching allocator holds: in blocks that are in use, and in all."""

    allocated_bytes: int
    reserved_bytes: int


class SoFar(NamedTuple):
    """What a device has been asked for up to now.

    Attributes:
        asked_bytes: the sum of all that its allocator was asked for; 0 where nobody counts.
        beyond_bytes: by how much it has held more than a budget allows.
    """

    asked_bytes: int
    beyond_bytes: int


class Residence(ABC):
    """Has memory that storages left go back to where it came from."""

    @abstractmethod
    def measure(self, live_bytes: Callable[[], int]) -> int:
        """Give back all that is free and return what the device holds besides storages.

        Args:
            live_bytes: bytes of all storages in RAM, which takes tens of milliseconds to find.
        """

    @abstractmethod
    def so_far(self, budget_bytes: int) -> SoFar:
        """What the device has been asked for. Costs some microseconds."""

    def most_bytes(self) -> int:
        """What an allocator was measured to hold at most since this room opened; 0 where nobody counts."""
        return 0

    def beyond(self, budget_bytes: int) -> int:  # noqa: ARG002 - where nothing is counted exactly
        """By how many bytes it holds more than a budget allows."""
        return 0

    def training_begins(self, root: torch.nn.Module | None) -> None:  # noqa: B027
        """The first step that is observed is about to begin, with a call of this module."""

    def others_come(self, needed_bytes: int, budget_bytes: int) -> bool:  # noqa: ARG002 - where nothing is kept
        """A step of a known kind begins that holds other storages than the one before.

        Args:
            needed_bytes: what it takes from an empty cache, with all that is held now.
            budget_bytes: of the device.

        Returns:
            Whether all that was free is given back first, as both would not fit.
        """
        return False

    def empty(self) -> None:  # noqa: B027
        """Give back all that is free: where a plan says so, and for steps of kinds that are new.

        What still reads it ends first.
        """

    def held(self) -> AllocatorBytes:
        """What a caching allocator holds now; nothing where there is none."""
        return AllocatorBytes(0, 0)

    def limit(self, size_bytes: int | None) -> None:  # noqa: B027
        """What may be held from now on, when all that is free has gone; None for no limit but the one there was."""

    def begin(self) -> None:  # noqa: B027 - where nothing is to be done
        """Storages may leave from now on."""

    def end(self) -> None:  # noqa: B027
        """Nothing moves any more."""

    def let_go(self, size_bytes: int) -> None:  # noqa: B027
        """A storage of this size has left; whoever still uses it frees it later."""

    def look(self) -> None:  # noqa: B027
        """Give back what is free where it is time to. Costs some microseconds where it is not."""


@final
class RamResidence(Residence):
    """RAM goes back to the system: see Note: [Giving back]. Outside storages are interpreter, libraries, their caches.

    Args:
        storages_bytes: RSS may grow to so much above what is no storage before freed blocks go back; None has them go
            back at once.
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
        return SoFar(0, max(0, most_bytes - self._outside_bytes - budget_bytes - slack_bytes(budget_bytes)))

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
