"""ONNX recurrent layers: LSTM, GRU and RNN nodes as PyTorch's modules, which cuDNN runs in one call.

ONNX keeps gates in another order, one array for all gates, and an axis for directions: shapes are those of ONNX,
W [D, G*H, I], R [D, G*H, H], B [D, 2*G*H] with D directions, G gates, H the width of the state and I that of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from elbowroom.frameworks.onnx.node_call import Function, NodeCall, derived
from elbowroom.frameworks.onnx.onnx_ops import converts

KINDS: dict[str, tuple[Callable[..., nn.RNNBase], tuple[int, ...]]] = {
    "LSTM": (nn.LSTM, (0, 2, 3, 1)),  # i o f c becomes i f g o
    "GRU": (nn.GRU, (1, 0, 2)),  # z r h becomes r z n
    "RNN": (nn.RNN, (0,)),
}
"""Module of each op, and the place in ONNX of each of its gates."""


class RecurrentNode(nn.Module):
    """A recurrent node: the layer, with results in ONNX's shapes: [T, D, N, H] and one or two of [D, N, H]."""

    def __init__(self, layer: nn.RNNBase, outputs: int) -> None:
        super().__init__()
        self.layer = layer
        self._outputs = outputs

    def forward(self, x_TNI: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Run the layer; `state` is what it begins with, if the graph says that."""
        start: Any = None if not state else state if isinstance(self.layer, nn.LSTM) else state[0]
        out, last = self.layer(x_TNI, start)
        steps, batch, _ = out.shape
        directions = 2 if self.layer.bidirectional else 1
        out = out.view(steps, batch, directions, -1).transpose(1, 2)
        return (out, *(last if isinstance(last, tuple) else (last,)))[: self._outputs]


@converts(*KINDS)
def _recurrent(call: NodeCall) -> Function:
    kind, order = KINDS[call.op]
    weight, width = call.parameter(1), call.attributes["hidden_size"]
    directions, _, inputs = weight.shape
    if call.of("layout", 0) or call.has(4) or call.of("direction", "forward") == "reverse" or call.has(7):
        raise call.refused("a layout, lengths, a direction or peepholes of its own")
    if call.op == "GRU" and not call.of("linear_before_reset", 0):
        raise call.refused("linear_before_reset=0, which cuDNN does not run (Keras: reset_after=True)")
    layer = kind(inputs, width, bias=call.has(3), bidirectional=directions == 2, device="meta")
    _set_weights(call, layer, order)
    states = [place for place in ((5, 6) if call.op == "LSTM" else (5,)) if isinstance(call.value(place), Tensor)]
    call.take(0, *states)
    return RecurrentNode(layer, call.outputs)


class RecurrentStack(nn.Module):
    """Layers of one kind as one layer of PyTorch, with its result alone: [T, N, D*H], or [N, T, D*H] batch first."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Run the layers."""
        return self.layer(x)[0]


@converts("elbowroom.Recurrent")
def _stack(call: NodeCall) -> Function:
    kind, order = KINDS[call.attributes["kind"]]
    directions, _, inputs = call.parameter(1).shape
    layer = kind(
        inputs,
        call.attributes["hidden_size"],
        call.attributes["layers"],
        batch_first=bool(call.attributes["batch_first"]),
        dropout=call.attributes["dropout"],
        bidirectional=directions == 2,
        device="meta",
    )
    _set_weights(call, layer, order)
    call.take(0)
    return RecurrentStack(layer)


def _set_weights(call: NodeCall, layer: nn.RNNBase, order: Sequence[int]) -> None:
    for name in dict(layer.named_parameters()):
        setattr(layer, name, _parameter(call, name, order, layer.hidden_size))


def _parameter(call: NodeCall, name: str, order: Sequence[int], width: int) -> nn.Parameter:
    """Return a parameter of a layer, such as weight_ih_l0_reverse, with where its numbers come from."""
    kind, which, level, *_ = name.split("_")
    place = 3 * int(level[1:]) + (3 if kind == "bias" else 1 if which == "ih" else 2)
    source, direction = call.parameter(place), int(name.endswith("reverse"))
    shape = (len(order) * width, *(() if kind == "bias" else (source.shape[2],)))

    def numbers(array: Tensor) -> Tensor:
        own = array[direction]
        if kind == "bias":
            own = own.view(2, -1)[int(which == "hh")]
        return torch.cat([own.view(len(order), width, *own.shape[1:])[at] for at in order])

    return derived(source, shape, numbers)
