"""Raw reads: code that takes the address or the storage of a tensor, past all operators.

While the room is open, methods of `torch.Tensor` report such a call first. Two kinds differ. `tolist` and
`untyped_storage` need the bytes now. `numpy`, `data_ptr` and DLPack hand out an address, which may be read or written
at any later time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch

FOR_NOW = ("tolist", "untyped_storage")
FOR_GOOD = ("data_ptr", "numpy", "__dlpack__")


@final
class RawReads:
    """Reports raw reads of tensors from now on, until `close`.

    Args:
        asked: called with the tensor, and whether its address is handed out for good, before the call goes on.
    """

    def __init__(self, asked: Callable[[torch.Tensor, bool], None]) -> None:
        self._asked = asked
        self._before = [(name, name in vars(torch.Tensor), getattr(torch.Tensor, name)) for name in FOR_NOW + FOR_GOOD]
        for name, _, method in self._before:
            setattr(torch.Tensor, name, self._reporting(method, for_good=name in FOR_GOOD))

    def _reporting(self, method: Any, *, for_good: bool) -> Any:
        asked = self._asked

        @wraps(method)
        def reporting(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            asked(tensor, for_good)
            return method(tensor, *args, **kwargs)

        return reporting

    def close(self) -> None:
        """Restore the methods."""
        for name, own, method in self._before:
            if own:
                setattr(torch.Tensor, name, method)
            else:
                delattr(torch.Tensor, name)
        self._before = []
