"""The storage behind a tensor, where it has one."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

CPU = torch.device("cpu")


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """A tensor's storage; None for sparse, functional, fake, wrapper and not yet shaped ones, without bytes."""
    if is_lazy(tensor):
        return None
    try:
        storage = tensor.untyped_storage()
        if storage.device.type == "meta":  # so have fake tensors, which warn when they are asked for an address
            return None
        storage.data_ptr()
    except (RuntimeError, NotImplementedError):  # torch's two ways to say that there is none
        return None
    return storage
