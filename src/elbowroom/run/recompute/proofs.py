"""Proofs: whether what a recipe rebuilt is what was dropped, bit by bit or by a sample of the bits."""

from __future__ import annotations

from typing import final

import torch

from elbowroom.allocator.blocks import SEGMENT_BYTES
from elbowroom.torch_compat.core import set_storage

CHECKED_PIECE_BYTES = 1 << 17
PLACES = 256
"""Words of each dropped storage that are compared in every step, spread over all of it, its ends among them."""


@final
class Checksums:
    """Sums over all bytes, each word weighted by its place: storages that differ have the same one by chance only.

    They are worked out in pieces, so that they take little memory.

    Args:
        device: where the storages are.
    """

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(1)
        words = torch.randint(-(2**63), 2**63 - 1, (CHECKED_PIECE_BYTES // 8,), generator=generator)
        self._weights = (words | 1).to(device)  # odd: the product with one tells all words apart

    def of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The sum of a storage."""
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
    """Bytes on the device that samples of so many storages take at most; with a caching allocator in a segment more."""
    return 2 * 4 * PLACES * count + (SEGMENT_BYTES if caching and count else 0)


@final
class Samples:
    """Words of storages as they were when they were dropped, beside those of what was rebuilt.

    Args:
        rows: storages.
        device: where they lie.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._dropped = torch.zeros(rows, 2, PLACES // 2, dtype=torch.int32, device=device)
        self._rebuilt = torch.zeros_like(self._dropped)
        self._compared: set[int] = set()

    def begin(self) -> None:
        """A step begins."""
        self._compared.clear()

    def take(self, row: int, storage: torch.UntypedStorage) -> None:
        """Note a storage that is dropped."""
        self._copy(self._dropped, row, storage)

    def compare(self, row: int, storage: torch.UntypedStorage) -> None:
        """Note what was rebuilt of it."""
        self._copy(self._rebuilt, row, storage)
        self._compared.add(row)

    def differing(self) -> list[int]:
        """Rows of which what was rebuilt is not what was dropped; waits for the device."""
        rows = sorted(self._compared)
        if torch.equal(self._dropped[rows], self._rebuilt[rows]):
            return []
        return [row for row in rows if not torch.equal(self._dropped[row], self._rebuilt[row])]

    @staticmethod
    def _copy(into: torch.Tensor, row: int, storage: torch.UntypedStorage) -> None:
        """Two combs of words: one from the first word on, one that ends with the last."""
        words, teeth = storage.nbytes() // 4, PLACES // 2
        if not words:
            return
        step = 2 * (words - 1) // (2 * teeth - 1)
        if step:
            comb = _words(storage, torch.int32, 0, (2, teeth), (words - 1 - (teeth - 1) * step, step))
            into[row].copy_(comb)
        else:
            into[row].view(-1)[:words].copy_(_words(storage, torch.int32, 0, (words,), (1,))[: teeth * 2])
