"""Traces and machines by hand for tests of the core: say what happens in order, get a Trace.

The sizes are plain bytes and the times plain nanoseconds, small enough for hand arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from elbowroom.machine import Link, Machine, Tier
from elbowroom.trace import Category, Event, Op, Phase, Save, Step, Storage, Trace


@dataclass
class Build:
    """Collects a trace; `position` is where the next op will be."""

    ops: list[Op] = field(default_factory=list[Op])
    storages: list[Storage] = field(default_factory=list[Storage])
    events: list[Event] = field(default_factory=list[Event])
    saves: dict[int, Save] = field(default_factory=dict[int, Save])
    steps: list[Step] = field(default_factory=list[Step])
    phase: Phase = "forward"

    @property
    def position(self) -> int:
        return len(self.ops)

    def storage(self, size: int, category: Category = "activation") -> int:
        """Allocate now: directly after the last op, or before the first."""
        self.storages.append(Storage(size_bytes=size, category=category, dtype="float32"))
        if size:
            self.events.append(Event(self.position - 1, len(self.storages) - 1, size))
        return len(self.storages) - 1

    def op(
        self,
        name: str = "aten.op",
        ns: int = 10,
        make: int | None = None,
        temporary: int = 0,
        reads: tuple[int, ...] = (),
        writes: tuple[int, ...] = (),
        category: Category = "activation",
    ) -> int:
        """Run an op that may allocate and free a temporary first, then make one storage; returns its id, else -1."""
        self.ops.append(Op(name=name, module="net", phase=self.phase, reads=reads, writes=writes, duration_ns=ns))
        if temporary:
            self.free(self.storage(temporary, "temporary"))
        made = -1 if make is None else self.storage(make, category)
        if made >= 0:
            self.ops[-1] = replace(self.ops[-1], writes=(*writes, made))
        return made

    def save(self, storage: int, idle: bool = True) -> int:
        """Autograd saves a storage here; idle from here on unless told otherwise."""
        idle_from = self.position if idle else None
        self.saves[storage] = Save(storage=storage, saved_at=self.position, idle_from=idle_from, read_at=())
        return storage

    def idle(self, storage: int) -> None:
        """From here on only autograd holds it."""
        self.saves[storage] = replace(self.saves[storage], idle_from=self.position)

    def read(self, storage: int) -> None:
        """Autograd reads it back here."""
        save = self.saves[storage]
        self.saves[storage] = replace(save, read_at=(*save.read_at, self.position))

    def free(self, storage: int) -> None:
        """Free it directly after the last op."""
        if size := self.storages[storage].size_bytes:
            self.events.append(Event(self.position - 1, storage, -size))

    def end_step(self) -> None:
        self.steps.append(Step(self.steps[-1].end_op if self.steps else 0, self.position))
        self.phase = "forward"

    def trace(self) -> Trace:
        if not self.steps or self.steps[-1].end_op != self.position:
            self.end_step()
        return Trace(
            device="cpu",
            torch_version="0",
            ops=tuple(self.ops),
            storages=tuple(self.storages),
            events=tuple(self.events),
            saves=tuple(self.saves.values()),
            steps=tuple(self.steps),
        )


def chain(sizes: list[int], ns: int = 10, base: int = 0, temporary: int = 0, steps: int = 1) -> Trace:
    """A chain of layers: op i of forward makes and saves storage i; backward reads them in reverse and frees each.

    Ops 0 to n-1 are forward, n to 2n-1 backward: op n+k reads storage n-1-k, which is freed as it ends.
    """
    build = Build()
    if base:
        build.storage(base, "parameter")
    for _ in range(steps):
        made: list[int] = []
        for size in sizes:
            made.append(build.op("forward", ns, make=size, temporary=temporary))
            build.save(made[-1])
        build.phase = "backward"
        for storage in reversed(made):
            build.read(storage)
            build.op("backward", ns, reads=(storage,), temporary=temporary)
            build.free(storage)
        build.end_step()
    return build.trace()


def machine(out: int = 10**9, back: int = 10**9, latency: int = 0, disk: int = 10**12, outside: int = 0) -> Machine:
    """A machine with a disk below its device; at the default rates one byte takes one nanosecond."""
    link = Link(upper="device", lower="disk", out_bytes_per_s=out, back_bytes_per_s=back, latency_ns=latency)
    tiers = (Tier(name="device", capacity_bytes=10**12), Tier(name="disk", capacity_bytes=disk))
    return Machine(name="test", tiers=tiers, links=(link,), outside_bytes=outside)


@st.composite
def traces(draw: st.DrawFn, layers: int = 8) -> Trace:
    """Small traces with what real ones have: other categories, late idleness, in-place ops, skips, two reads."""
    build = Build()
    build.storage(draw(st.integers(1, 50)), "parameter")
    saved: list[int] = []
    held: list[int] = []
    for _ in range(draw(st.integers(1, layers))):
        make, temporary = draw(st.integers(0, 60)), draw(st.sampled_from([0, 0, 5, 40]))
        category: Category = "activation" if draw(st.integers(0, 5)) else "input"
        made = build.op("forward", draw(st.integers(0, 50)), make=make, temporary=temporary, category=category)
        for storage in held:
            build.idle(storage)
        held.clear()
        kind = draw(st.sampled_from(["save", "save", "save", "hold", "never idle", "in place", "free"]))
        if kind == "free":
            build.free(made)
            continue
        saved.append(build.save(made, idle=kind != "never idle"))
        if kind == "hold":
            held.append(made)
        if kind == "in place":
            build.op("write_", draw(st.integers(0, 9)), writes=(made,))
    build.phase = "backward"
    order = draw(st.permutations(saved)) if draw(st.booleans()) else saved[::-1]
    for storage in order:
        if draw(st.sampled_from([True] * 5 + [False])):
            for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
                build.read(storage)
                build.op("backward", draw(st.integers(0, 50)), temporary=draw(st.sampled_from([0, 10])))
        if draw(st.sampled_from([True] * 5 + [False])):
            build.free(storage)
    build.op("optimizer", 5)
    return build.trace()
