"""The C library's allocator, told to give blocks back.

glibc serves a request above M_MMAP_THRESHOLD from a mapping of its own, which goes back to the system when freed; the
threshold grows by itself up to 32 MiB as such blocks are freed, and blocks below it stay with the process. So that RSS
follows what is swapped, the threshold is fixed low while something may move. See mallopt(3).
"""

from __future__ import annotations

import ctypes
import ctypes.util

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LOW_BYTES = 1 << 20
GROWN_BYTES = 32 << 20
"""Where the threshold ends up by itself in a process that frees large blocks (DEFAULT_MMAP_THRESHOLD_MAX)."""


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


def resident_bytes() -> int:
    """RSS of this process, 0 where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
