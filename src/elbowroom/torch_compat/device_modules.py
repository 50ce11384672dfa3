"""Private names below torch.cuda and torch.accelerator that a build without CUDA lacks or leaves empty.

The Python of these modules is the same in every build; the C++ functions that it calls have these names. Checked on
2.11.0 (its CUDA build, on the rig) and 2.13.0.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

Change = tuple[Any, str, Any]


def cuda_changes(functions: Mapping[str, Any]) -> list[Change]:
    """Return changes for C++ functions, given by their names without the common prefix, such as "memoryStats"."""
    return [(torch._C, f"_cuda_{name}", function) for name, function in functions.items()]


def accelerator_changes(functions: Mapping[str, Any], accelerator: torch.device) -> list[Change]:
    """Return such changes below torch.accelerator, and the one that names the device."""
    found: list[Change] = [(torch._C, f"_accelerator_{name}", function) for name, function in functions.items()]
    return [*found, (torch._C, "_get_accelerator", lambda *_: accelerator)]


def build_changes(runtime: Any, properties: Any, select: Any, cuda_version: str) -> list[Change]:
    """Return changes that make a build report CUDA: its runtime, the properties of a device, its selection."""
    return [
        (torch.cuda, "_cudart", runtime),
        (torch.cuda, "_get_device_properties", properties),
        (torch.cuda, "_exchange_device", select),
        (torch.cuda, "_maybe_exchange_device", select),
        (torch.cuda, "_initialized", True),
        (torch._C, "_has_cuda", True),
        (torch._C, "_has_cudnn", True),
        (torch._C, "_is_flash_attention_available", lambda: True),
        (torch.version, "cuda", cuda_version),
    ]


def library_changes(nccl_version: int) -> list[Change]:
    """Return changes for the version of NCCL, the plan cache of cuFFT, and the library of linear algebra."""
    return [
        (torch._C, "_nccl_version", lambda: nccl_version),
        (torch._C, "_nccl_version_suffix", lambda: b""),
        (torch._C, "_set_linalg_preferred_backend", lambda _: None),
        (torch.backends.cuda.cuFFTPlanCache, "size", 0),
        (torch.backends.cuda.cuFFTPlanCache, "max_size", 4096),
        (torch, "_cufft_clear_plan_cache", lambda _: None),
    ]


def pool_changes(begin: Any, end: Any, nothing: Any) -> list[Change]:
    """Return changes for memory pools, for the query of graph captures, and for the release of host memory."""
    names = ("_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool", "_cuda_releasePool")
    found: list[Change] = [
        (torch.cuda.memory, name, function) for name, function in zip(names, (begin, end, nothing), strict=True)
    ]
    found.append((torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: False))
    return [*found, (torch._C, "_host_emptyCache", nothing)]


def range_changes(marks: Any) -> list[Change]:
    """Return the change that replaces NVTX."""
    from torch.cuda import nvtx

    return [(nvtx, "_nvtx", marks)]


@contextmanager
def scripted_as(pairs: Iterable[tuple[Any, Any]]) -> Iterator[None]:
    """Context in which TorchScript compiles each new function as the op of the old one.

    TorchScript finds ops by the `id` of their function, in a table that it makes at its first use.

    Args:
        pairs: (new, old) functions; pairs whose old function is no op of TorchScript are ignored.
    """
    table = _builtins._get_builtin_table()
    added = {id(new): table[id(old)] for new, old in pairs if id(old) in table and id(new) not in table}
    table.update(added)
    try:
        yield
    finally:
        for each in added:
            del table[each]


@contextmanager
def without_modes() -> Iterator[None]:
    """Context in which no mode sees ops or functions."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


_below: Any = torch._C
is_traced: Any = _below._is_tracing
"""Tells whether torch.jit.trace follows this thread."""


@contextmanager
def untraced() -> Iterator[None]:
    """Context in which torch.jit.trace does not follow this thread: sizes are numbers again."""
    state = _below._get_tracing_state()
    with traceable():
        _below._set_tracing_state(None)
        try:
            yield
        finally:
            _below._set_tracing_state(state)


@contextmanager
def traceable() -> Iterator[None]:
    """Context in which the calls that a traced op makes are traced too; by default they are not."""
    excluded = _below._dispatch_tls_local_exclude_set().remove(_below._parse_dispatch_key("Tracer"))
    with _below._ForceDispatchKeyGuard(_below._dispatch_tls_local_include_set(), excluded):
        yield


def done_work(result: Any) -> Any:
    """Return a finished collective with its result."""
    future: Any = torch.futures.Future()
    future.set_result(result)
    return importlib.import_module("torch._C._distributed_c10d")._create_work_from_future(future)


_builtins: Any = importlib.import_module("torch.jit._builtins")
_utils: Any = importlib.import_module("torch._utils")
rebuild_tensor: Any = _utils._rebuild_tensor
"""Makes a tensor on a loaded storage."""


def rebuild_change(function: Any) -> Change:
    """Return the change that replaces `rebuild_tensor`."""
    return _utils, "_rebuild_tensor", function


def untyped(storage: Any) -> torch.UntypedStorage:
    """Return the untyped storage behind a storage of either kind."""
    return getattr(storage, "_untyped_storage", storage)
