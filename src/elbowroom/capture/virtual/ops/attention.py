"""Scaled dot product attention as CUDA chooses it: cuDNN, flash, memory-efficient or the plain products.

The rules follow sdp_utils.cpp of torch (`select_sdp_backend`): the first backend of the priority order that takes the
arguments. cuDNN is assumed to be the one that comes with torch, and newer than 9.15.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.backends import cuda as switches

from elbowroom.capture.virtual.wrappers import is_wrapper
from elbowroom.torch_compat.subclasses import jagged_attention

aten: Any = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
CAPABILITY = 90
"""Compute capability of the device that is on."""


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, with what each backend saves."""
    chosen = choose(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    mask = _as_bias(attn_mask, query)
    if chosen == "cudnn":
        saves = _wants_grad(query, key, value)
        return first(
            aten._scaled_dot_product_cudnn_attention(
                query, key, value, mask, saves, dropout_p, is_causal, False, scale=scale
            )
        )
    if chosen == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if chosen == "efficient":
        saves = _wants_grad(query, key, value) or (mask is not None and mask.requires_grad)
        bias = None if mask is None else _aligned(mask, query, key)
        return first(
            aten._scaled_dot_product_efficient_attention(
                query, key, value, bias, saves, dropout_p, is_causal, scale=scale
            )
        )
    if is_wrapper(query):
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        return aten.scaled_dot_product_attention.default.decompose(*given, scale=scale, enable_gqa=enable_gqa)
    return _plain(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)


def first(results: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the first result; the others are freed in their order, as C++ drops a tuple."""
    kept = list(results)
    del results
    for index in range(1, len(kept)):
        kept[index] = kept[0]
    return kept[0]


def _plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> torch.Tensor:
    """Compute two products and a softmax, in float (attention.cpp: _scaled_dot_product_attention_math).

    C++'s own kernel would add the mask out of place, as for tensors of a subclass. It holds the query in float up to
    its end. It also returns the weights, in the dtype of the query.
    """
    dtype = query.dtype
    if dtype in HALVES:
        query, key, value = query.float(), key.float(), value.float()
        mask = None if mask is None else mask.float()
    unscaled = query
    factor = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    query = unscaled * factor
    if causal:
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = _as_bias(allowed, query)
        del allowed
    if grouped:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    weights = torch.matmul(query, key.transpose(-2, -1) * factor)
    if mask is not None:
        weights.add_(mask)
    weights = aten._safe_softmax(weights, -1)
    if dropout > 0:
        weights = torch.dropout(weights, dropout, True)
    returned = weights.to(dtype)
    made = torch.matmul(weights, value).to(dtype)
    del weights, value, key, query, mask, unscaled
    del returned
    return made


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    grouped: bool,
) -> str:
    """Name of the backend that CUDA takes: "cudnn", "flash", "efficient" or "math"."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return "math"
    order = ["flash", "efficient"]
    if CAPABILITY in (90, 100, 103):
        order.insert(0, "cudnn")
    takes = {"cudnn": _cudnn_takes, "flash": _flash_takes, "efficient": _efficient_takes}
    for name in order:
        if takes[name](query, key, value, mask, dropout, causal, grouped):
            return name
    return "math"


def changes() -> list[tuple[Any, str, Any]]:
    """Return the patches of torch.backends.cuda, which scripts and jagged tensors ask whether a kernel takes tensors.

    C++ answers no in a build for the CPU.
    """
    takes = {"flash": _flash_takes, "efficient": _efficient_takes, "cudnn": _cudnn_takes}

    def asked(name: str) -> Callable[..., bool]:
        def can_use(params: Any, debug: bool = False) -> bool:
            given = (params.query, params.key, params.value, params.attn_mask, params.dropout)
            return takes[name](*given, params.is_causal, params.enable_gqa)

        return can_use

    found = {f"can_use_{name}_attention": asked(name) for name in takes}
    return [(place, name, value) for name, value in found.items() for place in (switches, jagged_attention())]


def _flash_takes(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, grouped: bool) -> bool:
    size = q.shape[-1]
    if not switches.flash_sdp_enabled() or not 80 <= CAPABILITY <= 121 or q.dtype not in HALVES:
        return False
    if mask is not None or not q.dtype == k.dtype == v.dtype or not _heads_match(q, k, v, grouped):
        return False
    if not size == k.shape[-1] == v.shape[-1] or size > 256 or not _last_is_dense(q, k, v):
        return False
    if causal and q.shape[-2] != k.shape[-2]:
        return False
    small = size <= 192 or (dropout == 0 and size > 224)
    return small or not (86 <= CAPABILITY <= 89 or CAPABILITY >= 120) or not _wants_grad(q, k, v)


def _efficient_takes(q: Any, k: Any, v: Any, mask: Any, _dropout: float, _causal: bool, _grouped: bool) -> bool:
    if not switches.mem_efficient_sdp_enabled() or not 50 <= CAPABILITY <= 121:
        return False
    if q.dtype not in (torch.float32, *HALVES) or (q.dtype is torch.bfloat16 and CAPABILITY < 80):
        return False
    if not q.dtype == k.dtype == v.dtype or not _heads_match(q, k, v, False):
        return False
    alignment = _alignment(q.dtype)
    sizes = (q.shape[-1], v.shape[-1])
    if q.shape[-1] != k.shape[-1] or any(size % alignment for size in sizes):
        return False
    return _last_is_dense(q, k, v, mask)


def _cudnn_takes(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, grouped: bool) -> bool:
    if not switches.cudnn_sdp_enabled() or q.dtype not in HALVES or not q.dtype == k.dtype == v.dtype:
        return False
    size, size_v = q.shape[-1], v.shape[-1]
    limit = 192 if (size, size_v) == (192, 128) else 128
    if size > limit or size_v > limit or size % 8 or size_v % 8 or k.shape[-2] == 1:
        return False
    if dropout and q.shape[-2] == 1:
        return False
    if mask is not None and mask.requires_grad:
        return False
    if causal and (mask is not None or q.shape[-2] != k.shape[-2]):
        return False
    return _heads_match(q, k, v, grouped) and _last_is_dense(q, k, v)


def _heads_match(q: Any, k: Any, v: Any, grouped: bool) -> bool:
    if not q.shape[0] == k.shape[0] == v.shape[0] or 0 in (*q.shape, *k.shape, *v.shape):
        return False
    if grouped:
        return k.shape[1] == v.shape[1] and q.shape[1] % k.shape[1] == 0
    return q.shape[1] == k.shape[1] == v.shape[1]


def _last_is_dense(*tensors: Any) -> bool:
    return all(tensor is None or tensor.stride(-1) == 1 for tensor in tensors)


def _alignment(dtype: torch.dtype) -> int:
    """Return the number of which memory-efficient kernels need the head's size to be a multiple."""
    half = dtype in HALVES
    if CAPABILITY >= 80:
        return max(4, 128 // (16 if half else 32))
    return 128 // 16 if half and CAPABILITY >= 70 else 1


def _wants_grad(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _as_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """Turn a mask of truth values into one of 0 and minus infinity (attention.cpp: convert_boolean_attn_mask)."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=query.device))


def _aligned(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Pad a mask: rows start at multiples of 8 elements, in full size (attention.cpp: pad_bias, preprocess_mask)."""
    spare, width = -mask.shape[-1] % 8, mask.shape[-1]
    if spare:
        mask = torch.nn.functional.pad(mask, [0, spare])[..., :width]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, causal: bool, scale: float | None
) -> torch.Tensor:
    """Run flash attention on heads padded to a multiple of 8 (attention.cpp: pad_last_dim)."""
    size = query.shape[-1]
    spare = -size % 8
    if spare:
        query, key, value = (torch.nn.functional.pad(each, [0, spare]) for each in (query, key, value))
        scale = scale or size**-0.5
    made = first(aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale))
    return made[..., :size] if spare else made
