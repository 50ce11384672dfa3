"""Switches: the algorithms that torch lets one choose for a convolution, as settings of its backends.

Torch offers no choice of one algorithm of a library, but of the library, and of how that chooses. A choice is named by
what it means; the settings that a training has made for itself are a choice like any other, the first. Another choice
rounds differently, so that its numbers are those of a training that sets the same switches by itself.
Reference: torch.backends.cudnn and torch.backends.mkldnn (PyTorch documentation, "torch.backends").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.backends import cudnn, mkldnn


class Setting(NamedTuple):
    """Values of one backend's attributes."""

    backend: Any
    values: dict[str, bool]


CHOICES: dict[str, dict[str, Setting]] = {
    "cpu": {
        "onednn": Setting(mkldnn, {"enabled": True}),
        "native": Setting(mkldnn, {"enabled": False}),
    },
    "cuda": {
        "cudnn": Setting(cudnn, {"enabled": True, "benchmark": False, "deterministic": False}),
        "cudnn benchmark": Setting(cudnn, {"enabled": True, "benchmark": True, "deterministic": False}),
        "cudnn deterministic": Setting(cudnn, {"enabled": True, "benchmark": False, "deterministic": True}),
        "native": Setting(cudnn, {"enabled": False}),
    },
}
"""By type of device: name of each choice, and what it sets."""


def offered(device: torch.device) -> tuple[str, ...]:
    """The choices for a device, the one that is set first; those alone that this build of torch has."""
    if device.type == "cpu" and not mkldnn.is_available():
        return ("native",)
    if device.type == "cuda" and not cudnn.is_available():
        return ("native",)
    names = CHOICES[device.type]
    present = next((name for name, setting in names.items() if _is_set(setting)), None)
    return tuple(sorted(names, key=lambda name: name != present)) if present else ()


@contextmanager
def switched(device: torch.device, name: str) -> Iterator[None]:
    """Set a choice, and put back what was set before."""
    backend, values = CHOICES[device.type][name]
    before = {attribute: getattr(backend, attribute) for attribute in values}
    try:
        for attribute, value in values.items():
            setattr(backend, attribute, value)
        yield
    finally:
        for attribute, value in before.items():
            setattr(backend, attribute, value)


def _is_set(setting: Setting) -> bool:
    return all(getattr(setting.backend, attribute) == value for attribute, value in setting.values.items())
