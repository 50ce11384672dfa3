"""Collectives: functional collectives and random numbers of DTensor on the virtual device.

The meta kernels of collectives are made for compilers. They return another tensor where a GPU returns the same one, or
a wrapper of it. processes.py has the groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from elbowroom.capture.virtual.ops.effects import bytes_of
from elbowroom.torch_compat.process_groups import resolved_group

if TYPE_CHECKING:
    from elbowroom.capture.virtual.ledger import Ledger
    from elbowroom.capture.virtual.mode import Special, VirtualMode


def _wait(mode: VirtualMode, func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """Run `wait_tensor`; torch also requires it for results computed on the host."""
    known = mode.values.of(args[0])
    if known is not None:
        func(known)
    return args[0]


def _wrap(_mode: VirtualMode, func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """Make a tensor that waits at its first use, by torch's own kernel, which allocates nothing."""
    return func(*args)


def exchanged(
    ledger: Ledger, func: Any, args: tuple[Any, ...], given: list[torch.Tensor]
) -> tuple[int, int, None] | None:
    """Return the group and the bytes of a functional collective; None for any other op.

    Its last argument is the name of the group. It is counted with what comes of it: a gathering makes as many times
    more as the group has ranks.
    """
    if func.namespace != "_c10d_functional" or not args or not isinstance(args[-1], str):
        return None
    group: Any = resolved_group(args[-1])
    number = group.communicator()
    size_bytes = sum(bytes_of(tensor) for tensor in given)
    return number, size_bytes * (ledger.communicators[number].ranks if "all_gather" in str(func) else 1), None


def drawn(mode: VirtualMode, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a random op on this process's part of a DTensor; the offset in the random numbers does not matter."""
    with mode:
        return op(*args, **kwargs)


BY_NAME: dict[str, Special] = {
    "_c10d_functional::wait_tensor": _wait,
    "_c10d_functional::_wrap_tensor_autograd": _wrap,
}
