"""torchvision beside torch for the CPU: its wheel on PyPI is built for CUDA, and its compiled ops do not load there."""

from __future__ import annotations

import importlib

import torch

_kept: list[object] = []
"""Libraries of ops, which take their ops along when they die."""


def define_torchvision_ops() -> None:
    """Declare the ops without which torchvision does not import; nothing that a test runs calls them."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:  # operator torchvision::nms does not exist
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
