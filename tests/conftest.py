"""What all tests share: settings of the property tests, and a reason where a test marked `gpu` is skipped."""

from __future__ import annotations

import importlib.util
import os

import pytest
from hypothesis import HealthCheck, settings

# No deadline per example and no complaint about slow drawing: both judge how busy the machine is. The same examples are
# drawn every time, so that a change is judged by what it changes; FUZZ=1 draws others.
settings.register_profile(
    "elbowroom",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("FUZZ"),
)
settings.load_profile("elbowroom")

os.environ["ELBOWROOM_KEEPS_PLANS"] = "0"  # no test follows a plan of another one, or of the user


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
