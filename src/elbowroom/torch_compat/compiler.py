"""Private names of torch's compiler that trace and partition a graph without making code of it.

Checked on 2.11.0 (its CUDA build, on the rig) and 2.13.0.
"""

from __future__ import annotations

import ctypes
import logging
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import torch


@final
class _Divided(BaseException):
    """Ends a compilation once the graph is partitioned; `except Exception` in the compiler does not catch it."""

    def __init__(self, kept_bytes: int) -> None:
        super().__init__(kept_bytes)
        self.kept_bytes = kept_bytes


def faking() -> AbstractContextManager[Any]:
    """Return a context in which new tensors have no bytes, and report the requested device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


@contextmanager
def quiet() -> Iterator[None]:
    """Context without warnings and log lines of the compiler."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def kept_bytes(function: Callable[..., Any], args: Any, kwargs: Any) -> int:
    """Return the bytes that the compiled forward of a function keeps for its backward.

    Its weights, data and results do not count. Arguments that other code computed do, as nothing else may hold them.
    Its own results count for the next function. The min-cut partitioner of torch.compile decides what is kept, on
    inductor's decompositions. Takes fake tensors; the code of the function is read, and no op of it runs.

    Raises:
        Exception: an error of the compiler, such as at a graph break.
    """
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    def divide(joint: Any, inputs: Any, *, num_fwd_outputs: int, **how: Any) -> Any:
        forward, _ = min_cut_rematerialization_partition(
            joint, inputs, compiler="inductor", num_fwd_outputs=num_fwd_outputs, **how
        )
        raise _Divided(_kept(forward.graph, num_fwd_outputs, outside))

    def undivided(*_: Any, **__: Any) -> Any:
        raise _Divided(0)  # it has no backward

    outside: set[str] = set()

    def backend(graph: Any, inputs: Any) -> Any:
        outside.update(f"primals_{place}" for place, given in enumerate(inputs, 1) if not _is_computed(given))
        how: Any = {"fw_compiler": undivided, "bw_compiler": undivided, "partition_fn": divide}
        return aot_module_simplified(graph, inputs, decompositions=select_decomp_table(), **how)

    try:
        torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*args, **kwargs)
    except _Divided as divided:
        return divided.kept_bytes
    return 0


def _is_computed(given: Any) -> bool:
    """Tell whether an argument of a graph is a result of other code."""
    return isinstance(given, torch.Tensor) and given.requires_grad and not isinstance(given, torch.nn.Parameter)


def _kept(graph: Any, outputs: int, outside: Collection[str]) -> int:
    """Return the bytes of the storages that a forward returns after its own outputs, without arguments `outside`."""
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    held = [*returned[:outputs], *(node for node in graph.nodes if node.name in outside)]
    kept = dict(storage for node in returned[outputs:] if (storage := _storage(node)) is not None)
    for node in held:
        kept.pop((_storage(node) or (0, 0))[0], None)
    return sum(kept.values())


def _storage(node: Any) -> tuple[int, int] | None:
    """Return the identity and the bytes of the storage of a node's result; None if that is no tensor."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    storage = value.untyped_storage()
    return storage._cdata, storage.nbytes()


def is_graph_break(problem: BaseException) -> bool:
    """Tell whether an error means that the compiler would make several graphs of a function."""
    from torch._dynamo.exc import Unsupported

    return isinstance(problem, Unsupported)


def without_autocast_on_cpu() -> AbstractContextManager[None]:
    """Skip autocast for tensors on the CPU, as autocast's own kernels do before they call the op."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def raise_in(thread: int, problem: type[BaseException]) -> None:
    """Make a thread of Python raise at its next instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(problem))
