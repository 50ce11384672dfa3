"""What all tests on a GPU begin with."""

from __future__ import annotations

import os

import pytest

from elbowroom.run import background_planning

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products give the same bits each time
PATIENCE_S = 600.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take milliseconds: few of them would follow a plan that is made beside them."""
    monkeypatch.setattr(background_planning, "PATIENCE_S", PATIENCE_S)
