"""Hooks on every module of the process, which torch.compile does not see.

Note: [Compiled regions]
The compiler takes global module hooks for code of the user: it traces them into each region, or breaks the region where
it cannot. A region that was traced without any runs without a look at them ever after, as the compiler does not guard
on there being none. So ours are away while it traces: a region is then one module call, and compiled as it would be
without us.
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
"""The compiler says so at every call; it means hooks that are traced, which ours are not."""

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
        """Whether they are to be called."""
        return self in _installed

    def install(self) -> None:
        """Call them from now on."""
        if tell_of_compiling(_compiler_begins, _compiler_ends) and not any(map(_is_ours, warnings.filters)):
            warnings.filterwarnings("ignore", WARNING, UserWarning)
        _installed.append(self)
        self.show()

    def remove(self) -> None:
        """Call them no more."""
        if self.installed:
            _installed.remove(self)
            self.hide()

    def show(self) -> None:
        """Have torch know of them."""
        self._handles = [register_module_forward_pre_hook(self._before)]
        if self._after is not None:
            self._handles.append(register_module_forward_hook(self._after, always_call=True))

    def hide(self) -> None:
        """Have torch know nothing of them."""
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
