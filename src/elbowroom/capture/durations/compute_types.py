"""Compute types: the types in which ops compute, as torch's settings have them."""

from __future__ import annotations

import torch

TF32_BY_CUDNN = ("convolution", "convolution_backward", "_cudnn_rnn", "_cudnn_rnn_backward")
TF32_BY_CUBLAS = ("mm", "addmm", "bmm", "baddbmm")


def compute_type(name: str, dtype: str, compute_capability: int) -> str:
    """Return the type in which an op such as "aten.mm" computes: that of its first tensor, or "tf32" if allowed."""
    if dtype != "float32" or compute_capability < 80:
        return dtype
    short = name.removeprefix("aten.")
    by_cudnn = short in TF32_BY_CUDNN and torch.backends.cudnn.allow_tf32
    by_cublas = short in TF32_BY_CUBLAS and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if by_cudnn or by_cublas else dtype
