"""Products: the rates of a machine that products and streams reach; hardware/reach.py has the shares.

A product of matrices is cut into tiles, one for each multiprocessor at a time. Multiprocessors that are idle in the
last wave are lost (NVIDIA, "Matrix Multiplication Background User's Guide": tile and wave quantization).
"""

from __future__ import annotations

from dataclasses import dataclass

from elbowroom.hardware.reach import STREAM_SHARE, share_of
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

TILES = ((128, 128, 1.0), (64, 64, 0.75))
"""Rows and columns of a tile, and its efficiency relative to the largest: a smaller one reads its inputs more often."""

INNER_PER_SPLIT = 512
"""Least length of the pieces in which a product with few tiles and a long inner dimension is split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """`batch` products of (rows x inner) by (inner x columns)."""

    batch: int
    rows: int
    columns: int
    inner: int


def rate_of(dtype: str, machine: Machine) -> int:
    """Return the dense peak FLOPs per second for a type; if it is not known, that of the next wider type."""
    rates = {rate.dtype: rate.flops_per_s for rate in machine.rates}
    wider = {"bfloat16": "float16" if machine.compute_capability >= 80 else "float32", "float16": "float32"}
    name = dtype if dtype in ITEM_BYTES else "float32"
    while name not in rates and name != "float32":
        name = wider.get(name, "float32")
    return max(1, rates.get(name, machine.flops_per_s))


def filled(product: MatrixProduct | None, multiprocessors: int) -> float:
    """Return how well a product's tiles fill the multiprocessors: 1 is all of them, all the time."""
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
    """Return the time of `work` FLOPs in one product."""
    if not machine.flops_per_s:
        return 0
    rate = rate_of(dtype, machine) * share_of(dtype) * filled(product, machine.multiprocessors)
    return int(work * 10**9 / rate)


def bandwidth_ns(size_bytes: int, machine: Machine) -> int:
    """Return the time to stream a number of bytes."""
    if not machine.memory_bytes_per_s:
        return 0
    return int(size_bytes * 10**9 / (machine.memory_bytes_per_s * STREAM_SHARE))
