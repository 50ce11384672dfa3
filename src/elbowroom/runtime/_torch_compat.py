"""Every private torch symbol this package uses: what for, and on which versions it was checked (2.13.0 unless said).

Nothing else in the package may name a private torch symbol.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import (  # the public docs point users of dispatch modes here
    TorchDispatchMode as TorchDispatchMode,
)
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack  # no public way to see whose mode is on top


def storage_key(storage: torch.UntypedStorage) -> int:
    """Address of the StorageImpl: the identity of a storage while it lives. UntypedStorage has no public one."""
    return storage._cdata


def version_of(tensor: torch.Tensor) -> int:
    """How often the tensor, or one that shares its counter, was changed in place; it has no public reader."""
    return tensor._version


def schema_of(func: Any) -> Any:
    """An operator's declaration: which arguments it writes, which results alias them."""
    return func._schema


def profiler_running() -> bool:
    """Whether a torch profiler is on; only one may be, and no public query exists."""
    return torch.autograd.profiler._is_profiler_enabled


def no_dispatch() -> AbstractContextManager[None]:
    """Skip every dispatch mode, ours and the user's: our own housekeeping is not part of the step."""
    return torch._C._DisableTorchDispatch()


def marker(text: str) -> AbstractContextManager[None]:
    """A named range in the profiler's event stream; `record_function` does the same in ten times the time."""
    from torch._C._profiler import _RecordFunctionFast

    return _RecordFunctionFast(text)


def profiler_events(session: Any) -> Iterator[Any]:
    """All nodes of a finished profile's event tree; only these carry the address of an allocation."""
    pending = list(session.profiler.kineto_results.experimental_event_tree())
    while pending:
        node = pending.pop()
        pending.extend(node.children)
        yield node


def in_backward() -> bool:
    """True while the autograd engine runs on this thread (ModuleTracker in torch.utils asks the same way)."""
    return torch._C._current_graph_task_id() != -1


def next_sequence_number() -> int:
    """Number the next autograd node of this thread will get; links a backward node to the op that made it."""
    return torch._C._autograd._get_sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]


def backward_sequence_number() -> int:
    """Sequence number of the autograd node that is running, -1 outside of one."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else node._sequence_nr()


def dispatch_mode_on_top(mode: TorchDispatchMode) -> bool:
    """Whether `mode` is the innermost dispatch mode, so that leaving it leaves nobody else's."""
    stack = _get_current_dispatch_mode_stack()
    return bool(stack) and stack[-1] is mode


def other_dispatch_modes_active() -> bool:
    """Whether somebody else's dispatch mode is on; ours could then not be left in order."""
    return bool(_get_current_dispatch_mode_stack())
