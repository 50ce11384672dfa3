"""Module hooks: hooks on every module of the process, which torch.compile does not see.

Note: [Compiled regions]
The compiler takes global module hooks for code of the user. It traces them into each region, or breaks the region if it
cannot. The compiler does not guard on the absence of hooks: a region traced without any never calls them. So our hooks
are removed while it traces. A region is then one module call, and compiled as it would be without elbowroom.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, final

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from elbowroom.torch_compat.core import tell_of_compiling

Before = Callable[[torch.nn.Module, Any], None]
After = Callable[[torch.nn.Module, Any, Any], None]

WARNING = r"Using `torch\.compile\(module\)` when there are global hooks"
"""Text of the compiler's warning at every call; it is about hooks that are traced, which ours are not."""

_installed: list[ModuleHooks] = []


@final
class ModuleHooks:
    """Calls before and after each module's forward. Both are to be `never_compiled`.

    Args:
        before: called with the module and its positional arguments.
        after: called with the module, its arguments and its output, also when it raises.
    """

    def __init__(self, before: Before, after: After | None = None) -> None:
        self._before = before
        self._after = after
        self._handles: list[Any] = []

    @property
    def installed(self) -> bool:
        """Whether the hooks are called."""
        return self in _installed

    def install(self) -> None:
        """Call the hooks from now on."""
        if tell_of_compiling(_compiler_begins, _compiler_ends) and not any(map(_is_ours, warnings.filters)):
            warnings.filterwarnings("ignore", WARNING, UserWarning)
        _installed.append(self)
        self.show()

    def remove(self) -> None:
        """Stop calling the hooks."""
        if self.installed:
            _installed.remove(self)
            self.hide()

    def show(self) -> None:
        """Register the hooks with torch, if they are not."""
        if self._handles:
            return
        self._handles = [register_module_forward_pre_hook(self._before)]
        if self._after is not None:
            self._handles.append(register_module_forward_hook(self._after, always_call=True))

    def hide(self) -> None:
        """Unregister the hooks from torch."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def warn_again() -> None:
    """Let the compiler warn of global hooks: from here on they are the user's."""
    filters: Any = warnings.filters
    filters[:] = [each for each in filters if not _is_ours(each)]


def _is_ours(each: Any) -> bool:
    return getattr(each[1], "pattern", each[1]) == WARNING


def _compiler_begins() -> None:
    for hooks in _installed:
        hooks.hide()


def _compiler_ends() -> None:
    for hooks in _installed:
        hooks.show()
