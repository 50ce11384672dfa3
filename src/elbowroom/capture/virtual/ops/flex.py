"""Flex: flex_attention on the virtual device: what its compiled kernel makes and saves (torch/_inductor/kernel/flex).

Nearly all scripts compile it. Otherwise it holds all scores as well; torch warns of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from elbowroom.capture.virtual.ledger import Ledger

Change = tuple[Any, str, Any]
SAID = "flex_attention (as its compiled kernel; not compiled it holds all scores too)"


class _Flex(torch.autograd.Function):
    """One kernel forward, which saves log-sum-exps; backward makes sums of rows, and three gradients."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = query.shape[:-1]
        made = query.new_empty((*rows, value.shape[-1]))
        lse = query.new_empty(rows, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, made, lse)
        ctx.mark_non_differentiable(lse)
        return made, lse

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[torch.Tensor, ...]:
        query, key, value, _, lse = ctx.saved_tensors
        sums = torch.empty_like(lse)
        made = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        del sums
        return made


def _mask(mask_mod: Any, rows: int, columns: int, block: int | tuple[int, int], shape: tuple[int, int]) -> Any:
    """Make a mask of blocks; truth values of all elements exist while it is made."""
    from torch.nn.attention.flex_attention import BlockMask

    down, across = (block, block) if isinstance(block, int) else block
    blocks = -(-rows // down), -(-columns // across)
    dense = torch.empty((*shape, rows, columns), dtype=torch.bool, device="cuda")
    counts = [torch.zeros((*shape, blocks[0]), dtype=torch.int32, device="cuda") for _ in range(2)]
    places = [torch.zeros((*shape, *blocks), dtype=torch.int32, device="cuda") for _ in range(2)]
    del dense
    return BlockMask.from_kv_blocks(
        counts[0],
        places[0],
        counts[1],
        places[1],
        BLOCK_SIZE=(down, across),
        mask_mod=mask_mod,
        seq_lengths=(rows, columns),
    )


def changes(ledger: Ledger) -> list[Change]:
    """Return the replacements of flex_attention and of the function that makes its masks."""
    from torch.nn.attention import flex_attention as flex

    def attend(query: Any, key: Any, value: Any, *args: Any, return_lse: bool = False, **named: Any) -> Any:
        ledger.remark("unsupported", SAID)
        made, lse = _Flex.apply(query, key, value)
        if named.get("return_aux") is not None:
            return made, flex.AuxOutput(lse=lse)
        return (made, lse) if return_lse or (len(args) > 4 and args[4]) else made

    def mask(
        mask_mod: Callable[..., Any],
        B: int | None,
        H: int | None,
        Q_LEN: int,
        KV_LEN: int,
        device: Any = None,
        BLOCK_SIZE: Any = 128,
        *_: Any,
        **__: Any,
    ) -> Any:
        return _mask(mask_mod, Q_LEN, KV_LEN, BLOCK_SIZE, (B or 1, H or 1))

    return [(flex, "flex_attention", attend), (flex, "create_block_mask", mask)]
