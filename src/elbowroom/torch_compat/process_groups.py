"""The store of torch.distributed's default group, through which its ranks meet. Checked on 2.11.0 and 2.13.0."""

from __future__ import annotations

import importlib
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from elbowroom.torch_compat.core import is_distributed

PATIENCE = timedelta(seconds=5)
"""Most time that a request to the store may take."""


class Meeting(NamedTuple):
    """The store of the default group, by a connection of our own.

    Attributes:
        store: the store.
        rank: number of this process in the group.
        ranks: processes of the group.
    """

    store: Any
    rank: int
    ranks: int


def default_meeting() -> Meeting | None:
    """Return the store of the default group; None if there is no group yet, or it has no store that can be shared.

    The connection is a new one: a thread of torch may be waiting on the group's own.
    """
    if not is_distributed():
        return None
    from torch.distributed import distributed_c10d

    with suppress(Exception):  # MPI has no store, and a fake one no copies
        store = vars(distributed_c10d)["_get_default_store"]().clone()
        store.set_timeout(PATIENCE)
        return Meeting(store, torch.distributed.get_rank(), torch.distributed.get_world_size())
    return None


def resolved_group(name: str) -> Any:
    """Return the group that a functional collective names."""
    return importlib.import_module("torch._C._distributed_c10d")._resolve_process_group(name)


def ranks_of_group() -> int:
    """Return how many processes the default group has; 1 without one."""
    return torch.distributed.get_world_size() if is_distributed() else 1
