"""What tests of the command line share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _wide_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No width from outside: pytest's workers set one."""
    monkeypatch.delenv("COLUMNS", raising=False)
