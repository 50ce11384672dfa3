"""Reach: what share of its peak rates a GPU reaches, and how fast ops are launched; every figure has its source."""

from __future__ import annotations

LAUNCH_NS = 4_200
"""Time from one op that Python issues to the next, measured on an H100 NVL in a study of a trainer's step; a kernel
alone takes 1.28 us there."""

SHARES = {
    # The best products of cuBLAS over the dense peak: A100 SXM 85.9 %, A100 PCIe 82.2 %, GH200 83.0 %, H100 SXM 80.1 %
    # (ml-engineering, "Maximum Achievable Matmul FLOPS"); the shapes of a model reach less than the best of a search.
    "float16": 0.70,
    "bfloat16": 0.70,
    # Cubes of 8192 on an H100 NVL: 62.6 % (measured by the same study as LAUNCH_NS).
    "tf32": 0.63,
    # Set by whole steps of GPT-2 and ResNet-50 on an A100 and a V100, which allow no less (docs/step-times.md). The
    # same study has 75.4 %, under a power limit.
    "float32": 0.90,
    "float64": 0.90,
}
"""Share of the dense peak of a type that a large product reaches."""

STREAM_SHARE = 0.90
"""Share of the memory's bandwidth: on an H100 NVL a copy of 4 GiB reaches 90.6 %, read-read-write of 1 GiB 91.4 % (same
study)."""


def share_of(dtype: str) -> float:
    """Return the share of the dense peak that a large product reaches."""
    return SHARES.get(dtype, SHARES["float32"])
