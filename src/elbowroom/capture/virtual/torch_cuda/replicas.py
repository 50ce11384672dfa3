"""Replicas: the first device of nn.DataParallel on the virtual device.

With one device the module is called, as in torch. With several, the first one gets its share of the batch and runs the
module. It gathers the outputs of all, and adds up all gradients in buffers (comm.py). The others are not followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import comm
from torch.utils._pytree import tree_leaves, tree_map

from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.tensor import CUDA
from elbowroom.torch_compat.core import dense_chunks, flattened, unflattened

Change = tuple[Any, str, Any]
BUFFER_BYTES = 10 * 2**20
"""Size of the buffers in which parameters and gradients are sent."""


class _Replicated(torch.autograd.Function):
    """The parameters of the first replica; backward adds up the gradients of all, a buffer after the other."""

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for chunk in dense_chunks(parameters, BUFFER_BYTES):
            flattened(chunk)
        return tuple(each.view_as(each) for each in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found: dict[int, torch.Tensor] = {}
        for chunk in dense_chunks(gradients, BUFFER_BYTES):
            added = torch.empty_like(flattened(chunk))
            found |= {id(each): part for each, part in zip(chunk, unflattened(added, chunk), strict=True)}
        return tuple(found[id(each)] for each in gradients)


class _Gathered(torch.autograd.Function):
    """The outputs of all replicas; backward gives the first one its own part."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, replicas: int, dim: int) -> torch.Tensor:
        ctx.dim, ctx.scalar = dim, not output.dim()
        first = output.view(1) if ctx.scalar else output
        ctx.size = first.shape[dim]
        shape = list(first.shape)
        shape[dim] *= replicas
        return first.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        first = grad.narrow(ctx.dim, 0, ctx.size)
        return (first[0] if ctx.scalar else first), None, None


def _parts(given: Any, devices: int, dim: int) -> int:
    """Return how many devices get a share of the batch."""
    sizes = [each.shape[dim] for each in tree_leaves(given) if isinstance(each, torch.Tensor) and each.dim() > dim]
    return min([devices, *sizes])


def _share(value: Any, devices: int, dim: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    share = value.chunk(devices, dim)[0] if devices > 1 and value.dim() > dim else value
    return share.to(CUDA, non_blocking=True)


def _run(
    module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], devices: int, dim: int, ledger: Ledger
) -> Any:
    replicas = _parts((inputs, named), devices, dim)
    inputs, named = tree_map(lambda each: _share(each, replicas, dim), (inputs, named))
    if replicas == 1:
        return module(*inputs, **named)
    ledger.remark("unsupported", f"DataParallel on {devices} devices (this is what the first of them holds)")
    parameters: dict[str, torch.Tensor] = dict(module.named_parameters())
    if torch.is_grad_enabled():
        parameters = dict(zip(parameters, _Replicated.apply(*parameters.values()), strict=True))
    made = torch.func.functional_call(module, parameters, inputs, named)
    return tree_map(lambda each: _gathered(each, replicas, dim), made)


def _gathered(value: Any, replicas: int, dim: int) -> Any:
    return _Gathered.apply(value, replicas, dim) if isinstance(value, torch.Tensor) else value


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[Any] | None = None,
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Any = None,
    *,
    out: Any = None,
) -> tuple[torch.Tensor, ...]:
    count = len(devices if devices is not None else out)
    parts = tensor.split(list(chunk_sizes), dim) if chunk_sizes else tensor.chunk(count, dim)
    return tuple(each.to(CUDA) for each in parts)


def changes(ledger: Ledger) -> list[Change]:
    """Return the replacements of DataParallel and of the functions that it uses."""

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        return _run(self.module, inputs, named, len(self.device_ids), self.dim, ledger)

    def data_parallel(
        module: Any,
        inputs: Any,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        module_kwargs: Any = None,
    ) -> Any:
        given = inputs if isinstance(inputs, tuple) else (() if inputs is None else (inputs,))
        return _run(module, given, module_kwargs or {}, len(device_ids or (0,)), dim, ledger)

    return [
        (torch.nn.DataParallel, "forward", forward),
        (torch.nn.parallel, "data_parallel", data_parallel),
        (comm, "scatter", _scatter),
        (comm, "gather", lambda tensors, dim=0, destination=None, **_: torch.cat(list(tensors), dim)),
    ]
