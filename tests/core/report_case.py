"""A small training step with a plan and both timelines: what the report tests show."""

from __future__ import annotations

from dataclasses import replace

from elbowroom.machine import Link, Machine, Tier
from elbowroom.plan import Plan, Swap
from elbowroom.simulate.simulate import simulate
from elbowroom.timeline import Timeline
from elbowroom.trace import Category, Event, Op, Phase, Save, Step, Storage, Trace

MIB = 2**20
DISK = Machine(
    name="here",
    tiers=(
        Tier(name="device", capacity_bytes=2**34),
        Tier(name="disk", capacity_bytes=2**40),
    ),
    links=(Link(upper="device", lower="disk", out_bytes_per_s=2**30, back_bytes_per_s=2**31, latency_ns=50_000),),
)


def chain(layers: int = 6, size_bytes: int = 32 * MIB, name: str = "net") -> Trace:
    """A chain of layers: each saves its output; backward reads them in reverse and makes one gradient at a time."""
    sizes: list[tuple[int, Category]] = [(4 * MIB, "parameter")]
    ops: list[Op] = []
    events = [Event(-1, 0, 4 * MIB)]
    saves: list[Save] = []
    for layer in range(layers):
        made = len(sizes)
        sizes.append((size_bytes, "activation"))
        events.append(Event(layer, made, size_bytes))
        reads = (made - 1,) if layer else (0,)
        ops.append(_op("aten.convolution.default", f"{name}.{layer}", "forward", reads, (made,)))
        read = 2 * layers - 1 - layer
        saves.append(Save(storage=made, saved_at=layer + 1, idle_from=min(layer + 2, read), read_at=(read,)))
    for layer in reversed(range(layers)):
        op, made = len(ops), len(sizes)
        sizes.append((size_bytes, "temporary"))
        events.append(Event(op, made, size_bytes))
        ops.append(_op("aten.convolution_backward.default", f"{name}.{layer}", "backward", (layer + 1,), (made,)))
        events.append(Event(op, layer + 1, -size_bytes))
        if layer < layers - 1:
            events.append(Event(op, made - 1, -size_bytes))
    ops.append(_op("aten._foreach_add_.Scalar", "", "optimizer", (0,), (0,)))
    events.append(Event(len(ops) - 1, len(sizes) - 1, -size_bytes))
    return Trace(
        device="cpu",
        torch_version="2.13.0",
        ops=tuple(ops),
        storages=tuple(Storage(size_bytes=size, category=what, dtype="float32") for size, what in sizes),
        events=tuple(events),
        saves=tuple(saves),
        steps=(Step(0, len(ops)),),
    )


def _op(name: str, module: str, phase: Phase, reads: tuple[int, ...], writes: tuple[int, ...]) -> Op:
    duration_ns = 60_000_000 if phase == "backward" else 40_000_000
    return Op(name=name, module=module, phase=phase, reads=reads, writes=writes, duration_ns=duration_ns)


def swapping(trace: Trace, layers: int = 6, budget_bytes: int = 140 * MIB) -> Plan:
    """Swap all but the last two layers' outputs, each back one tick before it is read."""
    swaps = [
        Swap(storage=save.storage, tier="disk", out_after_op=save.saved_at - 1, back_before_op=save.read_at[0] - 1)
        for save in trace.saves[: layers - 2]
    ]
    return Plan(trace_id=trace.id, planner="swap_greedy", budget_bytes=budget_bytes, swaps=tuple(swaps))


def measured(trace: Trace, plan: Plan) -> Timeline:
    """As simulated, on a disk that is a little slower."""
    link = replace(DISK.links[0], out_bytes_per_s=700 * MIB, back_bytes_per_s=1400 * MIB)
    return replace(simulate(trace, replace(DISK, links=(link,)), plan), source="measured")
