"""The storage behind a tensor, where it has one."""

from __future__ import annotations

import torch

CPU = torch.device("cpu")


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """A tensor's storage; None for sparse, functional, fake and wrapper tensors, which have no bytes of their own."""
    try:
        storage = tensor.untyped_storage()
        storage.data_ptr()
    except (RuntimeError, NotImplementedError):  # torch's two ways to say that there is none
        return None
    return storage
