"""What DTensor is made of on the virtual device: functional collectives, and random numbers.

The meta kernels of collectives, made for compilers, give another tensor where a GPU gives the same one, or one that
wraps it. processes.py has the groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import Special, VirtualMode


def _wait(mode: VirtualMode, func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """`wait_tensor`; torch also wants what was computed on the host to be waited for."""
    known = mode.values.of(args[0])
    if known is not None:
        func(known)
    return args[0]


def _wrap(_mode: VirtualMode, func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """A tensor that waits at its first use: torch's own kernel, which allocates nothing."""
    return func(*args)


def drawn(mode: VirtualMode, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A random op on the part of a DTensor that is here: the place in the numbers is of no matter."""
    with mode:
        return op(*args, **kwargs)


BY_NAME: dict[str, Special] = {
    "_c10d_functional::wait_tensor": _wait,
    "_c10d_functional::_wrap_tensor_autograd": _wrap,
}
