"""Casting: autocast("cuda"), or autocast("cpu") where RAM is the device, on virtual tensors.

torch's own autocast kernels skip tensors that are not on that device for C++. The kernels here do the same as those.
They have the same lists of ops (autocast_mode.h), and cast arguments from the last to the first. 16-bit copies of
parameters are kept until the outermost context ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from elbowroom.capture.virtual.ops.recurrent import flat_buffer
from elbowroom.torch_compat.core import autocast_ops_of_cpu, is_view, without_autocast

aten: Any = torch.ops.aten
LOWER = (
    "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution prelu "
    "addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot "
    "_thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    "scaled_dot_product_attention conv1d.padding conv2d.padding conv3d.padding"
)
FULL = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar "
    "pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim "
    "nuclear_norm "
    "nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "soft_margin_loss "
    "triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp "
    "upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d "
    "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d "
    "upsample_bicubic2d _upsample_bicubic2d_aa upsample_nearest2d.vec upsample_nearest3d.vec upsample_bilinear2d.vec "
    "upsample_trilinear3d.vec upsample_nearest1d.vec upsample_linear1d.vec upsample_bicubic2d.vec"
)
FULL_DTYPE = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm "
    "linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
HALVES = (torch.float16, torch.bfloat16)
WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
LOWER_ON_CPU = (
    "conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding bmm mm linalg_vecdot baddbmm addmm addbmm "
    "linear _convolution.deprecated matmul conv_tbc mkldnn_rnn_layer conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input prelu scaled_dot_product_attention _native_multi_head_attention _addmm_activation"
)
WIDEST_ON_CPU = "stack cat index_copy"
"""All other ops that autocast changes on the CPU are carried out in float32 (autocast_mode.cpp)."""
KIND = "cuda"
"""Type of the device that is on."""
_cache: dict[int, tuple[weakref.ref[Any], torch.Tensor]] = {}
_clear_torchs = torch.clear_autocast_cache


def kernels() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Yield the ops that autocast changes, each with its kernel."""
    yield aten._cudnn_rnn.default, _recurrent
    for names, policy in ((LOWER, _lower), (FULL, _full), (FULL_DTYPE, _full_dtype), (WIDEST, _widest)):
        for op in _ops(names):
            yield op, policy(op)


def kernels_on_cpu() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Yield the ops that autocast changes on the CPU, each with its kernel."""
    lower, widest = set(_ops(LOWER_ON_CPU)), set(_ops(WIDEST_ON_CPU))
    for op in autocast_ops_of_cpu():
        policy = _lower if op in lower else _widest if op in widest else _full
        yield op, policy(op)


def in_float32() -> Iterator[Any]:
    """Yield the ops that autocast carries out in float32."""
    yield from _ops(f"{FULL} {FULL_DTYPE}")


def _ops(names: str) -> Iterator[Any]:
    for name in names.split():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet), overload or "default", None)
        if op is not None:
            yield op


class _FlatWeights(torch.autograd.Function):
    """A recurrent network's weights in the lower precision, in one buffer (autocast's RNN.cpp)."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flat = weights[0].new_empty((sum(each.numel() for each in weights),), dtype=dtype)
        parts = flat.split([each.numel() for each in weights])
        return tuple(part.view(each.shape) for part, each in zip(parts, weights, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        made = [None if each is None else each.to(torch.float32) for each in reversed(grads)]  # the last made first
        return (None, *reversed(made))


def _recurrent(*args: Any) -> Any:
    """Cast weights, states and input to the lower precision."""
    dtype = torch.get_autocast_dtype(KIND)
    with without_autocast(KIND):
        input, weights, stride, _, hx, cx, *others = args
        if weights[0].dtype is torch.float32:
            weights = list(_FlatWeights.apply(dtype, *weights))  # pyright: ignore[reportArgumentType]
        cx, hx, input = (_to(dtype, each) for each in (cx, hx, input))
        return aten._cudnn_rnn(input, weights, stride, flat_buffer(weights), hx, cx, *others)


def clear_cache() -> None:
    """Clear the cache, as the outermost autocast context has ended."""
    _clear_torchs()
    forget()


def forget() -> None:
    """Drop the 16-bit copies."""
    while _cache:
        _cache.pop(next(iter(_cache)))


def cached() -> Mapping[int, tuple[weakref.ref[Any], torch.Tensor]]:
    """Return the 16-bit copies that are kept, each with its parameter, by the parameter's id."""
    return _cache


def keep(parameter: torch.Tensor, cast: torch.Tensor) -> None:
    """Keep the 16-bit copy of a parameter until the outermost context ends."""
    _cache[id(parameter)] = (weakref.ref(parameter), cast)


def _lower(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast(KIND):
            cast, others = _all_to(torch.get_autocast_dtype(KIND), args, kwargs)
            return op(*cast, **others)

    return kernel


def _full(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast(KIND):
            cast, others = _all_to(torch.float32, args, kwargs)
            return op(*cast, **others)

    return kernel


def _full_dtype(op: Any) -> Callable[..., Any]:
    """Have the op itself make its result in float32, unless the caller names a dtype."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast(KIND):
            given = args[0]
            halves = isinstance(given, torch.Tensor) and _is_there(given) and given.dtype in HALVES
            named = any(isinstance(each, torch.dtype) for each in (*args[1:], *kwargs.values()))
            if halves and not named:
                if op is aten.softmax.int or op is aten.log_softmax.int:
                    return op(*args[:2], torch.float32)
                return op(*args, **{**kwargs, "dtype": torch.float32})
            return op(*args, **kwargs)

    return kernel


def _widest(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast(KIND):
            wide = any(each.dtype is torch.float32 for each in _floats(args))
            cast, others = _all_to(torch.float32 if wide else torch.get_autocast_dtype(KIND), args, kwargs)
            return op(*cast, **others)

    return kernel


def _is_there(tensor: torch.Tensor) -> bool:
    return tensor.device.type == KIND


def _floats(args: Any) -> Iterator[torch.Tensor]:
    for each in args:
        if isinstance(each, torch.Tensor):
            if _is_there(each) and each.is_floating_point():
                yield each
        elif isinstance(each, list | tuple):
            yield from _floats(each)


def _all_to(dtype: torch.dtype, args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Cast all arguments, from the last to the first, as C++ evaluates the arguments of a call."""
    cast = [_to(dtype, each) for each in reversed(args)]
    return cast[::-1], {name: _to(dtype, each) for name, each in kwargs.items()}


def _to(dtype: torch.dtype, value: Any) -> Any:
    if isinstance(value, list | tuple) and any(isinstance(each, torch.Tensor) for each in value):
        return [_to(dtype, each) for each in value]
    if not isinstance(value, torch.Tensor) or not _is_there(value) or not value.is_floating_point():
        return value
    if value.dtype is dtype or value.dtype is torch.float64:
        return value
    kept = (
        torch.is_autocast_cache_enabled()
        and dtype is torch.get_autocast_dtype(KIND)
        and value.dtype is torch.float32
        and value.requires_grad
        and value.is_leaf
        and not is_view(value)
    )
    if not kept:
        return value.to(dtype)
    known = _cache.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    made = value.to(dtype)
    keep(value, made)
    return made
