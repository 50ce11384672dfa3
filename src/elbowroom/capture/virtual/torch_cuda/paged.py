"""Paged: optimizer states in managed memory, as bitsandbytes' paged optimizers have them (functional.py: get_paged).

cudaMallocManaged does not use torch's allocator. The driver moves its pages between the GPU and the host as they are
needed. An estimate reports these bytes, but does not count them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from elbowroom.capture.arrivals import Change, Changing
from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.units import format_bytes

SAID = "{} of bitsandbytes' paged states (managed memory, which leaves the GPU where there is no room; not counted)"


@final
class Paged:
    """Replacement of bitsandbytes' managed memory while the device is on.

    Args:
        ledger: ledger of the virtual device.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._bytes = 0

    def changes(self) -> dict[str, Changing]:
        """Return the changes by module."""
        return {"bitsandbytes.functional": self._changes}

    def _changes(self, module: Any) -> list[Change]:
        nothing: Callable[..., None] = lambda *_args, **_how: None  # noqa: E731
        return [
            (module, "get_paged", self._made),
            *((module, name, nothing) for name in ("prefetch_tensor", "elementwise_func") if hasattr(module, name)),
        ]

    def _made(self, *shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        made: Any = torch.empty(shape, dtype=dtype)
        made.is_paged, made.page_deviceid = True, getattr(device, "index", 0) or 0
        self._ledger.remarks.pop(("unsupported", SAID.format(format_bytes(self._bytes))), None)
        self._bytes += made.nbytes
        self._ledger.remark("unsupported", SAID.format(format_bytes(self._bytes)))
        return made
