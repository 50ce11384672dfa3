"""Which module an op belongs to: a stack kept by global module hooks, and for backward the autograd node's number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from elbowroom.runtime._torch_compat import backward_sequence_number, in_backward, next_sequence_number


@final
class ModulePaths:
    """Path of the running module, such as "UNet.model.0.conv".

    Args:
        on_root: called with each outermost module before it runs.
    """

    def __init__(self, on_root: Callable[[torch.nn.Module], None]) -> None:
        self._on_root = on_root
        self._stack: list[str] = []
        self._names: dict[int, str] = {}
        self._by_sequence: dict[int, str] = {}
        self._handles: list[Any] = []

    def start(self) -> None:
        """Install the hooks."""
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stack.clear()

    def enter_root(self, module: torch.nn.Module) -> None:
        """The outermost module whose call began before the hooks were there."""
        self._enter(module, ())

    def current(self) -> str:
        """Path for the op that is being dispatched."""
        if in_backward() and not self._stack:
            return self._by_sequence.get(backward_sequence_number(), "")
        path = self._stack[-1] if self._stack else ""
        self._by_sequence[next_sequence_number() - 1] = path
        return path

    @property
    def inside(self) -> bool:
        """Whether a module is running."""
        return bool(self._stack)

    def _enter(self, module: torch.nn.Module, _args: Any) -> None:
        if not self._stack:
            root = type(module).__name__
            modules = module.named_modules(remove_duplicate=False)
            self._names = {id(child): f"{root}.{name}" if name else root for name, child in modules}
            self._on_root(module)
        outer = self._stack[-1] if self._stack else ""
        self._stack.append(self._names.get(id(module), f"{outer}.{type(module).__name__}"))

    def _leave(self, _module: torch.nn.Module, _args: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()
