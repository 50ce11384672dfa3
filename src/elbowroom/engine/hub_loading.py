"""Loaders of transformers and accelerate: what they do with `device_map`, while parameters leave as they are loaded.

With `device_map` transformers first asks for a block of the model's size, so that later requests are served from it.
Then four threads move weights to the device, well before the modules get them. Both would have the whole model there.
So neither is done meanwhile. `device_map="auto"` gives a device what is free there, and leaves the rest of the model on
the host, where it is not trained. Parameters that are away lie on the host. So its free memory counts as the device's,
if there is one device, and the script says nothing of its own.

What is loaded stays the same. Checked in the source of transformers 5.24.0 and accelerate 1.15.0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch

ONE_BY_ONE = "HF_DEACTIVATE_ASYNC_LOAD"
"""Variable of the environment: transformers loads one parameter after the other."""
NAMES = (
    ("transformers.modeling_utils", "caching_allocator_warmup"),
    ("transformers.integrations.accelerate", "accelerate_max_memory"),
    ("accelerate.utils.modeling", "get_max_memory"),
)
"""Module and function. Each module is looked for again until it is there, as scripts import it late."""


@final
class HubLoading:
    """Has these libraries load one parameter after the other, from now on until `close`."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._missing = list(NAMES)
        self._asked_by_others = ONE_BY_ONE in os.environ
        os.environ.setdefault(ONE_BY_ONE, "1")
        self.look()

    def look(self) -> None:
        """Look for modules that have been imported by now. Takes less than a microsecond."""
        if all(module not in sys.modules for module, _ in self._missing):
            return
        for module, name in [each for each in self._missing if each[0] in sys.modules]:
            found = sys.modules[module]
            function = getattr(found, name, None)  # it is being imported, or another version lacks it
            if function is not None:
                ours = _takes_nothing if name == "caching_allocator_warmup" else _with_host(function)
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


def _takes_nothing(*_args: Any, **_kwargs: Any) -> None: ...


def _with_host(max_memory: Callable[..., dict[int | str, Any]]) -> Callable[..., dict[int | str, Any]]:
    @wraps(max_memory)
    def with_host(given: Any = None) -> dict[int | str, Any]:
        found = max_memory(given)
        devices = [each for each in found if isinstance(each, int)]
        if given is None and len(devices) == torch.cuda.device_count() == 1 and "cpu" in found:
            found[devices[0]] += found["cpu"]
            found["cpu"] = 0
        return found

    return with_host
