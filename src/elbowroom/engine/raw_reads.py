"""Raw reads: code that takes the address or the storage of a tensor, past all operators.

While the room is open, methods of `torch.Tensor` report such a call first. `tolist` and `untyped_storage` need the
bytes now. `numpy`, `data_ptr` and DLPack hand out an address, which may be read or written later: see Note: [Addresses]
in handed_addresses.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, final

import torch

from elbowroom.engine.handed_addresses import Memory, is_reader

Use = Literal["now", "array", "reader", "ever"]
"""For how long code needs the bytes where they are."""
USES: dict[str, Use] = {
    "tolist": "now",
    "untyped_storage": "now",
    "numpy": "array",
    "data_ptr": "ever",
    "__dlpack__": "ever",
}


@final
class RawReads:
    """Reports raw reads of tensors from now on, until `close`.

    Args:
        asked: called with the tensor, and for how long its bytes are needed, before the call goes on. For "reader" it
            may return other memory with the bytes of the tensor's storage, which the caller gets instead.
    """

    def __init__(self, asked: Callable[[torch.Tensor, Use], Memory | None]) -> None:
        self._asked = asked
        self._before = [(name, name in vars(torch.Tensor), getattr(torch.Tensor, name)) for name in USES]
        for name, _, method in self._before:
            of_readers = name in ("data_ptr", "untyped_storage")
            reporting = self._reporting_readers(name, method) if of_readers else self._reporting(name, method)
            setattr(torch.Tensor, name, reporting)

    def _reporting(self, name: str, method: Any) -> Any:
        asked, use = self._asked, USES[name]

        @wraps(method)
        def reporting(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            asked(tensor, use)
            return method(tensor, *args, **kwargs)

        return reporting

    def _reporting_readers(self, name: str, method: Any) -> Any:
        asked, use = self._asked, USES[name]

        @wraps(method)
        def reporting(tensor: Any) -> Any:
            reads = is_reader(sys._getframe(1).f_globals)  # noqa: SLF001 - the caller says what it needs
            memory = asked(tensor, "reader" if reads else use)
            if memory is None:
                return method(tensor)
            if name == "untyped_storage":
                return memory
            return memory.data_ptr() + tensor.storage_offset() * tensor.element_size()

        return reporting

    def close(self) -> None:
        """Restore the methods."""
        for name, own, method in self._before:
            if own:
                setattr(torch.Tensor, name, method)
            else:
                delattr(torch.Tensor, name)
        self._before = []
