"""Energy: the joules of a step, from its timeline and the power that a board draws: a model, not a measurement.

Computes: the board draws its idle power all the time. An op adds to it by its class: arithmetic limits it, or the
memory's bandwidth, or its launch. One whose kernels wait to be launched adds the part of its time in which its bytes or
FLOPs keep the device busy. Copies add the energy of each bit on its way: link, memories and disk. hardware/power.py has
the constants with their sources.
Reference: Choi et al., "A Roofline Model of Energy" (IPDPS 2013). Optimal: does not apply. docs/energy.md compares
steps with published ones.
Ignores: the processor and its memory but for copies, fans, power supplies, other computers, collectives, clocks that
fall under a power limit. Another algorithm of a convolution draws what the recorded one does.
Cost: linear in spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, final

from elbowroom.errors import UsageError
from elbowroom.hardware.power import COPY_FACTOR, DevicePower, PowerSpread, device_power, joules_per_byte
from elbowroom.hardware.reach import LAUNCH_NS, STREAM_SHARE, share_of
from elbowroom.machine import Machine
from elbowroom.simulate.lane_queues import READ, WRITE
from elbowroom.simulate.lanes import Play, moved_bytes
from elbowroom.step.last_step import LastStep, last_step
from elbowroom.step.moves import Moves
from elbowroom.timeline import Lane, Timeline
from elbowroom.trace import Op, Trace
from elbowroom.units import format_joules

HOST_COPY = joules_per_byte("device", "link", "host")
"""Joules of a byte that is copied between device and host."""
DISK_COPY = joules_per_byte("host", "link", "disk")
"""Joules of a byte that is copied between host and disk."""
COPIES: Mapping[Lane, float] = {
    "copy out": HOST_COPY,
    "copy back": HOST_COPY,
    "disk write": DISK_COPY,
    "disk read": DISK_COPY,
}
"""Joules of a byte by the lane that moves it."""
LAUNCHED = 2
"""An op that takes less than this number of launches is limited by its launch."""
LEAST_BUSY = 0.1
"""So is one that keeps less than this part of the bandwidth and of the arithmetic busy: its kernels are many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Simulated energy of one step, in thousandths of a joule: of the device's board, and of its copies.

    Attributes:
        least_millijoules: the least that is reckoned with.
        likely_millijoules: what is expected.
        most_millijoules: the most that is reckoned with.
        copies_millijoules: the part of the expected ones that copies take.
    """

    least_millijoules: int
    likely_millijoules: int
    most_millijoules: int
    copies_millijoules: int

    @property
    def words(self) -> str:
        """The energy as text, such as "45.5 J (34.7 J to 50.0 J)"."""
        least, most = format_joules(self.least_millijoules), format_joules(self.most_millijoules)
        return f"{format_joules(self.likely_millijoules)} ({least} to {most})"


def energy_of(line: Timeline, trace: Trace, machine: Machine) -> Energy | None:
    """Return the simulated energy of a timeline's step; None if the board's power or its rates are not known.

    Args:
        line: times of the step; those of a measured one are priced with the same model.
        trace: the ops of the step.
        machine: its board's power, its rates and its bandwidth are used.
    """
    runs = [
        (span.op, span.end_ns - span.start_ns)
        for span in line.spans
        if span.kind in ("op", "recompute") and span.op is not None
    ]
    copies = sum(COPIES.get(span.lane, 0.0) * span.size_bytes for span in line.spans if span.kind.startswith("swap"))
    return _energy(line.step_ns, runs, copies, trace, machine)


def kept_energy(trace: Trace, machine: Machine) -> Energy | None:
    """Return the simulated energy of the last step with everything kept; None as `energy_of`, or without durations."""
    step = last_step(trace)
    runs = [(op, step.own_ns(op)) for op in range(step.first_op, step.end_op)]
    return _energy(int(step.at_ns[-1]), runs, 0.0, trace, machine)


def _energy(
    step_ns: int, runs: Sequence[tuple[int, int]], copies: float, trace: Trace, machine: Machine
) -> Energy | None:
    """Return the energy of a step of ops with their times, and of copies in joules."""
    if not _is_known(machine) or not step_ns:
        return None
    busy = {op: _busy(trace.ops[op], trace, machine) for op in {op for op, _ in runs}}
    found: list[int] = []
    for power, factor in zip(_power(machine), COPY_FACTOR, strict=True):
        more = sum((power.busy(*busy[op]) - power.idle) * ns for op, ns in runs)
        found.append(round((power.idle * step_ns + more) * 1e-6 + factor * copies * 1e3))
    least, likely, most = found
    return Energy(
        least_millijoules=least,
        likely_millijoules=likely,
        most_millijoules=most,
        copies_millijoules=round(copies * 1e3),
    )


def _is_known(machine: Machine) -> bool:
    return bool(machine.board_watts and machine.flops_per_s and machine.memory_bytes_per_s)


def _power(machine: Machine) -> PowerSpread:
    return device_power(machine.board_watts, machine.idle_watts)


def _busy(op: Op, trace: Trace, machine: Machine) -> tuple[float, float]:
    """Return the parts of the memory's bandwidth and of the arithmetic that an op keeps busy, each at most 1."""
    if not op.duration_ns:
        return 0.0, 0.0
    seconds, storages = op.duration_ns * 1e-9, trace.storages
    size_bytes = sum(storages[storage].size_bytes for storage in {*op.reads, *op.writes})
    streaming = min(1.0, size_bytes / (machine.memory_bytes_per_s * STREAM_SHARE) / seconds)
    computing = min(1.0, op.flops / _rate(op, trace, machine) / seconds) if op.flops else 0.0
    if op.duration_ns < LAUNCHED * LAUNCH_NS or max(streaming, computing) < LEAST_BUSY:
        return streaming, computing
    return (streaming, 1.0) if computing >= streaming else (1.0, computing)


def _rate(op: Op, trace: Trace, machine: Machine) -> float:
    """Return the FLOPs a second that large products of an op's type reach: of TF32 if it is faster than float32."""
    rates = {rate.dtype: rate.flops_per_s for rate in machine.rates}
    types = (trace.storages[storage].dtype for storage in chain(op.writes, op.reads))
    dtype = next((each for each in types if each in rates), "float32")
    peak = rates.get(dtype, machine.flops_per_s)
    if dtype == "float32" and "tf32" in rates and op.flops > peak * op.duration_ns * 1e-9:
        dtype, peak = "tf32", rates["tf32"]
    return peak * share_of(dtype)


@final
class EnergyPrices:
    """What recomputes and copies cost beyond an idling device, as time that the device could idle instead.

    So a plan's joules are the idle power times the sum of its step's time, of `extra_ns` and of a constant: a planner
    that minimises that sum minimises joules.

    Raises:
        UsageError: the power of the machine's board, or its rates, are not known.
    """

    def __init__(self, trace: Trace, machine: Machine) -> None:
        if not _is_known(machine):
            raise UsageError(
                f"objective: given energy on {machine.name!r}, the power of whose board is not known; allowed are GPUs "
                "with board_watts, rates and memory_bytes_per_s (`elbowroom machine NAME` shows them); name one, or "
                "give them in a table of your own (docs/machines.md)"
            )
        self._trace, self._machine = trace, machine
        self._power: Final[DevicePower] = _power(machine).likely
        self._times: dict[int, float] = {}
        self._recipes: dict[tuple[int, ...], int] = {}

    def times(self, op: int) -> float:
        """Return how many times the idle power an op adds to it."""
        if op not in self._times:
            busy = _busy(self._trace.ops[op], self._trace, self._machine)
            self._times[op] = self._power.busy(*busy) / self._power.idle - 1.0
        return self._times[op]

    def about_ns(self, step: LastStep, recipes: Iterable[tuple[int, ...]], swapped_bytes: int) -> int:
        """Return about what recipes and swaps cost beyond their time, before they were played."""
        return self._recipes_ns(step, recipes) + self._idle_ns(2 * HOST_COPY * swapped_bytes)

    def _recipes_ns(self, step: LastStep, recipes: Iterable[tuple[int, ...]]) -> int:
        """Return what ops that run again cost beyond their time."""
        total_ns = 0
        for recipe in recipes:
            if recipe not in self._recipes:
                self._recipes[recipe] = round(sum(step.own_ns(op) * self.times(op) for op in recipe))
            total_ns += self._recipes[recipe]
        return total_ns

    def extra_ns(self, step: LastStep, moves: Moves, done: Play) -> int:
        """Return what the recomputes and the copies of a step cost beyond its time."""
        onward = sum(int(moves.size[copy.move]) for copy in done.copies if copy.lane in (WRITE, READ))
        joules = HOST_COPY * moved_bytes(moves, done) + DISK_COPY * onward
        return self._recipes_ns(step, [rebuild.recipe for rebuild in moves.rebuilds]) + self._idle_ns(joules)

    def _idle_ns(self, joules: float) -> int:
        """Return for how long the device idles with some energy."""
        return round(joules / self._power.idle * 1e9)
