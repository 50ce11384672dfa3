"""Least size of a storage that may move: by default it follows the budget, as small models have small storages."""

from __future__ import annotations

from elbowroom.units import format_bytes

MIN_SIZE_BYTES = 2**20
"""Least size for a large budget: smaller storages are many, and hold few bytes."""
SHARE = 4096
"""Divisor of a smaller budget that gives the least size: all smaller storages are a small part of the budget."""
LEAST_BYTES = 4096
"""Bytes that the disk reads and writes at once: the least size is never below."""


def least_size(budget_bytes: int) -> int:
    """Return the least size of a storage that may move, for a budget of the device."""
    return min(MIN_SIZE_BYTES, max(LEAST_BYTES, budget_bytes // SHARE))


def said(size_bytes: int) -> str:
    """Explain a least size that follows the budget; "" if it is that of a large budget."""
    if size_bytes == MIN_SIZE_BYTES:
        return ""
    return f"Storages of {format_bytes(size_bytes)} or more may move: the least size follows the budget (--min-size)."
