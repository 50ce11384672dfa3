"""Proofs that a recipe rebuilt what was dropped: checksums of all bits, or a sample of them."""

from __future__ import annotations

from typing import final

import torch

from elbowroom.allocator.blocks import SEGMENT_BYTES
from elbowroom.torch_compat.core import set_storage

CHECKED_PIECE_BYTES = 1 << 17
PLACES = 256
"""Words of each dropped storage that are compared in every step, spread over all of it, both ends included."""


@final
class Checksums:
    """Sums over all bytes, each word weighted by its place. Two storages that differ have the same sum by chance only.

    They are computed in pieces, so that they take little memory.

    Args:
        device: where the storages are.
    """

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(1)
        words = torch.randint(-(2**63), 2**63 - 1, (CHECKED_PIECE_BYTES // 8,), generator=generator)
        self._weights = (words | 1).to(device)  # odd, so that different words have different products

    def of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return the sum of a storage."""
        words, weights = storage.nbytes() // 8, self._weights
        total = torch.zeros((), dtype=torch.int64, device=storage.device)
        for first in range(0, words, len(weights)):
            piece = _words(storage, torch.int64, first, (min(len(weights), words - first),), (1,))
            total.mul_(6364136223846793005).add_((piece * weights[: len(piece)]).sum())
        rest = storage.nbytes() - 8 * words
        if rest:
            tail = _words(storage, torch.uint8, 8 * words, (rest,), (1,)).to(torch.int64)
            total.mul_(6364136223846793005).add_((tail * weights[:rest]).sum())
        return total


def _words(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    set_storage(tensor, storage, offset, shape, stride)
    return tensor


def sample_bytes(count: int, *, caching: bool) -> int:
    """Return the most device bytes that samples of `count` storages take; a caching allocator adds one segment."""
    return 2 * 4 * PLACES * count + (SEGMENT_BYTES if caching and count else 0)


@final
class Samples:
    """Sampled words of dropped storages, and of what was rebuilt in their place.

    Args:
        rows: the number of storages.
        device: the device of the storages.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._dropped = torch.zeros(rows, 2, PLACES // 2, dtype=torch.int32, device=device)
        self._rebuilt = torch.zeros_like(self._dropped)
        self._compared: set[int] = set()

    def begin(self) -> None:
        """Begin a step."""
        self._compared.clear()

    def take(self, row: int, storage: torch.UntypedStorage) -> None:
        """Sample a storage that is dropped."""
        self._copy(self._dropped, row, storage)

    def compare(self, row: int, storage: torch.UntypedStorage) -> None:
        """Sample what was rebuilt of a dropped storage."""
        self._copy(self._rebuilt, row, storage)
        self._compared.add(row)

    def differing(self) -> list[int]:
        """Return the rows whose rebuilt storage differs from the dropped one. Waits for the device."""
        rows = sorted(self._compared)
        if torch.equal(self._dropped[rows], self._rebuilt[rows]):
            return []
        return [row for row in rows if not torch.equal(self._dropped[row], self._rebuilt[row])]

    @staticmethod
    def _copy(into: torch.Tensor, row: int, storage: torch.UntypedStorage) -> None:
        """Copy two evenly spaced combs of words: one begins with the first word, the other ends with the last."""
        words, teeth = storage.nbytes() // 4, PLACES // 2
        if not words:
            return
        step = 2 * (words - 1) // (2 * teeth - 1)
        if step:
            comb = _words(storage, torch.int32, 0, (2, teeth), (words - 1 - (teeth - 1) * step, step))
            into[row].copy_(comb)
        else:
            into[row].view(-1)[:words].copy_(_words(storage, torch.int32, 0, (words,), (1,))[: teeth * 2])
