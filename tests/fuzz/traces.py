"""Random traces with everything at once that real ones have, from a `random.Random`.

Micro-batches, modules, in-place ops, random ops, ops that may not run again, workspaces with algorithms to choose
from, temporaries, storages saved twice or never idle or never read, parameters and inputs among the saved ones,
gradients that live for a step or for good, optimizer states, steps before the last one; steps of optimizers in parts,
with accumulations of gradients that may move or without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from elbowroom.trace import Choice, Part, PartKind, Save, Trace
from tests.core.build import Build

NAMES = ("forward",) * 6 + ("aten.native_dropout", "aten.native_batch_norm", "aten.cumsum", "c10d.all_reduce")


@dataclass
class _Net:
    """What is there while a trace is made; sizes are multiples of `unit`."""

    random: Random
    unit: int
    layers: int
    build: Build = field(default_factory=Build)
    again: list[Save] = field(default_factory=list[Save])
    parameters: list[int] = field(default_factory=list[int])
    gradients: list[int] = field(default_factory=list[int])
    states: list[int] = field(default_factory=list[int])
    choices: dict[int, Choice] = field(default_factory=dict[int, Choice])
    modules: dict[int, str] = field(default_factory=dict[int, str])
    in_parts: bool = False
    accumulates: bool = False
    parts: list[Part] = field(default_factory=list[Part])

    def part(self, first_op: int, storages: Sequence[int], kind: PartKind = "optimizer") -> None:
        """A part ends here."""
        self.parts.append(Part(first_op=first_op, end_op=self.build.position, storages=tuple(storages), kind=kind))

    def written(self, gradient: int, first_op: int) -> None:
        """A gradient is written from an op to here."""
        if self.accumulates:
            self.part(first_op, (gradient,), "accumulation")

    def size(self, most: int = 60) -> int:
        return self.random.randint(1, most) * self.unit

    def ns(self) -> int:
        return self.random.choice((0, 1, 7, 20, 50, self.random.randint(0, 90)))

    def likely(self, percent: int) -> bool:
        return self.random.randrange(100) < percent


def random_trace(random: Random, *, layers: int = 7, unit: int = 1) -> Trace:
    """A trace of one to three steps, the last one of up to so many layers a micro-batch."""
    net = _Net(random, unit, layers)
    net.parameters = [net.build.storage(net.size(20), "parameter") for _ in range(random.randint(1, 3))]
    stays = net.likely(40)
    if stays:
        net.gradients = [net.build.storage(net.size(20), "gradient") for _ in net.parameters]
    if net.likely(60):
        net.states = [net.build.storage(net.size(50), "optimizer_state") for _ in range(random.randint(1, 3))]
    net.in_parts = net.likely(50)
    net.accumulates = net.in_parts and net.likely(60)
    if net.likely(20):
        net.build.op("warm up", net.ns(), temporary=net.size())
    earlier = random.choice((0, 0, 1, 2))
    for step in range(earlier + 1):
        _step(net, 1 + random.randrange(2) if step < earlier else layers, gradients_stay=stays)
    return _finished(net)


def _step(net: _Net, layers: int, *, gradients_stay: bool) -> None:
    for _ in range(net.random.choice((1, 1, 1, 2))):
        saved, live = _forward(net, layers)
        _backward(net, saved, live)
    net.build.phase = "optimizer"
    for k, parameter in enumerate(net.parameters):
        begin = net.build.position
        used = (parameter, *net.gradients[k : k + 1], *net.states[k : k + 1])
        net.build.op("optimizer", net.ns(), reads=used, writes=(parameter, *net.states[k : k + 1]))
        if net.likely(30):
            net.build.op("optimizer", net.ns(), temporary=net.size())
        if net.in_parts:
            net.part(begin, net.states[k : k + 1])
    if not gradients_stay:
        for gradient in net.gradients:
            net.build.free(gradient)
        net.gradients = []
    net.build.end_step()


def _forward(net: _Net, layers: int) -> tuple[list[int], list[int]]:
    """Ops that make storages of each other: the saved ones, and all that backward has to free."""
    build, random = net.build, net.random
    build.phase = "forward"
    source = build.storage(net.size(20), "input") if net.likely(50) else net.parameters[0]
    live, saved = [source] if source != net.parameters[0] else [], list[int]()
    if net.likely(20):
        net.again.append(Save(storage=source, saved_at=build.position, idle_from=build.position, read_at=()))
    held: list[int] = []
    for layer in range(layers):
        reads = tuple(
            dict.fromkeys(random.choices([*live[-3:], random.choice(net.parameters)], k=random.randint(0, 3)))
        )
        made = _op(net, f"net.{layer // 2}", reads)
        for storage in held:
            build.idle(storage)
        held.clear()
        if net.likely(10):
            build.op("aten.relu_", net.ns(), reads=(made,), writes=(made,))
        kind = random.choice(("save",) * 8 + ("hold", "never idle", "free", "leave"))
        if kind == "free":
            build.free(made)
            continue
        live.append(made)
        if kind == "leave":
            continue
        saved.append(build.save(made, idle=kind == "save"))
        held += [made] if kind == "hold" else []
        if net.likely(5):
            build.op("aten.add_", net.ns(), reads=(made,), writes=(made,))
        if net.likely(5):
            net.again.append(Save(storage=made, saved_at=build.position, idle_from=build.position, read_at=()))
    if net.likely(90):
        _idle_after_last_use(build, saved)
    return saved, live


def _idle_after_last_use(build: Build, saved: list[int]) -> None:
    """Say that what ops of forward read is in use until then; what is not must be kept."""
    for storage in saved:
        save = build.saves[storage]
        uses = [at for at, op in enumerate(build.ops) if storage in (*op.reads, *op.writes)]
        if save.idle_from is not None:
            build.saves[storage] = replace(save, idle_from=max(save.idle_from, uses[-1] + 1))


def _op(net: _Net, module: str, reads: tuple[int, ...]) -> int:
    """An op that makes a storage, perhaps with scratch memory and other algorithms."""
    build, at = net.build, net.build.position
    category = net.random.choice(("activation",) * 9 + ("temporary", "input"))
    temporary = net.size() if net.likely(20) else 0
    name = net.random.choice(NAMES)
    made = build.op(name, net.ns(), make=net.size(), temporary=temporary, reads=reads, category=category)
    net.modules[at] = module
    if net.likely(30):
        build.free(build.storage(net.size(), "workspace"))
    if net.likely(20):
        net.choices[at] = Choice(name="other", duration_ns=net.ns(), workspace_bytes=net.random.choice((0, net.size())))
    return made


def _backward(net: _Net, saved: list[int], live: list[int]) -> None:
    build, random = net.build, net.random
    build.phase = "backward"
    order = random.sample(saved, len(saved)) if net.likely(20) else saved[::-1]
    making = not net.gradients
    for storage in order:
        for _ in range(random.choice((1, 1, 1, 1, 2)) if net.likely(93) else 0):
            build.read(storage)
            gradient = random.choice(net.gradients) if net.gradients else None
            writes = () if gradient is None or net.likely(50) else (gradient,)
            build.op("backward", net.ns(), temporary=random.choice((0, 0, net.size())), reads=(storage,), writes=writes)
            if gradient is not None and writes:
                net.written(gradient, build.position - 1)
            if making and len(net.gradients) < len(net.parameters) and net.likely(50):
                net.gradients.append(build.op("backward", net.ns(), make=net.size(20), category="gradient"))
                net.written(net.gradients[-1], build.position)
        if storage in live and net.likely(85):
            build.free(storage)
            live.remove(storage)
    for storage in live:
        if net.likely(85):
            build.free(storage)


def _finished(net: _Net) -> Trace:
    """The trace with its modules, algorithms and second saves."""
    trace = net.build.trace()
    ops = [replace(op, module=net.modules.get(at, "")) for at, op in enumerate(trace.ops)]
    for at, other in net.choices.items():
        found = [e for e in trace.events if e.op == at and trace.storages[e.storage].category == "workspace"]
        here = Choice(
            name="as recorded",
            duration_ns=ops[at].duration_ns,
            workspace_bytes=max((e.size_bytes for e in found), default=0),
        )
        ops[at] = replace(ops[at], choices=(here, other), flops=1)
    saves = sorted((*trace.saves, *net.again), key=lambda save: save.saved_at)
    return replace(trace, ops=tuple(ops), saves=tuple(saves), parts=tuple(net.parts))
