"""Switches: settings of torch's backends, and memory formats, that choose the algorithm of a convolution.

Torch lets one choose the library, and how the library chooses its algorithm, but not the algorithm itself. Each choice
has a name. The training's own settings are the first choice. A library may also run in the memory format that the
training does not use (memory_formats.py). Another choice rounds differently. Its numbers are those of a training that
sets the same switches, or that format around the layer, by itself.
Reference: torch.backends.cudnn and torch.backends.mkldnn (PyTorch documentation, "torch.backends").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.backends import cudnn, mkldnn

from elbowroom.engine.memory_formats import Format, InFormat


class Setting(NamedTuple):
    """Values of one backend's attributes, and a memory format; None is the training's own."""

    backend: Any
    values: dict[str, bool]
    memory_format: Format | None = None


CUDNN = {"enabled": True, "benchmark": False, "deterministic": False}
CHOICES: dict[str, dict[str, Setting]] = {
    "cpu": {
        "onednn": Setting(mkldnn, {"enabled": True}),
        "native": Setting(mkldnn, {"enabled": False}),
        "onednn channels_last": Setting(mkldnn, {"enabled": True}, "channels_last"),
        "onednn contiguous": Setting(mkldnn, {"enabled": True}, "contiguous"),
    },
    "cuda": {
        "cudnn": Setting(cudnn, CUDNN),
        "cudnn benchmark": Setting(cudnn, CUDNN | {"benchmark": True}),
        "cudnn deterministic": Setting(cudnn, CUDNN | {"deterministic": True}),
        "native": Setting(cudnn, {"enabled": False}),
        "cudnn channels_last": Setting(cudnn, CUDNN, "channels_last"),
        "cudnn contiguous": Setting(cudnn, CUDNN, "contiguous"),
    },
}
"""Type of device -> name of each choice -> what it sets."""


def offered(device: torch.device, other: Format | None = None) -> tuple[str, ...]:
    """Return the choices for a device that this build of torch has; the one that is set now comes first.

    Args:
        device: the device of the convolution.
        other: the format that it does not run in by itself; None if there is only one.
    """
    if device.type == "cpu" and not mkldnn.is_available():
        return ("native",)
    if device.type == "cuda" and not cudnn.is_available():
        return ("native",)
    names = [name for name, setting in CHOICES[device.type].items() if setting.memory_format in (None, other)]
    present = next((name for name in names if _is_set(CHOICES[device.type][name])), None)
    return tuple(sorted(names, key=lambda name: name != present)) if present else ()


@contextmanager
def switched(device: torch.device, name: str) -> Iterator[None]:
    """Set a choice, and restore the earlier settings afterwards."""
    backend, values, memory_format = CHOICES[device.type][name]
    before = {attribute: getattr(backend, attribute) for attribute in values}
    try:
        for attribute, value in values.items():
            setattr(backend, attribute, value)
        with nullcontext() if memory_format is None else InFormat(memory_format):
            yield
    finally:
        for attribute, value in before.items():
            setattr(backend, attribute, value)


def _is_set(setting: Setting) -> bool:
    return setting.memory_format is None and all(
        getattr(setting.backend, attribute) == value for attribute, value in setting.values.items()
    )
