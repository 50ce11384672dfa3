"""A case of the rig's corpus on the virtual device: its peaks, its events and its verdicts."""

from __future__ import annotations

import sys
from bisect import bisect_left
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy.corpus import Line, read_history
from benchmarks.accuracy.figures import digest, first_difference, numbered
from elbowroom.allocator import Replay, replay
from elbowroom.capture.virtual import ConvolutionCall, CudnnModel, PassWorkspace, VirtualDevice
from elbowroom.machine import Machine, Tier

Answer = dict[str, Any]


def run(
    *, spec: dict[str, Any], data: str, sha256: str | None, history: str | None, capacities: list[dict[str, Any]]
) -> Answer:
    """Train a case on the virtual device and replay its events.

    Args:
        spec: the case.
        data: folder of the corpus.
        sha256: digest of the rig's events of steps 2 and later.
        history: file with the rig's events; None where there is none.
        capacities: `id` and `env` of runs with less room.
    """
    sys.path.append(data)
    device, marks = trained(spec)
    ledger = device.ledger
    events = ledger.events[marks[1] : marks[-1]]
    lines = numbered([("a" if size > 0 else "f", number, abs(size)) for _, number, size in events])
    ops = [f"{ledger.ops[op].name} [{ledger.ops[op].phase}] {ledger.ops[op].module}" for op, _, _ in events]
    with_room = replayed(device, spec["env"])
    places = replayed_marks(device, marks)
    return {
        "simulated": peaks(with_room, places),
        "equal": digest(lines) == sha256 if sha256 else None,
        "events": len(lines),
        "alloc_bytes": sum(size for what, _, size in lines if what == "a"),
        "difference": _difference(history, lines, ops),
        "compared": forms(device, marks[1]),
        "capability": device.settings.facts.compute_capability,
        "remarks": {f"{kind}: {name}": count for (kind, name), count in ledger.remarks.items()},
        "verdicts": [{"id": each["id"], **verdict(replayed(device, each["env"]), places)} for each in capacities],
    }


def machine_of(env: dict[str, str]) -> Machine:
    """The GPU that the rig stood for."""
    return Machine(
        name="rig",
        tiers=(Tier(name="device", capacity_bytes=int(env["FAKECUDA_CAPACITY"])),),
        links=(),
        allocator="",
        compute_capability=int(env["FAKECUDA_CC"]),
        multiprocessors=int(env["FAKECUDA_SMS"]),
    )


def cudnn_of(env: dict[str, str]) -> CudnnModel:
    """What the rig's cuDNN asked for: so many bytes a convolution, or so many times its largest tensor ("x1.0")."""
    text = env.get("FAKECUDNN_WORKSPACE", "0")
    if not text.startswith("x"):
        size_bytes = int(text)
        return CudnnModel(workspace=lambda _: PassWorkspace.exactly(size_bytes))
    return CudnnModel(workspace=lambda call: PassWorkspace.exactly(int(float(text[1:]) * _largest_bytes(call))))


def _largest_bytes(call: ConvolutionCall) -> int:
    shapes = (call.input_shape, call.weight_shape, call.output_shape)
    return max(torch.Size(shape).numel() for shape in shapes) * call.item_bytes


def trained(spec: dict[str, Any]) -> tuple[VirtualDevice, list[int]]:
    """The device after all steps, and the number of events before each step and at the end."""
    from tests.fakecuda.jobs import Job

    torch.set_num_threads(1)
    env = spec["env"]
    marks: list[int] = []
    # Corpus: the rig's threads shared one cuBLAS handle when it was recorded (tests/data/rig/README.md).
    with VirtualDevice(machine_of(env), None, cudnn=cudnn_of(env), cublas_handles=1) as device:
        job = Job(spec)
        for _ in range(spec.get("steps", 3)):
            marks.append(len(device.ledger.events))
            job.step()
        marks.append(len(device.ledger.events))
    return device, marks


def replayed(device: VirtualDevice, env: dict[str, str]) -> Replay:
    """The device's events in the allocator, with the settings and the room of `env`."""
    events: list[Any] = []
    emptied = set(device.ledger.empties)
    for number, (_, key, size) in enumerate(device.ledger.events):
        events += [("empty_cache",)] if number in emptied else []
        stream = device.ledger.storages[key].stream
        events.append(("alloc", key, size, stream) if size > 0 else ("free", key))
    return replay(events, env.get("PYTORCH_CUDA_ALLOC_CONF", ""), int(env["FAKECUDA_CAPACITY"]))


def replayed_marks(device: VirtualDevice, marks: list[int]) -> list[int]:
    """The same places among the events that are replayed, of which emptying the cache is one."""
    return [mark + bisect_left(device.ledger.empties, mark) for mark in marks]


def forms(device: VirtualDevice, first_event: int) -> list[str]:
    """What ran on the device from an event on: names and dtypes, as `Compared` has them."""
    first_op = device.ledger.events[first_event][0] if first_event < len(device.ledger.events) else 0
    return sorted({line.form for line in device.ledger.ops[max(first_op, 0) :]} - {""})


def peaks(done: Replay, marks: list[int]) -> Answer:
    """Highest bytes from the start of the first step to the end of the last, by level."""
    curves = {"allocated": done.allocated_bytes, "reserved": done.reserved_bytes, "requested": done.requested_bytes}
    return {level: int(curve[max(0, marks[0] - 1) : marks[-1]].max()) for level, curve in curves.items()}


def verdict(done: Replay, marks: list[int]) -> Answer:
    """Whether an allocation fails, and in which step; -1 before the first."""
    failed = done.out_of_memory[: marks[-1]].nonzero()[0]
    if not len(failed):
        return {"simulated": False, "step": None}
    return {"simulated": True, "step": sum(mark <= int(failed[0]) for mark in marks) or -1}


def _difference(history: str | None, lines: list[Line], ops: list[str]) -> Answer | None:
    return first_difference(numbered(read_history(Path(history))), lines, ops) if history else None
