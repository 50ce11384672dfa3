"""The measured link to a CUDA device."""

from __future__ import annotations

import pytest
import torch

from elbowroom.capture.link_probe import measure_link
from elbowroom.errors import UsageError


@pytest.mark.gpu
def test_copies_over_the_link_have_rates_and_a_latency() -> None:
    rates = measure_link(size_bytes=64 * 2**20)

    # more than an eighth of a GiB per second, less than any memory of today; a small copy takes less than a second
    assert 2**27 < rates.out_bytes_per_s < 2**44
    assert 2**27 < rates.back_bytes_per_s < 2**44
    assert 0 < rates.latency_ns < 10**9


def test_a_link_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(UsageError, match=r"^link: torch sees no CUDA device; allowed is a build of torch for CUDA"):
        measure_link()
