"""Rates of a machine as products and streams reach them: every share with where it is from.

A product of matrices is cut into tiles, one for each multiprocessor at a time; what the last wave leaves idle is lost
(NVIDIA, "Matrix Multiplication Background User's Guide": tile and wave quantization).
"""

from __future__ import annotations

from dataclasses import dataclass

from elbowroom.machine import Machine

ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "complex64": 8,
    "float32": 4,
    "tf32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "bool": 1,
    "uint8": 1,
    "int8": 1,
}

SHARES = {
    # The best products of cuBLAS over the dense peak: A100 SXM 85.9 %, A100 PCIe 82.2 %, GH200 83.0 %, H100 SXM 80.1 %
    # (ml-engineering, "Maximum Achievable Matmul FLOPS"); the shapes of a model reach less than the best of a search.
    "float16": 0.70,
    "bfloat16": 0.70,
    # Cubes of 8192 on an H100 NVL: 62.6 % (measured by the same study as LAUNCH_NS in costs.py).
    "tf32": 0.63,
    # Whole steps of GPT-2 and ResNet-50 on an A100 and a V100 leave no less (docs/step-times.md): set by these. The
    # same study has 75.4 %, under a power limit.
    "float32": 0.90,
    "float64": 0.90,
}
"""Of the dense peak of a type, what a large product reaches."""

STREAM_SHARE = 0.90
"""Of the memory's bandwidth: a copy of 4 GiB 90.6 %, read-read-write of 1 GiB 91.4 % on an H100 NVL (same study)."""

TILES = ((128, 128, 1.0), (64, 64, 0.75))
"""Rows and columns of a tile, and its efficiency beside the largest: a smaller one reads its inputs more often."""

INNER_PER_SPLIT = 512
"""A product of few tiles and a long inner dimension is split along it, in pieces of at least so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """`batch` products of (rows x inner) by (inner x columns)."""

    batch: int
    rows: int
    columns: int
    inner: int


def rate_of(dtype: str, machine: Machine) -> int:
    """Dense peak FLOPs per second for a type; where the machine does not know it, that of the next wider one."""
    rates = {rate.dtype: rate.flops_per_s for rate in machine.rates}
    wider = {"bfloat16": "float16" if machine.compute_capability >= 80 else "float32", "float16": "float32"}
    name = dtype if dtype in ITEM_BYTES else "float32"
    while name not in rates and name != "float32":
        name = wider.get(name, "float32")
    return max(1, rates.get(name, machine.flops_per_s))


def share_of(dtype: str) -> float:
    """Of the dense peak, what a large product reaches."""
    return SHARES.get(dtype, SHARES["float32"])


def filled(product: MatrixProduct | None, multiprocessors: int) -> float:
    """How well a product's tiles fill the multiprocessors: 1 is all of them, all the time."""
    if product is None or not multiprocessors or not product.rows * product.columns * product.batch:
        return 1.0
    best = 0.0
    for rows, columns, efficiency in TILES:
        down, across = -(-product.rows // rows), -(-product.columns // columns)
        tiles = product.batch * down * across
        splits = max(1, min(multiprocessors // tiles, product.inner // INNER_PER_SPLIT))
        waves = -(-tiles * splits // multiprocessors)
        useful = product.rows * product.columns / (down * rows * across * columns)
        best = max(best, efficiency * useful * tiles * splits / (waves * multiprocessors))
    return best


def arithmetic_ns(work: int, product: MatrixProduct | None, dtype: str, machine: Machine) -> int:
    """Time of `work` FLOPs in one product."""
    if not machine.flops_per_s:
        return 0
    rate = rate_of(dtype, machine) * share_of(dtype) * filled(product, machine.multiprocessors)
    return int(work * 10**9 / rate)


def bandwidth_ns(size_bytes: int, machine: Machine) -> int:
    """Time to stream so many bytes."""
    if not machine.memory_bytes_per_s:
        return 0
    return int(size_bytes * 10**9 / (machine.memory_bytes_per_s * STREAM_SHARE))
