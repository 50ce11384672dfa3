"""Which ops were compared with the CUDA build of torch and found equal: compared.json, made by a command.

`python -m benchmarks.accuracy compared` writes it from jobs and single ops that were run on the rig too: an op is in it
once it ran where the allocations and frees, all of them, were those of the CUDA build. No entry is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, final

import torch

TABLE = Path(__file__).with_name("compared.json")
ANY = "any"


@final
class Compared:
    """Names of ops, and which of them the table does not have.

    Args:
        table: the ops, each with the dtypes in which it was compared; None for the one of this package.
    """

    def __init__(self, table: Mapping[str, Iterable[str]] | None = None) -> None:
        ops = read_table() if table is None else table
        self._known = frozenset(f"{op} {dtype}" for op, dtypes in ops.items() for dtype in dtypes)
        self._forms: dict[tuple[Any, torch.dtype | None], str] = {}

    def form(self, func: Any, tensors: Sequence[torch.Tensor]) -> str:
        """Name and dtype of an op that runs a kernel on the device, "" of another.

        Args:
            func: the op.
            tensors: what it was given and what it made.
        """
        first = next((tensor for tensor in tensors if tensor.device.type == "cuda"), None)
        key = func, None if first is None else first.dtype
        known = self._forms.get(key)
        if known is None:
            known = self._forms[key] = _form(*key)
        return known

    def has(self, form: str) -> bool:
        """Whether the op was compared; true of "", which allocates nothing."""
        return not form or form in self._known


def _form(func: Any, dtype: torch.dtype | None) -> str:
    if dtype is None or func.is_view:
        return ""
    # A pointwise op makes its result and nothing else in every dtype (TensorIterator.cpp).
    return f"{func} {ANY if torch.Tag.pointwise in func.tags else str(dtype)[6:]}"


@cache
def read_table() -> dict[str, dict[str, Any]]:
    """By op and dtype: in how many equal cases it ran, and on which compute capabilities."""
    return json.loads(TABLE.read_text("utf-8"))["ops"]
