"""Modules: the path of the running module, from a stack kept by torch's global module hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, final

import torch

from elbowroom.capture.recording.module_hooks import ModuleHooks
from elbowroom.torch_compat.core import never_compiled


class _Stacks(threading.local):
    """The running modules of each thread."""

    def __init__(self) -> None:
        self.stack: list[str] = []


@final
class ModulePaths:
    """Path of the running module, such as "UNet.model.0.conv".

    Args:
        on_root: called with each outermost module before it runs.
        on_change: called with the path whenever it changes, "" outside of all modules.
    """

    def __init__(self, on_root: Callable[[torch.nn.Module], None], on_change: Callable[[str], None]) -> None:
        self._on_root = on_root
        self._on_change = on_change
        self._threads = _Stacks()
        self._names: dict[int, str] = {}
        self._hooks = ModuleHooks(self._enter, self._leave)

    def start(self) -> None:
        """Install the hooks."""
        self._hooks.install()

    def stop(self) -> None:
        """Remove the hooks."""
        self._hooks.remove()
        self._threads.stack.clear()

    def enter_root(self, module: torch.nn.Module) -> None:
        """Enter the outermost module, whose call began before the hooks were installed."""
        self._enter(module, ())

    def inherited(self) -> Callable[[], None]:
        """Return the function that a new thread calls to have this thread's running modules around its own."""
        stack = list(self._threads.stack)
        return lambda: self._threads.stack.extend(stack)

    @never_compiled
    def _enter(self, module: torch.nn.Module, _args: Any) -> None:
        stack = self._threads.stack
        if not stack:
            root = type(module).__name__
            modules = module.named_modules(remove_duplicate=False)
            self._names = {id(child): f"{root}.{name}" if name else root for name, child in modules}
            self._on_root(module)
        outer = stack[-1] if stack else ""
        stack.append(self._names.get(id(module), f"{outer}.{type(module).__name__}"))
        self._on_change(stack[-1])

    @never_compiled
    def _leave(self, _module: torch.nn.Module, _args: Any, _output: Any) -> None:
        stack = self._threads.stack
        if stack:
            stack.pop()
            self._on_change(stack[-1] if stack else "")
