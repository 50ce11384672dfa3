"""Recurrent layers as cuDNN runs them (RNN.cpp of cudnn; rig): one flat buffer of weights, a reserve, a workspace.

Shapes: T time steps, B batch, H hidden. cuDNN's own figures for reserve and workspace are a model in
library_settings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from elbowroom.capture.virtual.scratch_memory.reductions import partial_bytes
from elbowroom.capture.virtual.tensor import META, Inside, virtual
from elbowroom.capture.virtual.torch_cuda.library_settings import RecurrentCall
from elbowroom.torch_compat.core import set_storage, storage_key

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import VirtualMode
    from elbowroom.capture.virtual.scratch_memory.scratch import ScratchCall

aten: Any = torch.ops.aten
RELU, TANH, LSTM, GRU = range(4)


def _layer(mode: int) -> Callable[..., Any]:
    """Make the layer on a padded batch, above autograd."""

    def run(
        input: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        return _run(mode, input, (), hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)

    return run


def _packed(mode: int) -> Callable[..., Any]:
    """Make the layer on a packed sequence."""

    def run(
        data: torch.Tensor,
        batch_sizes: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        sizes = batch_sizes.tolist()
        return _run(mode, data, sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional, False)

    return run


def _run(
    mode: int,
    input: torch.Tensor,
    sizes: Sequence[int],
    state: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    hx, cx = (state[0], state[1]) if mode == LSTM else (state, None)
    hidden = (cx if cx is not None else hx).shape[-1]
    projected = hx.shape[-1] if hx.shape[-1] != hidden else 0
    made = aten._cudnn_rnn(
        input,
        list(params),
        (4 if has_biases else 2) + bool(projected),
        flat_buffer(params),
        hx,
        cx,
        mode,
        hidden,
        projected,
        layers,
        batch_first,
        dropout,
        train,
        bidirectional,
        list(sizes),
        None,
    )
    return made[:3] if mode == LSTM else made[:2]


def flat_buffer(params: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the one buffer of all weights; None if they are not in one."""
    keys = {storage_key(each.untyped_storage()) for each in params}
    if len(keys) != 1:
        return None
    with Inside(), torch.no_grad():
        flat = torch.empty(0, dtype=params[0].dtype, device=META)
        storage = params[0].untyped_storage()
        set_storage(flat, storage, 0, (storage.nbytes() // params[0].element_size(),), (1,))
    return virtual(flat, params[0].device)


def flatten_weight(mode: VirtualMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Move weights into one new buffer; their own storages are freed in their order."""
    weights: list[torch.Tensor] = args[0]
    count = sum(each.numel() for each in weights)
    with Inside():
        flat = torch.empty(count, dtype=weights[0].dtype, device=META)
    made = mode.note(func, args, kwargs, virtual(flat, weights[0].device))
    offset = 0
    for each in weights:
        with Inside(), torch.no_grad():
            set_storage(each, flat.untyped_storage(), offset, each.shape, _dense(each.shape))
        offset += each.numel()
    return made


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tuple(strides)


def described(args: Sequence[Any], first: int) -> RecurrentCall:
    """Describe the call of cuDNN by the arguments of `_cudnn_rnn` (first=6) or its backward (first=10)."""
    mode, hidden, projected, layers, batch_first, _dropout, train, bidirectional, sizes = args[first : first + 9]
    input = args[0]
    rows = input.shape[0] if sizes else input.shape[0] * input.shape[1]
    _ = batch_first
    return RecurrentCall(
        gates=(1, 1, 4, 3)[mode],
        rows=rows,
        hidden=hidden,
        output=projected or hidden,
        layers=layers,
        directions=2 if bidirectional else 1,
        item_bytes=input.element_size(),
        train=train,
    )


def kernel(reserve_bytes: Callable[[RecurrentCall], int]) -> Callable[..., Any]:
    """Make the results of `_cudnn_rnn`."""

    def run(*args: Any) -> tuple[Any, ...]:
        input, weights, _stride, buffer, hx, cx = args[:6]
        wanted = described(args, 6)
        batch_first, sizes = args[10], args[14]
        width = wanted.output * wanted.directions
        if sizes:
            output = input.new_empty((input.shape[0], width))
        elif batch_first:
            output = input.new_empty((input.shape[1], input.shape[0], width)).transpose(0, 1)
        else:
            output = input.new_empty((*input.shape[:2], width))
        batch = hx.shape[1]
        cells = input.new_empty(() if cx is None else cx.shape)
        if cx is None:
            cells = input.new_empty((0,))
        states = input.new_empty((wanted.layers * wanted.directions, batch, wanted.output))
        reserve = input.new_empty((reserve_bytes(wanted) if wanted.train else 0,), dtype=torch.uint8)
        if buffer is None:
            buffer = input.new_empty((sum(each.numel() for each in weights),))
        return output, states, cells, reserve, buffer

    return run


def backward_kernel(*args: Any) -> tuple[Any, ...]:
    """Make the results of `_cudnn_rnn_backward`: the gradients of weights are views of one buffer."""
    input, weights, _stride, buffer, hx, cx = args[:6]
    mask = args[-1]
    batch_first, sizes = args[14], args[18]
    gradient = None
    if mask[0]:
        shape = (input.shape[1], input.shape[0], *input.shape[2:]) if batch_first and not sizes else input.shape
        gradient = input.new_empty(shape)
        if batch_first and not sizes:
            gradient = gradient.transpose(0, 1)
    flat = buffer.new_empty((sum(each.numel() for each in weights),))
    views: list[Any] = []
    offset = 0
    for each in weights:
        views.append(flat[offset : offset + each.numel()].view(each.shape) if mask[3] else None)
        offset += each.numel()
    return gradient, torch.empty_like(hx), None if cx is None else torch.empty_like(cx), views


def _transposed_bytes(tensor: torch.Tensor, batch_first: bool, sizes: Any) -> int:
    """Return the bytes of a copy in the order T B; 0 if the tensor has that order."""
    moved = batch_first and not sizes and tensor.shape[0] > 1 and tensor.shape[1] > 1
    if not moved:
        return 0
    B, _, H = tensor.shape
    return 0 if tensor.stride() == (H, B * H, 1) else tensor.numel() * tensor.element_size()


def forward_rule(call: ScratchCall) -> None:
    """Allocate dropout's states once; input in time order; results, weights in one buffer, workspace, reserve."""
    args = call.args
    batch_first, dropout, train, sizes = args[10], args[11], args[12], args[14]
    if dropout and train:
        call.once("dropout states", 8, call.cudnn.dropout_state_bytes)
    copy = call.temp(_transposed_bytes(args[0], batch_first, sizes))
    call.out(0, 1, 2)
    if args[3] is None:
        call.out(4)
    workspace = call.temp(call.cudnn.rnn_workspace(described(args, 6)), workspace=True)
    call.out(3)
    call.drop(workspace, copy)


def backward_rule(call: ScratchCall) -> None:
    """Allocate zeros for missing gradients; then the gradients of input and states, then those of weights."""
    args = call.args
    input, hx, cx, output = args[0], args[4], args[5], args[6]
    given, batch_first, sizes, mask = args[7:10], args[14], args[18], args[-1]
    size = output.element_size()
    zeros = [call.temp(output.numel() * size)] if given[0] is None else []
    zeros += [call.temp(hx.numel() * size)] if given[1] is None else []
    zeros += [call.temp(cx.numel() * size)] if cx is not None and given[2] is None else []
    copy = call.temp(_transposed_bytes(input, batch_first, sizes))
    gradient = 0 if given[0] is None else _transposed_bytes(given[0], batch_first, sizes)
    dense = call.temp(gradient)
    states = 1 + (cx is not None)
    call.out(*range(mask[0] + states))
    workspace = call.cudnn.rnn_workspace(described(args, 10))
    call.drop(call.temp(workspace, workspace=True), dense, copy)
    if mask[3]:
        copy = call.temp(_transposed_bytes(input, batch_first, sizes))
        call.out(mask[0] + states)
        call.drop(call.temp(workspace, workspace=True), copy)
    call.drop(*reversed(zeros))


def _lstm_cell(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run two products and one kernel, which keeps the gates (RNN.cpp: LSTMCell)."""
    gates = aten.matmul(input, w_ih.t()), aten.matmul(hx[0], w_hh.t())
    made = aten._thnn_fused_lstm_cell(*gates, hx[1], b_ih, b_hh)
    return made[0], made[1]


def lstm_cell_rule(call: ScratchCall) -> None:
    """Allocate the gates that are kept before the two states (RNN.cu; rig)."""
    call.out(2, 0, 1)


def _gru_cell(
    input: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run two products and one kernel, which keeps five values (RNN.cpp: GRUCell)."""
    gates = aten.matmul(input, w_ih.t()), aten.matmul(hx, w_hh.t())
    return aten._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]


def gru_cell_rule(call: ScratchCall) -> None:
    """Allocate the kept values before the state (RNN.cu; rig)."""
    call.out(1, 0)


def cell_backward_rule(call: ScratchCall) -> None:
    """Allocate gradients of gates and states, then of biases: sums of those of the gates (RNN.cu; rig)."""
    biases = [index for index, each in enumerate(call.results) if each.dim() == 1]
    call.out(*(index for index in range(len(call.results)) if index not in biases))
    gates = call.results[0]
    for index in biases:
        call.out(index)
        call.reduce_rows(gates.shape[0], gates.shape[1], partial_bytes(gates.dtype))


def _fused_gru_cell(igates: torch.Tensor, hgates: torch.Tensor, hx: torch.Tensor, *_biases: Any) -> tuple[Any, ...]:
    """Make the state, and five of its size that are kept (RNN.cu)."""
    return torch.empty_like(hx, memory_format=torch.contiguous_format), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


def _fused_gru_cell_backward(grad: torch.Tensor, kept: torch.Tensor, has_bias: bool) -> tuple[Any, ...]:
    rows, hidden = kept.shape[0], kept.shape[1] // 5
    gates = [kept.new_empty((rows, 3 * hidden)) for _ in range(2)]
    biases = [kept.new_empty((3 * hidden,)) if has_bias else None for _ in range(2)]
    return (*gates, torch.empty_like(grad, memory_format=torch.contiguous_format), *biases)


ROUTES: dict[Any, Callable[..., Any]] = {
    aten.lstm_cell.default: _lstm_cell,
    aten.gru_cell.default: _gru_cell,
    aten.lstm.input: _layer(LSTM),
    aten.gru.input: _layer(GRU),
    aten.rnn_tanh.input: _layer(TANH),
    aten.rnn_relu.input: _layer(RELU),
    aten.lstm.data: _packed(LSTM),
    aten.gru.data: _packed(GRU),
    aten.rnn_tanh.data: _packed(TANH),
    aten.rnn_relu.data: _packed(RELU),
}
KERNELS: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_gru_cell.default: _fused_gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _fused_gru_cell_backward,
}
RULES: dict[Any, Callable[[ScratchCall], None]] = {
    aten._cudnn_rnn.default: forward_rule,
    aten._cudnn_rnn_backward.default: backward_rule,
    aten._thnn_fused_lstm_cell.default: lstm_cell_rule,
    aten._thnn_fused_gru_cell.default: gru_cell_rule,
    aten._thnn_fused_lstm_cell_backward_impl.default: cell_backward_rule,
    aten._thnn_fused_gru_cell_backward.default: cell_backward_rule,
}
