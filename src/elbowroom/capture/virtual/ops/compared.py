"""Compared: ops that were compared with the CUDA build of torch and found equal: compared.json, made by a command.

`python -m benchmarks.accuracy compared` writes it from jobs and single ops that were run on the rig too. An op is in it
if it ran in a case with all allocations and frees of the CUDA build. No entry is written by hand.
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
    """Table of compared ops.

    Args:
        table: the ops, each with the dtypes in which it was compared; None for the one of this package.
    """

    def __init__(self, table: Mapping[str, Iterable[str]] | None = None) -> None:
        ops = read_table() if table is None else table
        self._known = frozenset(f"{op} {dtype}" for op, dtypes in ops.items() for dtype in dtypes)
        self._forms: dict[tuple[Any, torch.dtype | None], str] = {}

    def form(self, func: Any, tensors: Sequence[torch.Tensor]) -> str:
        """Return name and dtype of an op that runs a kernel on the device; "" for another op.

        Args:
            func: the op.
            tensors: its arguments and results.
        """
        first = next((tensor for tensor in tensors if tensor.device.type == "cuda"), None)
        key = func, None if first is None else first.dtype
        known = self._forms.get(key)
        if known is None:
            known = self._forms[key] = _form(*key)
        return known

    def has(self, form: str) -> bool:
        """Return whether the op was compared; true for "", which allocates nothing."""
        return not form or form in self._known


def _form(func: Any, dtype: torch.dtype | None) -> str:
    if dtype is None or func.is_view:
        return ""
    # A pointwise op makes its result and nothing else in every dtype (TensorIterator.cpp).
    return f"{func} {ANY if torch.Tag.pointwise in func.tags else str(dtype)[6:]}"


@cache
def read_table() -> dict[str, dict[str, Any]]:
    """Return by op and dtype in how many equal cases it ran, and on which compute capabilities."""
    return json.loads(TABLE.read_text("utf-8"))["ops"]
