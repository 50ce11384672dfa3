"""Private torch symbols for recording calls and making them again. Checked on 2.11.0 and 2.13.0.

While a dispatch mode is on, torch's composed operators take the paths for tensor subclasses: an in-place addition
becomes one out of place. A kernel for a dispatch key that no tensor has, and that one thread includes, avoids that. It
sees every operator first, and calls it again without that key.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch

from elbowroom.torch_compat.core import overload_of
from elbowroom.torch_compat.operators import operator, reads_bytes


class OperatorWatcher:
    """Calls `seen(op, args, kwargs)` in place of each operator that is not composed of others, while it is `on`.

    Its kernels stay registered until the process ends. Nothing dispatches to them while it is off. A process can have
    one watcher for each such key.

    Each operator has a kernel of its own. The fallback serves operators that are registered later. It cannot serve a
    call under a dispatch mode or with a tensor that has `__torch_dispatch__`: for these torch looks the Python kernel
    of the operator up, and a fallback is none (PythonKernelHolder in torch/csrc/utils/python_dispatch.cpp).

    Args:
        passes: tells of a schema whether its operator is not watched.
        key: the dispatch key.
        later: whether operators that are registered later are watched.
    """

    def __init__(
        self, passes: Callable[[Any], bool], key: str = "TESTING_ONLY_GenericMode", *, later: bool = True
    ) -> None:
        self._key = torch._C._dispatch_key_parse(key)
        self._libraries: dict[str, Any] = {"_": torch.library.Library("_", "IMPL")}
        self._libraries["_"].fallback(self._called if later else torch.library.fallthrough_kernel, key)
        self.seen: Any = self.plainly
        for schema in torch._C._jit_get_all_schemas():
            name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
            if not schema.name.startswith("prim") and torch._C._dispatch_has_kernel(name):
                kernel = torch.library.fallthrough_kernel if passes(schema) else self._kernel(schema)
                space = schema.name.partition("::")[0]
                if space not in self._libraries:
                    self._libraries[space] = torch.library.Library(space, "IMPL")
                self._libraries[space].impl(name, kernel, key)

    @property
    def on(self) -> bool:
        """Whether this thread is watched."""
        return torch._C._dispatch_tls_is_dispatch_key_included(self._key)

    def turn(self, *, on: bool) -> bool:
        """Turn watching of this thread on or off. Returns whether it was on before."""
        before = self.on
        torch._C._dispatch_tls_set_dispatch_key_included(self._key, on)
        return before

    def unwatched(self) -> AbstractContextManager[None]:
        """Return a context in which operators run unwatched."""
        return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(self._key))

    def plainly(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op as ever: a thread may still be watched when nobody looks any more."""
        with self.unwatched():
            return op(*args, **kwargs)

    def _kernel(self, schema: Any) -> Callable[..., Any]:
        """Return a kernel for one operator, which is looked up once it is called: that takes long for all of them."""
        find = cache(partial(overload_of, schema))  # not cache(overload_of): not every schema has a hash
        return lambda *args, **kwargs: self.seen(find(), args, kwargs)

    def _called(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        return self.seen(op, args, kwargs)


@cache
def watcher_of_calls() -> OperatorWatcher:
    """Return the watcher of all operators but that of `as_subclass`.

    A result that Python has seen becomes no subclass any more (THPVariable_as_subclass). This op makes no storage.
    """
    return OperatorWatcher(lambda schema: schema.name == "aten::alias" or _is_composed(schema))


@cache
def watcher_of_results() -> OperatorWatcher:
    """Return the watcher of operators that make new tensors, and write to no argument.

    Views are none: torch makes Parameters of them, which fails once Python has seen them (THPVariable_make_subclass).
    """
    return OperatorWatcher(_writes_or_views, "TESTING_ONLY_GenericWrapper", later=False)


@cache
def watcher_of_uses() -> OperatorWatcher:
    """Return the watcher of all operators that use the bytes of their arguments, views included.

    Those that take the shape of a tensor alone, such as `zeros_like`, are left out. Two views do not look at the
    bytes, and Python must not see their results: torch makes Parameters and subclasses of these.
    """
    return OperatorWatcher(lambda s: s.name in _BLIND or _is_composed(s) or _takes_form(s), "DeferredInit")


_BLIND = frozenset({"aten::alias", "aten::detach", "aten::lift", "aten::lift_fresh"})


def _is_composed(schema: Any) -> bool:
    return operator(schema.name, len(schema.arguments)) is None


def _takes_form(schema: Any) -> bool:
    return not reads_bytes(schema.name) and all(each.alias_info is None for each in schema.arguments)


def _writes_or_views(schema: Any) -> bool:
    aliases = any(each.alias_info is not None for each in (*schema.arguments, *schema.returns))
    return aliases or _is_composed(schema)


@cache
def is_seeded(op: Any) -> bool:
    """Tell whether an op draws from a generator."""
    return torch.Tag.nondeterministic_seeded in op.tags


def call_with_autocast(op: Any, device_type: str, args: Any, kwargs: Any) -> Any:
    """Run an op's autocast kernel, which casts the arguments and calls the op again."""
    return op._op_dk(_autocast_key(device_type), *args, **kwargs)


def casts_first(op: Any, device_type: str) -> bool:
    """Tell whether autocast is on for a device type and has a kernel of its own for an op."""
    if not torch.is_autocast_enabled(device_type):
        return False
    key = _autocast_key(device_type)
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(key) and op.has_kernel_for_dispatch_key(key)


def _autocast_key(device_type: str) -> Any:
    return torch._C.DispatchKey.AutocastCUDA if device_type == "cuda" else torch._C.DispatchKey.AutocastCPU


def replaying() -> list[AbstractContextManager[None]]:
    """Return contexts in which a recorded call runs as inside autograd's kernels: no modes, autocast or autograd."""
    casting = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA).add(torch._C.DispatchKey.AutocastCPU)
    return [
        torch._C._DisableTorchDispatch(),
        torch._C._ExcludeDispatchKeyGuard(casting),
        torch._C._AutoDispatchBelowAutograd(),
    ]


def counting_versions() -> AbstractContextManager[None]:
    """Return a context in which a view shares the version counter of its base, as it does outside of all operators.

    Some operators call others without the dispatch key that sees to it.
    """
    without = torch._C._dispatch_tls_local_exclude_set() - torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), without)


def has_compiled() -> bool:
    """Tell whether torch.compile has made code in this process. Such code uses tensors past all operators."""
    found: Any = sys.modules.get("torch._dynamo.utils")
    return found is not None and bool(found.counters["stats"])


def before_compiling(leave: Callable[[], None] | None) -> None:
    """Have torch.compile watch no calls of a thread where it begins to trace, and call the method `leave` first.

    It makes fake tensors, which Python must not have seen before (THPVariable_make_subclass).
    """
    _leave[0] = None if leave is None else weakref.WeakMethod(leave)
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None and _compiling not in dynamo.callback.callback_handler.start_callbacks:  # a reset drops it
        dynamo.callback.on_compile_start(_compiling)


def _compiling(*_: Any) -> None:
    leave = _leave[0] and _leave[0]()
    if leave is not None:
        leave()
    watcher_of_calls().turn(on=False)


_leave: list[weakref.WeakMethod[Callable[[], None]] | None] = [None]


modes_on: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""Returns the number of dispatch modes that are on in this thread, of the user or of a library."""


class BackwardApart:
    """Calls `enter` and `leave` around every run of the autograd engine in this process, until `close`."""

    def __init__(self, enter: Any, leave: Any) -> None:
        self._run = run = torch.autograd.graph._engine_run_backward

        def apart(*args: Any, **kwargs: Any) -> Any:
            before = enter()
            try:
                return run(*args, **kwargs)
            finally:
                leave(before)

        self._put(apart)

    def close(self) -> None:
        """Restore the entry of the engine."""
        self._put(self._run)

    @staticmethod
    def _put(function: Any) -> None:
        torch.autograd.graph._engine_run_backward = function
        setattr(torch.autograd, "_engine_run_backward", function)  # noqa: B010  it imports the name
