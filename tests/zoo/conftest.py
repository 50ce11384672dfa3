"""As tests/torch/conftest.py; where there is torchvision, its ops are known to torch."""

import importlib.util

import pytest

from tests.torch.conftest import plans_are_waited_for, quick_recordings

__all__ = ["plans_are_waited_for", "quick_recordings"]


def pytest_configure(config: pytest.Config) -> None:
    """Libraries of models warn of their own matters. torchvision's wheel does not import beside torch for the CPU."""
    config.addinivalue_line("filterwarnings", "ignore")
    if importlib.util.find_spec("torchvision") is not None:
        from benchmarks.accuracy.child import define_torchvision_ops

        define_torchvision_ops()
