"""Routing: composite ops whose CUDA variant differs from the CPU's are replaced above autograd.

C++ asks a tensor whether it is on cuda, and a virtual one is not. So these ops get our own kernels for the autograd key
of cuda. Like the CUDA build, these call the op that saves what CUDA saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from elbowroom.capture.virtual.compilers import scripted
from elbowroom.capture.virtual.ops import attention, casting, collectives, ctc, ram_ops, recurrent
from elbowroom.capture.virtual.ops.layouts import layout_of
from elbowroom.capture.virtual.ops.linear import linear
from elbowroom.capture.virtual.tensor import CPU, CUDA, home_of, is_real_host
from elbowroom.capture.virtual.torch_cuda.factories import META_ASKED
from elbowroom.torch_compat.core import OpOverrides, below_autograd
from elbowroom.torch_compat.subclasses import have_dtensor_draw

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import VirtualMode
    from elbowroom.capture.virtual.torch_cuda.library_settings import ModelledDevice
    from elbowroom.capture.virtual.torch_cuda.patches import Change

aten: Any = torch.ops.aten
NO_DATA = (
    "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of torch.nn.Module.to() "
    "when moving module from meta to a different device."
)
"""What torch says."""
MOST_BATCH_NORM_ROWS = 880_801
"""The largest batch cuDNN's batch norm trains on (Normalization.cpp)."""


def _batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """Run cuDNN's batch norm if it takes the input, else torch's (Normalization.cpp: _select_batch_norm_backend)."""
    common = (running_mean, running_var, training, momentum, eps)
    if cudnn_enabled and _cudnn_takes(input, weight, bias, running_mean, running_var, training, eps):
        layout = torch.channels_last if _is_channels_last(input) else torch.contiguous_format
        if input.dim() == 5 and _is_channels_last(input):
            layout = torch.channels_last_3d
        return attention.first(aten.cudnn_batch_norm(input.contiguous(memory_format=layout), weight, bias, *common))
    return attention.first(aten.native_batch_norm(input, weight, bias, *common))


def _is_channels_last(tensor: torch.Tensor) -> bool:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return layout is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=layout)


def _cudnn_takes(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    eps: float,
) -> bool:
    if weight is None or bias is None or input.dim() < 3 or eps < 1e-5 or input.numel() >= 2**31:
        return False
    if input.dtype is torch.bfloat16:
        return False
    if input.dtype is torch.float16 and weight.dtype is not torch.float32:
        return False
    if (mean is None) != (var is None) or (mean is None and not training):
        return False
    return input.shape[0] <= (MOST_BATCH_NORM_ROWS if training else 65_535)


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Run one kernel that also makes a mask of one byte an element (Dropout.cpp: is_fused_kernel_acceptable)."""
    if train and 0 < p < 1 and input.numel():
        return attention.first(aten.native_dropout(input, p, True))
    if not train or p == 0 or not input.numel():
        return input
    return input.mul(torch.zeros((), device=CUDA, dtype=input.dtype)) if p == 1 else input


def _softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Convert half to float within the kernel (SoftMax.cpp)."""
    if input.dtype is torch.float16 and dtype is torch.float32:
        return aten._softmax(input, dim, True)
    return aten._softmax(input if dtype is None else input.to(dtype), dim, False)


def _log_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    if input.dtype is torch.float16 and dtype is torch.float32:
        return aten._log_softmax(input, dim, True)
    return aten._log_softmax(input if dtype is None else input.to(dtype), dim, False)


def _rms_norm(
    input: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """Run one kernel (layer_norm.cpp: rms_norm), which a build without CUDA decomposes, backward too."""
    return _RmsNorm.apply(input, normalized_shape, weight, eps)


class _RmsNorm(torch.autograd.Function):
    """Autograd's formula of CUDA's kernel (derivatives.yaml: _fused_rms_norm)."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, shape: list[int], weight: torch.Tensor | None, eps: Any) -> torch.Tensor:
        with below_autograd():
            made, rstd = aten._fused_rms_norm(input, shape, weight, eps)
        ctx.save_for_backward(input, weight, rstd)
        ctx.shape = shape
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        input, weight, rstd = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        found = aten._fused_rms_norm_backward(grad, input, ctx.shape, rstd, weight, mask)
        return found[0], None, found[1], None


def _to(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """Convert; torch's own kernel needs a current cuda device, which a CPU build lacks (TensorConversions.cpp)."""
    home = self.device
    if device is not None and (device.type != "meta" or META_ASKED.depth):
        home = CUDA if device.type == "cuda" else device
    elif device is not None and is_real_host(self):  # C++ refers to the device of a virtual tensor
        loaded = scripted.arrived(self)
        if loaded is not None:
            return loaded
        home = CUDA
    if self.device.type == "meta" != home.type:
        raise NotImplementedError(NO_DATA)
    form = torch.preserve_format if memory_format is None else memory_format
    same = home == self.device and dtype in (None, self.dtype) and layout in (None, self.layout) and not copy
    if same and form in (torch.preserve_format, layout_of(self)):
        return self
    return aten._to_copy(
        self, dtype=dtype, layout=layout, device=home, non_blocking=non_blocking, memory_format=memory_format
    )


def _to_device(
    self: torch.Tensor,
    device: torch.device,
    dtype: torch.dtype,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    return _to(self, dtype=dtype, device=device, non_blocking=non_blocking, copy=copy, memory_format=memory_format)


def _to_other(
    self: torch.Tensor,
    other: torch.Tensor,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    return _to_device(self, other.device, other.dtype, non_blocking, copy, memory_format)


def _whole(op: Any) -> Callable[..., Any]:
    """Make an op that stays whole: the CPU build decomposes it for cuda tensors, as it has no CUDA kernel of it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with below_autograd():
            return op(*args, **kwargs)

    return run


WHOLE: dict[Any, Callable[..., Any]] = {
    op: _whole(op) for op in (aten.silu_backward.default, aten.mish_backward.default)
}

MOVES: dict[Any, Callable[..., Any]] = {
    aten.to.dtype_layout: _to,
    aten.to.device: _to_device,
    aten.to.other: _to_other,
}
"""Kernels that are replaced for tensors of the host too."""

ROUTES: dict[Any, Callable[..., Any]] = {
    **MOVES,
    aten.batch_norm.default: _batch_norm,
    aten.dropout.default: _dropout,
    aten.linear.default: linear,
    aten.softmax.int: _softmax,
    aten.log_softmax.int: _log_softmax,
    aten.rms_norm.default: _rms_norm,
    aten.scaled_dot_product_attention.default: attention.attend,
    **recurrent.ROUTES,
    **ctc.ROUTES,
}


OF_WRAPPERS = (
    aten.dropout.default,
    aten.softmax.int,
    aten.log_softmax.int,
    aten.rms_norm.default,
    aten.scaled_dot_product_attention.default,
)
"""Kernels that differ on cuda for tensors that wrap others too."""


def _of_wrappers(op: Any) -> Callable[..., Any]:
    """Make an op for wrappers, which are on meta for C++: Note: [Wrappers] in wrappers.py."""

    def run(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kernel = ROUTES[op] if home_of(first) == CUDA else op.decompose
        return kernel(first, *args, **kwargs)

    return run


def changes(settings: ModelledDevice) -> list[Change]:
    """Return the patches of Python."""
    found: list[Change] = [(torch, "clear_autocast_cache", casting.clear_cache)]
    return found if settings.ram else [*found, *attention.changes()]


@contextmanager
def installed(mode: VirtualMode) -> Iterator[None]:
    """Install the kernels."""
    casting.KIND = "cpu" if mode.settings.ram else "cuda"
    overrides = OpOverrides()
    try:
        for op, key, kernel in ram_ops.routes() if mode.settings.ram else _of_cuda(mode):
            overrides.put(op, key, kernel)
        yield
    finally:
        overrides.close()
        casting.forget()


def _of_cuda(mode: VirtualMode) -> Iterator[ram_ops.Route]:
    """Yield the kernels that are replaced while a GPU is the device."""
    attention.CAPABILITY = mode.settings.facts.compute_capability
    have_dtensor_draw(type(mode), collectives.drawn)
    for op, route in (ROUTES | WHOLE).items():
        yield op, "AutogradCUDA", route
    for op, route in MOVES.items():
        for key in ("AutogradCPU", "AutogradMeta", "AutogradNestedTensor"):
            yield op, key, route
    for op in OF_WRAPPERS:
        yield op, "AutogradMeta", _of_wrappers(op)
    yield aten._local_scalar_dense.default, "CUDA", mode.item
    yield aten.record_stream.default, "CUDA", _used_on  # FSDP calls it past all modes
    for op, kernel in casting.kernels():
        yield op, "AutocastCUDA", kernel


def _used_on(_tensor: torch.Tensor, _stream: Any) -> None:
    """Run `record_stream`: work of other streams is over at once, so nothing waits."""


def calibrate(mode: VirtualMode) -> None:
    """Learn how many references a gradient has while the engine adds to it, if only the engine holds it."""
    events, ops = len(mode.ledger.events), len(mode.ledger.ops)
    storages, peak = len(mode.ledger.storages), mode.ledger.peak_bytes
    remarks = dict(mode.ledger.remarks)
    begins, mode.ledger.begins = mode.ledger.begins, None
    seen: list[int] = []

    def watch(uses: int) -> None:
        seen.append(uses)

    mode.watch_adds = watch
    with torch.enable_grad():
        leaf = torch.nn.Parameter(torch.empty(4, device=CPU if mode.settings.ram else CUDA))
        middle = leaf * 2.0
        (middle * 3.0 + middle * 5.0).sum().backward()
    mode.watch_adds = None
    mode.sole_uses = seen[0] if seen else 0
    del leaf, middle
    del mode.ledger.events[events:], mode.ledger.ops[ops:], mode.ledger.storages[storages:]
    mode.ledger.peak_bytes, mode.ledger.remarks, mode.ledger.begins = peak, remarks, begins
    mode.forget_nodes()
