"""Every private torch symbol this package uses: what for, and on which versions it was checked (2.13.0 unless said).

Nothing else in the package may name a private torch symbol.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch


def storage_key(storage: torch.UntypedStorage) -> int:
    """Address of the StorageImpl: the identity of a storage while it lives. UntypedStorage has no public one."""
    return storage._cdata


def version_of(tensor: torch.Tensor) -> int:
    """How often the tensor, or one that shares its counter, was changed in place; it has no public reader."""
    return tensor._version


def profiler_running() -> bool:
    """Whether a torch profiler is on; only one may be, and no public query exists."""
    return torch.autograd.profiler._is_profiler_enabled


def no_dispatch() -> AbstractContextManager[None]:
    """Skip the user's dispatch modes: our own housekeeping is not part of the step."""
    return torch._C._DisableTorchDispatch()


def marker(text: str) -> AbstractContextManager[None]:
    """A named range in the profiler's event stream; `record_function` does the same in ten times the time."""
    from torch._C._profiler import _RecordFunctionFast

    return _RecordFunctionFast(text)


def profiler_events(session: Any) -> list[Any]:
    """Roots of a finished profile's event tree; only these carry the addresses of blocks and arguments."""
    return session.profiler.kineto_results.experimental_event_tree()


def schemas_of(name: str) -> list[Any]:
    """Declarations of all overloads of an operator such as "aten::add" that the dispatcher has."""
    found = torch._C._jit_get_schemas_for_operator(name) if "::" in name else []
    return [schema for schema in found if torch._C._dispatch_has_kernel(_full_name(schema))]


def has_kernel(schema: Any, key: str) -> bool:
    """Whether an overload has a kernel for a dispatch key, such as "CPU" or "CompositeImplicitAutograd"."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(_full_name(schema), key)


def _full_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def holders_of(storage: torch.UntypedStorage) -> int:
    """References to a storage's bytes: one per tensor on it, and one of the Python object at hand."""
    return torch._C._storage_Use_Count(storage._cdata)
