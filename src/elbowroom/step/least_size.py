"""Below which size storages stay where they are, unless somebody says it: small models have small storages."""

from __future__ import annotations

from elbowroom.units import format_bytes

MIN_SIZE_BYTES = 2**20
"""Of a large budget: what lies below is many storages, and few bytes."""
SHARE = 4096
"""Of a smaller budget, what a storage has at least that may leave: all that lie below it are a small part of it."""
LEAST_BYTES = 4096
"""What the disk reads and writes at once."""


def least_size(budget_bytes: int) -> int:
    """The least size of what may leave, for a budget of the device."""
    return min(MIN_SIZE_BYTES, max(LEAST_BYTES, budget_bytes // SHARE))


def said(size_bytes: int) -> str:
    """A least size that follows the budget, for people; "" where it is that of a large one."""
    if size_bytes == MIN_SIZE_BYTES:
        return ""
    return f"Storages of {format_bytes(size_bytes)} or more may move: the least size follows the budget (--min-size)."
