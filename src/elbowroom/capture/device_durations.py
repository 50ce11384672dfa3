"""Durations of recorded ops on a GPU.

Note: [Time on the GPU]
The profiler of torch has the time in which the host issues an op. A recorded op takes the host 100 us and more, and
many ops take the GPU a tenth of that: a ResNet-50 whose step takes 118 ms on an H200 seemed to take 335 ms. Plans then
hide copies behind time that is not there. The driver's own tracing (CUPTI) has the times of kernels. But it takes
device memory that a hard limit may not have, and cannot run while another profiler does. So durations are those of the
model that a virtual GPU has (capture/durations), with the shapes and types that were recorded. docs/step-times.md
compares its steps with measured ones.

Without the rates of the GPU, as of one that the database lacks, the host's times are all there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from elbowroom.capture.drafts import OpDraft, StorageDraft
from elbowroom.capture.durations.compute_types import compute_type
from elbowroom.capture.durations.costs import duration_ns
from elbowroom.capture.durations.op_line import OpLine
from elbowroom.machine import Machine


def device_ns(op: OpDraft, work: int, storages: Sequence[StorageDraft], machine: Machine) -> int | None:
    """Return the time of an op on the machine's GPU; None if its rates are not known. See Note: [Time on the GPU].

    Args:
        op: the op, as recorded.
        work: its FLOPs.
        storages: all storages of the recording.
        machine: has the rates.
    """
    if not (machine.rates and machine.memory_bytes_per_s):
        return None
    return duration_ns(_line_of(op, storages, machine), work, machine)


def _line_of(op: OpDraft, storages: Sequence[StorageDraft], machine: Machine) -> OpLine:
    seen, changed = op.seen, len({block.address for block in op.seen.writes})
    read_bytes = sum(block.size_bytes for block in seen.reads)
    changed_bytes = sum(block.size_bytes for block in seen.writes)
    made_bytes = sum(storages[storage].size_bytes for storage in op.writes[changed:])
    dtype = next((block.dtype for block in chain(seen.reads, seen.writes)), "")
    return OpLine(
        name=seen.name,
        module=op.module,
        phase=op.phase,
        reads=op.reads,
        writes=op.writes,
        arguments=seen.arguments,
        dtype=compute_type(seen.name, dtype, machine.compute_capability),
        moved_bytes=read_bytes + 2 * changed_bytes + made_bytes,
    )
