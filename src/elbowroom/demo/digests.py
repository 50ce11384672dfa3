"""Digests of weights, by which the trials of the demo are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from torch import Tensor


def sha256_of(named: Iterable[tuple[str, Tensor]]) -> str:
    """Return a digest of tensors and their names, which differs if a bit does."""
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
