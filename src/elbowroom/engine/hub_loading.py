"""Loaders of transformers, accelerate and diffusers: what `device_map` does while parameters leave as they are loaded.

With `device_map` transformers and diffusers first ask for a block of the model's size, so that later requests are
served from it. Then four threads of transformers move weights to the device, well before the modules get them.
Accelerate reads a whole file there, and puts each weight past the methods of modules. All of these would have the whole
model on the device. So a run takes no block, loads in one thread, reads files to the host, and looks at what accelerate
puts.

`device_map="auto"` gives a device what is free there, and leaves the rest of the model on the host, where it is not
trained. Parameters that are away lie on the host. So its free memory counts as the device's, if there is one device,
and the script says nothing of its own.

What is loaded stays the same. Checked in the source of transformers 5.24.0, accelerate 1.15.0 and diffusers 0.42.1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch import nn

ONE_BY_ONE = "HF_DEACTIVATE_ASYNC_LOAD"
"""Variable of the environment: transformers loads one parameter after the other."""
NAMES = (
    ("transformers.modeling_utils", "caching_allocator_warmup"),
    ("transformers.integrations.accelerate", "accelerate_max_memory"),
    ("accelerate.utils.modeling", "get_max_memory"),
    ("accelerate.utils.modeling", "load_state_dict"),
    ("accelerate.utils.modeling", "set_module_tensor_to_device"),
    ("diffusers.models.modeling_utils", "_caching_allocator_warmup"),
    ("diffusers.models.model_loading_utils", "get_max_memory"),
    ("diffusers.models.model_loading_utils", "set_module_tensor_to_device"),
)
"""Module and function. Each module is looked for again until it is there, as scripts import it late."""
Function = Callable[..., Any]


@final
class HubLoading:
    """Has these libraries load one parameter after the other, from now on until `close`.

    Args:
        made: called with each parameter that one of them has put into a module past its methods.
    """

    def __init__(self, made: Callable[[nn.Parameter], None]) -> None:
        self._ours: dict[str, Callable[[Function], Function]] = {
            "caching_allocator_warmup": _nothing,
            "_caching_allocator_warmup": _nothing,
            "accelerate_max_memory": _with_host,
            "get_max_memory": _with_host,
            "load_state_dict": _to_host,
            "set_module_tensor_to_device": lambda function: _reporting(function, made),
        }
        self._replaced: list[tuple[Any, str, Function, Function]] = []
        self._missing = list(NAMES)
        self._asked_by_others = ONE_BY_ONE in os.environ
        os.environ.setdefault(ONE_BY_ONE, "1")
        self.look()

    def look(self) -> None:
        """Look for modules that have been imported by now. Takes about a microsecond."""
        if all(module not in sys.modules for module, _ in self._missing):
            return
        for module, name in [each for each in self._missing if each[0] in sys.modules]:
            found = sys.modules[module]
            function = getattr(found, name, None)  # it is being imported, or another version lacks it
            if function is not None:
                ours = self._ours[name](function)
                setattr(found, name, ours)
                self._missing.remove((module, name))
                self._replaced.append((found, name, function, ours))

    def close(self) -> None:
        """Let them load as ever."""
        for module, name, function, ours in self._replaced:
            if getattr(module, name, None) is ours:  # else others have replaced it
                setattr(module, name, function)
        self._replaced, self._missing = [], []
        if not self._asked_by_others:
            os.environ.pop(ONE_BY_ONE, None)


def _nothing(function: Function) -> Function:
    @wraps(function)
    def takes_nothing(*_args: Any, **_kwargs: Any) -> None: ...

    return takes_nothing


def _with_host(max_memory: Function) -> Function:
    @wraps(max_memory)
    def with_host(given: Any = None) -> dict[int | str, Any]:
        found = max_memory(given)
        devices = [each for each in found if isinstance(each, int)]
        if given is None and len(devices) == torch.cuda.device_count() == 1 and "cpu" in found:
            found[devices[0]] += found["cpu"]
            found["cpu"] = 0
        return found

    return with_host


def _to_host(load_state_dict: Function) -> Function:
    @wraps(load_state_dict)
    def to_host(checkpoint_file: Any, device_map: Any = None) -> Any:  # noqa: ARG001 - each weight is moved later
        return load_state_dict(checkpoint_file)

    return to_host


def _reporting(put: Function, made: Callable[[nn.Parameter], None]) -> Function:
    @wraps(put)
    def reporting(module: nn.Module, tensor_name: str, *args: Any, **kwargs: Any) -> Any:
        result = put(module, tensor_name, *args, **kwargs)
        path, _, last = tensor_name.rpartition(".")
        parameter: Any = getattr(module.get_submodule(path), last, None)
        if isinstance(parameter, nn.Parameter):
            made(parameter)
        return result

    return reporting
