"""Loading: parameters that come to the device while a model is made or moved there, before they pile up.

`Module.to`, `cuda`, `half` and `to_empty` move one parameter after the other. Under `with torch.device("cuda")` each is
made there and then given to its module. `copy.deepcopy` of a module makes them there too. All are reported here, one by
one. Loaders that would move a whole model first do not: hub_loading.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, final

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from elbowroom.engine.hub_loading import HubLoading
from elbowroom.torch_compat.module_moves import apply_of_modules, set_apply_of_modules


@final
class Loading:
    """Reports the parameters that modules get and move, from now on until `close`.

    Args:
        moved: called with parameters of a module of which some have just been moved.
        made: called with a parameter that a module has been given, or that is a copy of another one.
    """

    def __init__(self, moved: Callable[[Iterable[nn.Parameter]], None], made: Callable[[nn.Parameter], None]) -> None:
        self._moved = moved
        self._made = made
        self._hub = HubLoading(made)
        self._apply = apply_of_modules()
        self._ours = self._reporting(self._apply)
        set_apply_of_modules(self._ours)
        self._copy: Any = vars(nn.Parameter)["__deepcopy__"]
        self._copying = self._reporting_copies(self._copy)
        nn.Parameter.__deepcopy__ = self._copying
        self._handle = register_module_parameter_registration_hook(self._registered)

    def _reporting(self, apply: Any) -> Any:
        moved = self._moved

        @wraps(apply)
        def reporting(module: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> Any:
            def one(tensor: Any) -> Any:
                moved(_own(module))  # those before this one
                return fn(tensor)

            try:
                return apply(module, one, recurse)
            finally:
                moved(_own(module))

        return reporting

    def _reporting_copies(self, copy: Any) -> Any:
        @wraps(copy)
        def copying(parameter: nn.Parameter, memo: dict[int, Any]) -> Any:
            found = copy(parameter, memo)
            self._registered(None, "", found)
            return found

        return copying

    def _registered(self, _module: nn.Module | None, _name: str, parameter: Any) -> None:
        self._hub.look()
        if isinstance(parameter, nn.Parameter):
            self._made(parameter)

    def close(self) -> None:
        """Report no more."""
        self._handle.remove()
        self._hub.close()
        if nn.Parameter.__deepcopy__ is self._copying:  # else others have wrapped it
            nn.Parameter.__deepcopy__ = self._copy
        if apply_of_modules() is self._ours:
            set_apply_of_modules(self._apply)


def _own(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))
