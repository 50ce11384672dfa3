"""As tests/torch/conftest.py."""

import pytest

from tests.torch.conftest import plans_are_waited_for, quick_recordings

__all__ = ["plans_are_waited_for", "quick_recordings"]


def pytest_configure(config: pytest.Config) -> None:
    """Libraries warn of their own matters."""
    config.addinivalue_line("filterwarnings", "ignore")
