"""Streams that are held up on purpose, and which tests need kernels that do something."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elbowroom.engine.tiers.streams import CudaStreams

SLEEP_CYCLES = 2_000_000
"""About a millisecond: longer than any copy or kernel of these tests."""


def on_the_rig() -> bool:
    """Whether the CUDA device is a stand-in, where kernels do nothing."""
    return torch.cuda.is_available() and "fake" in torch.cuda.get_device_name().lower()


needs_kernels = pytest.mark.skipif(
    on_the_rig(), reason="the CUDA device is the rig's stand-in: kernels do nothing there, so numbers mean nothing"
)
needs_graphs = pytest.mark.skipif(on_the_rig(), reason="the CUDA device is the rig's stand-in, without CUDA graphs")


def sleep() -> None:
    """Hold up the current stream."""
    torch.cuda._sleep(SLEEP_CYCLES)  # pyright: ignore[reportAttributeAccessIssue]


def slow(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """Hold up each copy of one of the two streams of copies, "out" or "back", before it begins."""
    copy, copy_behind = CudaStreams.copy, CudaStreams.copy_behind

    def hold_up(streams: CudaStreams, stream: Any) -> None:
        if stream == getattr(streams, which):
            with torch.cuda.stream(stream):
                sleep()

    def slowly(self: CudaStreams, target: int, source: int, size_bytes: int, stream: Any) -> None:
        hold_up(self, stream)
        copy(self, target, source, size_bytes, stream)

    def slowly_behind(self: CudaStreams, other: Any, target: int, source: int, size_bytes: int, stream: Any) -> Any:
        hold_up(self, stream)
        return copy_behind(self, other, target, source, size_bytes, stream)

    monkeypatch.setattr(CudaStreams, "copy", slowly)
    monkeypatch.setattr(CudaStreams, "copy_behind", slowly_behind)
