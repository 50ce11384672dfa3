"""Triton kernels on the virtual device: a launch is skipped, and the tensors that it reads and changes are noted.

A kernel works on tensors that its caller made, and allocates nothing. Tensors that it changes are not known from then
on. Trials of autotuning clear the GPU's second-level cache by a tensor, which is made here too.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, final

import torch

from elbowroom.capture.arrivals import Changing
from elbowroom.capture.virtual.tensor import CUDA, is_virtual

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import VirtualMode

SAID = "Triton kernel {} (not run: it allocates nothing, and what it makes is not known)"
L2_BYTES = 256 * 1024 * 1024
"""Bytes with which trials clear the GPU's second-level cache (triton/testing.py: do_bench)."""
SHARED_BYTES = {70: 98304, 75: 65536, 80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448}
"""The most shared memory of a block, by compute capability (CUDA C++ Programming Guide, 16.2); 101376 elsewhere."""
_STORES = ("store", "atomic", "async_copy", "inline_asm")
"""Beginnings of the names of functions that write through their first argument."""
_READS_ONLY = ("tl", "triton", "libdevice", "math", "tldevice", "gl", "ttgl")
"""Names of modules whose other functions write nothing."""
_BUILTINS = ("range", "min", "max", "abs", "len", "int", "float", "bool", "tuple", "zip")


@final
class Kernels:
    """Replacement of Triton while the device is on, from its import on.

    Args:
        mode: mode of the virtual device.
    """

    def __init__(self, mode: VirtualMode) -> None:
        self._mode = mode

    def changes(self) -> dict[str, Changing]:
        """Return the changes by module."""
        return {
            "triton.runtime.jit": lambda module: [(module.JITFunction, "run", self._run)],
            "triton.runtime.interpreter": lambda module: [(module.InterpretedFunction, "run", self._run)],
            "triton.runtime.driver": lambda module: [(module.driver, "_active", _Driver(self._mode))],
            "triton.testing": lambda module: [(module, "do_bench", _bench)],
        }

    @property
    def _run(self) -> Callable[..., Any]:
        def run(kernel: Any, *args: Any, grid: Any = None, warmup: bool = False, **named: Any) -> Any:
            if not warmup:
                self._launch(kernel, args, named)
            return SimpleNamespace(
                n_regs=32, n_spills=0, metadata=SimpleNamespace(shared=1024), asm={}, _init_handles=lambda: None
            )

        return run

    def _launch(self, kernel: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        function: Any = kernel.fn
        names = tuple(inspect.signature(function).parameters)
        given = {**dict(zip(names, args, strict=False)), **named}
        stored = stored_through(function)
        read = [each for value in given.values() for each in _tensors(value)]
        if not read:
            return
        written = [
            each for name, value in given.items() if stored is None or name in stored for each in _tensors(value)
        ]
        self._mode.launch(f"triton.{function.__name__}", read, written)
        self._mode.ledger.remark("unsupported", SAID.format(function.__name__))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the virtual tensors of a kernel's argument: itself, in a tuple, or behind a descriptor or another type."""
    if isinstance(value, torch.Tensor):
        if is_virtual(value):
            yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(getattr(value, "base", None), torch.Tensor):
        yield from _tensors(value.base)


@cache
def stored_through(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the parameters through which a kernel's source writes; None without source: it may be any."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    stored: set[str] = set()
    made: list[tuple[set[str], set[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            stored |= _written_by(node)
        elif isinstance(node, ast.Assign):
            made.append((set().union(*map(_names, node.targets)), _names(node.value)))
        elif isinstance(node, ast.AugAssign | ast.AnnAssign) and node.value is not None:
            made.append((_names(node.target), _names(node.value)))
    before = -1
    while len(stored) != before:
        before = len(stored)
        stored = stored.union(*(of for target, of in made if target & stored))
    return frozenset(stored)


def _written_by(call: ast.Call) -> set[str]:
    """Return the names through which a call in a kernel may write."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name.startswith(_STORES):
        places = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "pointer"), function]
        return set().union(*map(_names, places))
    if name in _BUILTINS or ast.unparse(function).partition(".")[0] in _READS_ONLY:
        return set()
    return set().union(*map(_names, [*call.args, *(each.value for each in call.keywords)]))


def _names(node: ast.AST) -> set[str]:
    """Return the names in an expression, without those of loads."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("load"):
        return set()
    own = {node.id} if isinstance(node, ast.Name) else set[str]()
    return own.union(*map(_names, ast.iter_child_nodes(node)))


def _bench(fn: Callable[[], Any], *_: Any, quantiles: Any = None, return_mode: str = "mean", **__: Any) -> Any:
    """Run trials of a kernel: all take the same time."""
    fn()
    cleared = torch.empty(L2_BYTES // 4, dtype=torch.int32, device="cuda")
    fn()
    del cleared
    times = [1.0] * len(quantiles or ())
    return (times[0] if len(times) == 1 else times) if times else [1.0] if return_mode == "all" else 1.0


@final
class _Driver:
    """The driver that Triton queries for the GPU."""

    def __init__(self, mode: VirtualMode) -> None:
        facts = mode.settings.facts
        self._capability = facts.compute_capability
        shared = SHARED_BYTES.get(self._capability, SHARED_BYTES[86])
        known = {"max_shared_mem": shared, "max_num_regs": 65536, "warpSize": 32, "sm_clock_rate": 1_000_000}
        known |= {"multiprocessor_count": facts.multiprocessors, "mem_clock_rate": 1_000_000, "mem_bus_width": 5120}
        self.utils = SimpleNamespace(get_device_properties=lambda _device=0: dict(known))

    def get_current_target(self) -> Any:
        compiler: Any = sys.modules["triton.backends.compiler"]
        return compiler.GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: Any) -> None:
        pass

    def get_current_stream(self, _device: Any = None) -> int:
        return 0

    def get_device_capability(self, _device: Any = None) -> tuple[int, int]:
        return divmod(self._capability, 10)

    def get_active_torch_device(self) -> torch.device:
        return CUDA

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        return _bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(L2_BYTES // 4, dtype=torch.int32, device="cuda")

    def clear_cache(self, cleared: torch.Tensor) -> None:
        cleared.zero_()
