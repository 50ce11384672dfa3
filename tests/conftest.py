"""What all tests share: tests marked `gpu` say what they miss where there is no CUDA device."""

from __future__ import annotations

import importlib.util

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` without a device. Asks torch only when such a test was collected."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or _has_cuda():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no CUDA device: torch.cuda.is_available() is False"))


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
