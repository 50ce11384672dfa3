"""Layers: the convolutions that a step calls, and the cost of each with every algorithm that can be switched to.

Costs are measured outside the step, once for each shape: forward and backward of the operator alone, with made-up
numbers, the fastest of `RUNS`. Scratch memory is the most that torch allocates in the call in addition to its result. A
layer takes part if its forward is just the convolution, with zero padding given in numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from elbowroom.capture.recording.profiler_stream import Allocation, ProfilerStream
from elbowroom.engine.conv_backends import offered, switched
from elbowroom.engine.memory_formats import other_format
from elbowroom.engine.storages import tensors_of
from elbowroom.trace import Choice, Op, Trace

RUNS = 1
"""Timed runs, after one that is recorded and warms up."""
FORWARD, BACKWARD = "aten.convolution", "aten.convolution_backward"

_KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Chosen(NamedTuple):
    """Names of the choices for one call of a layer; None if it runs as the training has set it."""

    forward: str | None
    backward: str | None


class LayerCall(NamedTuple):
    """One call of a layer: all that its cost depends on. Shapes and strides are in elements."""

    kind: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    weight_shape: tuple[int, ...]
    weight_stride: tuple[int, ...]
    has_bias: bool
    needs_input_gradient: bool
    settings: tuple[tuple[int, ...], ...]
    groups: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one choice. Times are in ns, scratch memory in bytes; 0 if there is no backward."""

    name: str
    forward_ns: int
    forward_bytes: int
    backward_ns: int
    backward_bytes: int


def is_switchable(layer: nn.Module) -> bool:
    """Return whether an algorithm can be chosen for a layer."""
    return type(layer) in _KINDS and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def switchable(root: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a module for which an algorithm can be chosen, by path such as "UNet.down.0"."""
    name = type(root).__name__
    found = root.named_modules()
    return {f"{name}.{path}" if path else name: layer for path, layer in found if is_switchable(layer)}


@final
class LayerWatch:
    """Watch that notes every call of the layers of a module.

    Attributes:
        calls: by path of the layer, its calls in order.
    """

    def __init__(self, root: nn.Module) -> None:
        self.calls: dict[str, list[LayerCall]] = {}
        self._handles = [
            layer.register_forward_pre_hook(self._noting(path)) for path, layer in switchable(root).items()
        ]

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _noting(self, path: str) -> Callable[[nn.Module, Any], None]:
        def note(layer: nn.Module, given: Any) -> None:
            if given and isinstance(given[0], Tensor) and type(given[0]) is Tensor:
                self.calls.setdefault(path, []).append(_call(layer, given[0]))

        return note


def _call(layer: Any, given: Tensor) -> LayerCall:
    dtype = torch.get_autocast_dtype(given.device.type) if torch.is_autocast_enabled(given.device.type) else given.dtype
    transposed = layer.transposed
    settings = (layer.stride, layer.padding, layer.dilation, layer.output_padding if transposed else (0,))
    return LayerCall(
        kind=type(layer).__name__,
        shape=tuple(given.shape),
        stride=given.stride(),
        dtype=dtype,
        device=given.device,
        weight_shape=tuple(layer.weight.shape),
        weight_stride=layer.weight.stride(),
        has_bias=layer.bias is not None,
        needs_input_gradient=given.requires_grad,
        settings=settings,
        groups=layer.groups,
    )


def measure(call: LayerCall) -> tuple[Cost, ...]:
    """Measure the cost of a call with each choice; the one that is set comes first."""
    given, weight = _like(call.shape, call.stride, call), _like(call.weight_shape, call.weight_stride, call)
    stride, padding, dilation, output_padding = call.settings
    transposed = call.kind.startswith("ConvTranspose")
    channels = call.weight_shape[1] * call.groups if transposed else call.weight_shape[0]
    bias = torch.zeros(channels, dtype=call.dtype, device=call.device) if call.has_bias else None
    rest = (stride, padding, dilation, transposed, output_padding, call.groups)

    def forward() -> Tensor:
        return torch.ops.aten.convolution(given, weight, bias, *rest)

    with torch.no_grad(), torch.autocast(call.device.type, enabled=False):
        gradient = torch.ones_like(forward())
        mask = [call.needs_input_gradient, True, call.has_bias]

        def backward() -> tuple[Tensor | None, ...]:
            sizes = [channels] if call.has_bias else None
            return torch.ops.aten.convolution_backward(gradient, given, weight, sizes, *rest, mask)

        found: list[Cost] = []
        for name in offered(
            call.device, other_format((call.shape, call.stride), (call.weight_shape, call.weight_stride))
        ):
            with switched(call.device, name):
                found.append(Cost(name, *_cost(forward, call.device), *_cost(backward, call.device)))
    return tuple(found)


def _like(shape: tuple[int, ...], stride: tuple[int, ...], call: LayerCall) -> Tensor:
    made = torch.empty_strided(shape, stride, dtype=call.dtype, device=call.device)
    return made.fill_(0.5)


def _cost(run: Callable[[], Any], device: torch.device) -> tuple[int, int]:
    """Measure one call: (ns, bytes in addition to its results)."""
    stream = ProfilerStream(device)
    scratch_bytes = 0
    if stream.start():
        result = run()
        scratch_bytes = _most(stream) - sum(each.untyped_storage().nbytes() for each in tensors_of(result))
        del result
    fastest_ns = min(_timed(run, device) for _ in range(RUNS))
    return fastest_ns, max(0, scratch_bytes)


def _most(stream: ProfilerStream) -> int:
    """Return the most bytes that a call held of what it allocated.

    The profiler reports frees of blocks that an earlier recording saw, too: garbage may be collected meanwhile.
    """
    sizes: dict[int, int] = {}
    held = most = 0
    for item in stream.stop():
        if isinstance(item.what, Allocation):
            block = item.what.block
            if item.what.freed:
                held -= sizes.pop(block.address, 0)
            else:
                sizes[block.address] = block.size_bytes
                held += block.size_bytes
            most = max(most, held)
    return most


def _timed(run: Callable[[], Any], device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start_ns = time.perf_counter_ns()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter_ns() - start_ns


def with_offers(
    trace: Trace,
    calls: Mapping[str, Sequence[LayerCall]],
    costs: Mapping[LayerCall, Sequence[Cost]],
    chosen: Mapping[str, Sequence[Chosen]],
) -> Trace:
    """Return the trace with the measured choices offered by the convolutions of its last step.

    The k-th forward convolution of a layer is its k-th call. Its backward convolutions are those from the last call to
    the first. A layer with another number of convolutions offers nothing.

    Args:
        trace: the trace of the step.
        calls: by path of the layer, its calls in that step.
        costs: by call, the cost of each choice.
        chosen: by path of the layer, the choices with which its calls ran; calls not named ran as the training has set.
    """
    first, end = trace.steps[-1]
    ops = list(trace.ops)
    for path, made in calls.items():
        for name in (FORWARD, BACKWARD):
            at = [i for i in range(first, end) if ops[i].name == name and ops[i].module == path]
            if len(at) == len(made):
                at = at if name == FORWARD else at[::-1]
                for k, (i, call) in enumerate(zip(at, made, strict=True)):
                    ran = chosen[path][k] if k < len(chosen.get(path, ())) else Chosen(None, None)
                    ops[i] = _offering(ops[i], costs[call], ran.forward if name == FORWARD else ran.backward)
    return replace(trace, ops=tuple(ops))


def _offering(op: Op, costs: Sequence[Cost], ran: str | None) -> Op:
    """Return an op with its choices, the training's own first; times change as the measured ones do."""
    backward = op.name == BACKWARD
    measured = {
        c.name: (c.backward_ns, c.backward_bytes) if backward else (c.forward_ns, c.forward_bytes) for c in costs
    }
    ran_ns = max(1, measured[ran or costs[0].name][0])
    choices = tuple(
        Choice(name=name, duration_ns=op.duration_ns * ns // ran_ns, workspace_bytes=size_bytes)
        for name, (ns, size_bytes) in measured.items()
    )
    return replace(op, duration_ns=choices[0].duration_ns, choices=choices)
