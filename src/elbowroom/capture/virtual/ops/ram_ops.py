"""RAM as the device: composite ops that the CPU runs as one op, and results that no meta kernel of torch gives.

Note: [RAM as the device]
The training of a script on the CPU is captured like one on a GPU. Parameters have no bytes, nor has what is computed
from them. Tensors with bytes, such as a batch, count from the first op on that reads them with others. For C++ all
these are meta tensors with the keys of the CPU. So composite ops take the CPU's way by themselves, where torch does not
look at the device. The ops that do are routed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from elbowroom.capture.virtual.ops import casting
from elbowroom.capture.virtual.ops.linear import linear
from elbowroom.capture.virtual.tensor import CPU, is_virtual

aten: Any = torch.ops.aten
Route = tuple[Any, str, Callable[..., Any]]
"""An op, a dispatch key, and the kernel that runs there."""
FLASH = 1
"""Number of the flash kernel in the answer of `_fused_sdp_choice` (sdp_utils_cpp.h)."""
LSTM = 2
"""Number of LSTM among oneDNN's recurrent cells."""
PAGE_BYTES = 4096
LINE_FLOATS = 16
"""Floats of a cache line."""
WAYS_FLOATS = 256
"""A row of a multiple of this number of floats gets another line: rows would share the same sets of the cache."""


# Attention


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *how: Any,
    **more: Any,
) -> torch.Tensor:
    """Run the flash kernel where torch does (attention.cpp); else what it is made of."""
    given = [each for each in (query, key, value, attn_mask) if each is not None]
    chosen = None
    if any(map(is_virtual, given)):
        same = [None if each is None else alike(each) for each in (query, key, value, attn_mask)]
        chosen = aten._fused_sdp_choice(*same, *how, **more)
    if chosen != FLASH:
        return aten.scaled_dot_product_attention.default.decompose(query, key, value, attn_mask, *how, **more)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), float("-inf"))
    kernel = aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, *how, attn_mask=attn_mask, scale=more.get("scale"))[0]


def alike(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape with the bytes of one row, of which C++ can be asked what it would do."""
    row = tensor.shape[-1:] if tensor.dim() and tensor.stride(-1) == 1 else ()
    made = torch.empty(row, dtype=tensor.dtype, device=CPU).expand(tensor.shape)
    return made.requires_grad_(tensor.requires_grad)


# Recurrent layers


def _lstm(
    input: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[torch.Tensor], *settings: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run oneDNN's layers, one after the other (mkldnn/RNN.cpp)."""
    has_biases, num_layers, dropout, train, bidirectional, batch_first = settings
    projected = hx[0].shape[-1] != hx[1].shape[-1]
    known = torch.backends.mkldnn.enabled and input.dtype is torch.float32 and input.numel() and not projected
    if not known or not any(map(is_virtual, (input, *hx, *params))):
        return aten.lstm.input.decompose(input, hx, params, *settings)
    below = (input.transpose(0, 1) if batch_first else input).contiguous()
    states, cells = [state.contiguous() for state in hx]
    directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
    last: list[torch.Tensor] = []
    last_cells: list[torch.Tensor] = []
    for layer in range(num_layers):
        made: list[torch.Tensor] = []
        for direction in range(directions):
            n = layer * directions + direction
            weights = list(params[n * each : (n + 1) * each])
            if not has_biases:
                weights += [torch.zeros_like(weight) for weight in weights]
            shape = (LSTM, cells.shape[-1], num_layers, has_biases, bidirectional, batch_first, train)
            output, state, cell, _ = aten.mkldnn_rnn_layer(
                below, *weights, states[n], cells[n], direction > 0, [], *shape
            )
            made.append(output)
            last.append(state)
            last_cells.append(cell)
        below = torch.cat(made, -1) if bidirectional else made[0]
        if dropout and train and layer < num_layers - 1:
            below = torch.dropout(below, dropout, True)
    return below.transpose(0, 1) if batch_first else below, torch.stack(last), torch.stack(last_cells)


def _rnn_layer(
    input: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor,
    b_hh: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor,
    *settings: Any,
) -> tuple[torch.Tensor, ...]:
    """Make output, states and the workspace that backward reads."""
    hidden, train = settings[3], settings[-1]
    steps, batch, width = input.shape
    output = input.new_empty((steps, batch, hidden))
    kept_bytes = workspace_bytes(steps, batch, width, hidden) if train else 0
    return output, torch.empty_like(hx), torch.empty_like(cx), input.new_empty(kept_bytes, dtype=torch.uint8)


def workspace_bytes(steps: int, batch: int, width: int, hidden: int) -> int:
    """Return the bytes that one layer of an LSTM keeps for backward (oneDNN, cpu/rnn/rnn_utils.hpp; float32).

    That is: gates, hidden states of two layers of cells, cells, the gradients of these, and states before a projection.
    tests/torch/test_virtual_ram.py compares it with oneDNN's own.
    """
    states, row = 2 * (steps + 1) * batch, _row(max(width, hidden))
    gates, unprojected = steps * batch * _row(4 * hidden), steps * batch * _row(hidden)
    areas = (gates, states * row, states * row, states * row, states * hidden, states * hidden, unprojected)
    return sum(-(-4 * floats // PAGE_BYTES) * PAGE_BYTES for floats in areas)


def _row(floats: int) -> int:
    """Return the floats from one row to the next."""
    whole = -(-floats // LINE_FLOATS) * LINE_FLOATS
    return whole + LINE_FLOATS if whole % WAYS_FLOATS == 0 else whole


# Products


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if not any(map(is_virtual, (input, weight))):
        return aten.linear.default.decompose(input, weight, bias)
    return linear(input, weight, bias)


KERNELS: dict[Any, Callable[..., Any]] = {aten.mkldnn_rnn_layer.default: _rnn_layer}
ROUTES: dict[Any, Callable[..., Any]] = {
    aten.linear.default: _linear,
    aten.scaled_dot_product_attention.default: _attend,
    aten.lstm.input: _lstm,
}


def routes() -> Iterator[Route]:
    """Yield the kernels that are replaced, for tensors with bytes too, which have the same keys."""
    for op, route in ROUTES.items():
        yield op, "AutogradCPU", route
    for op, kernel in casting.kernels_on_cpu():
        yield op, "AutocastCPU", kernel
