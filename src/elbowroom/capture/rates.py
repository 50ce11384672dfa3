"""Rates of links, measured by the transfers of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elbowroom.engine.entries import Happening
from elbowroom.machine import Link, Machine

LEAST_COPY_BYTES = 8 << 20
"""Least bytes of a transfer that counts for a rate."""
_KINDS = (("swap_out", "swap_back"), ("disk_write", "disk_read"))


def with_rates_of(machine: Machine, transfers: Sequence[Happening]) -> Machine:
    """Return the machine with the rates of these transfers in place of its own."""
    links = [_as_measured(link, transfers, *which) for link, which in zip(machine.links, _KINDS, strict=False)]
    return replace(machine, links=tuple(links))


def _as_measured(link: Link, transfers: Sequence[Happening], out: str, back: str) -> Link:
    return replace(
        link,
        out_bytes_per_s=_rate([t for t in transfers if t.kind == out]) or link.out_bytes_per_s,
        back_bytes_per_s=_rate([t for t in transfers if t.kind == back]) or link.back_bytes_per_s,
    )


def _rate(transfers: Sequence[Happening]) -> int:
    """Return bytes per second over the time in which a transfer was in flight; 0 if there are too few transfers."""
    moved_bytes = sum(transfer.size_bytes for transfer in transfers)
    if moved_bytes < LEAST_COPY_BYTES:
        return 0
    busy_ns, until_ns = 0, 0
    for transfer in sorted(transfers, key=lambda each: each.start_ns):
        busy_ns += max(0, transfer.end_ns - max(transfer.start_ns, until_ns))
        until_ns = max(until_ns, transfer.end_ns)
    return max(1, moved_bytes * 10**9 // max(busy_ns, 1))
