"""Exchange memory: NCCL's own memory on a GPU, as an interval for each group of ranks that exchanges tensors.

Computes: least and most bytes by what people report of NVLink computers, and by NCCL's buffers where there is PCIe.
Reference: NVIDIA/nccl issues 964 (544 to 688 MB a communicator on A100), 864 (1.6 GB for one, 6 GB for three or more)
and 1685 (1.06 GB before, 4.34 GB after the first all-to-all on 8 H100; buffers of 10 MiB). A channel of a ring has one
such buffer; NCCL takes 2 channels or more.
Ignores: communicators that share their memory by ncclCommSplit, NCCL_BUFFSIZE and NCCL_MAX_NCHANNELS.
Cost: linear in the collectives of a trace.
"""

from __future__ import annotations

from typing import NamedTuple

from elbowroom.hardware.interconnects import Interconnect
from elbowroom.step.exchange_times import kind_of
from elbowroom.trace import Trace

DIRECT = ("all-to-all", "send", "receive")
_MB = 10**6
_BUFFER_BYTES = 10 * 2**20
_LEAST_CHANNELS, _MOST_CHANNELS = 2, 32
_NVLINK = (544 * _MB, 2000 * _MB)
"""Least: issue 964. Most: the 6 GB of issue 864 for three communicators, each."""
_OF_DIRECT_BYTES = 3280 * _MB
"""What the first all-to-all adds in issue 1685: 4.34 GB less 1.06 GB."""


class ExchangeMemory(NamedTuple):
    """NCCL's own memory, outside torch's allocator.

    Attributes:
        communicators: groups of two ranks or more that exchanged tensors on the GPU.
        least_bytes: the least that it may be.
        most_bytes: the most that it may be.
    """

    communicators: int
    least_bytes: int
    most_bytes: int


def exchange_memory(trace: Trace, wires: Interconnect) -> ExchangeMemory | None:
    """Return NCCL's memory for the groups that a trace uses; None if it uses none."""
    used: dict[int, bool] = {}
    for number, communicator, *_ in trace.exchanges:
        if trace.communicators[communicator].ranks > 1:
            used[communicator] = used.get(communicator, False) or kind_of(trace.ops[number].name) in DIRECT
    if not used:
        return None
    rings = (_LEAST_CHANNELS * _BUFFER_BYTES, _MOST_CHANNELS * _BUFFER_BYTES)
    least_bytes, most_bytes = _NVLINK if wires.is_nvlink else rings
    direct_bytes = _OF_DIRECT_BYTES * sum(used.values())
    return ExchangeMemory(len(used), len(used) * least_bytes, len(used) * most_bytes + direct_bytes)
