"""Figures of a run: trace, plan, figures and warnings, while it goes on and afterwards."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace

from elbowroom.engine.entries import Counters
from elbowroom.engine.executor import Executor
from elbowroom.engine.lost_device import loss_of
from elbowroom.engine.residence import resident_bytes
from elbowroom.errors import DeviceLost, Infeasible
from elbowroom.hardware.energy_meters import EnergyMeter, meter_of
from elbowroom.hardware.launched_rank import launched_rank
from elbowroom.machine import Machine
from elbowroom.notices import Once, warn, warn_once
from elbowroom.plan import Plan
from elbowroom.planners.budget.run_budget import simulated
from elbowroom.run import account as figures
from elbowroom.run.account import MeasuredEnergy, StepFigures
from elbowroom.run.hard_room import Needs
from elbowroom.run.kind_totals import Kinds, beyond
from elbowroom.run.learner import Learner
from elbowroom.run.run_now import RunNow, plan_in_force
from elbowroom.run.step_kinds import StepKind
from elbowroom.run.step_loggers import Log, log_of, values_of
from elbowroom.simulate.energy import Energy, energy_of
from elbowroom.step.least_size import said
from elbowroom.timeline import Mode, Timeline
from elbowroom.trace import Trace
from elbowroom.units import format_bytes

STEPS_KEPT = 4096
"""Steps whose figures are always kept; older ones go, so that a long training does not fill the memory."""
METER_NS = 30 * 10**9
"""Time after which a meter is read again: counters of processors begin anew after some minutes at full power."""
RESTED_EACH = 64
"""Steps of a rest after which the time is looked at."""


class RunFigures:
    """Trace, plan, timelines and figures of a run.

    Attributes:
        device: the device whose storages move.
        min_size_bytes: smaller storages stay there.
        trace, plan: those of the step that ran last; None before the first plan.
        passed: counts of large saved tensors that stayed where they were. Keys are subclasses that nothing says how to
            rebuild, and other devices.
        beyond_bytes: most bytes beyond the budget that a CUDA device held when a step began.
    """

    def __init__(self, executor: Executor, learner: Learner) -> None:
        self.device = executor.device
        self.min_size_bytes = learner.min_size_bytes
        self._first_budget_bytes = learner.budget_bytes
        self.passed: Counter[str] = Counter()
        self._executor = executor
        self._learner = learner
        self._last: StepKind | None = None
        self._last_key: Hashable = None
        self._measured: tuple[Hashable, StepKind, Timeline] | None = None
        self._measure_next = False
        self._figures: list[StepFigures] = []
        self._kept = 0
        self._rested_ns: list[int] = []
        self.beyond_bytes = 0
        self._settled = self._running = False
        self._mode: Mode = "observe"
        self._begin_ns = 0
        self._loggers: list[Log] = []
        self._once = Once()
        self._meter: EnergyMeter | None = None
        self._metered_ns = 0

    @property
    def steps(self) -> list[StepFigures]:
        """Figures of the steps that have ended; a long training keeps those of the last few thousand."""
        self._keep_rested()
        return self._figures

    @property
    def _steps_ended(self) -> int:
        """How many steps have ended."""
        return self._kept + len(self._rested_ns)

    def _keep(self, step: StepFigures, key: Hashable, followed: StepKind | None, *, settled: bool) -> None:
        """Keep the figures of a step that has ended. A `settled` one followed the last plan of its kind."""
        self._settled = settled
        self._read_meter()
        self._learner.met_kinds.totals.ended(key, followed)
        self._figures.append(step)
        self._kept += 1
        if self._loggers:
            self._log(step, looks=step.checked)
        if len(self._figures) > 2 * STEPS_KEPT:
            del self._figures[:STEPS_KEPT]

    def _keep_rested(self) -> None:
        """Keep the figures of the steps of a rest, of which only the times were noted: it must take no time."""
        rested_ns, self._rested_ns = self._rested_ns, []
        for step_ns in rested_ns:
            step = figures.of_step("keep", step_ns, Counters(), 0, checked=False)
            self._keep(step, self._last_key, self._last, settled=True)

    def _rested(self, step_ns: int) -> None:
        """Note the time of a step of a rest."""
        self._rested_ns.append(step_ns)
        if len(self._rested_ns) % RESTED_EACH == 0:
            self._read_meter()

    def _read_meter(self) -> None:
        """Begin to count energy as the first step ends, and read the meter from time to time."""
        now_ns = time.perf_counter_ns()
        if not self._metered_ns:
            self._meter = meter_of(self.device.type, self.device.index or 0)
        elif self._meter is None or now_ns - self._metered_ns < METER_NS:
            return
        else:
            self._meter.millijoules()
        self._metered_ns = now_ns

    @property
    def measured_energy(self) -> MeasuredEnergy | None:
        """Energy since the end of the first step; None without a meter, or before a second step has ended."""
        steps = self._steps_ended - 1
        found = None if self._meter is None or steps < 1 else self._meter.millijoules()
        if self._meter is None or found is None:
            return None
        return MeasuredEnergy(
            source=self._meter.source, millijoules=found, steps=steps, step_millijoules=round(found / steps)
        )

    @property
    def simulated_energy(self) -> Energy | None:
        """Simulated energy of a step under the last plan; None without a plan, or if the board's power is not known."""
        if self._last is None or not self.machine.board_watts:
            return None
        line = self.simulated
        return None if line is None else energy_of(line, self._last.trace, self.machine)

    def log_to(self, writer: object) -> None:
        """Give the figures of each step that ends from now on to a writer. Raises UsageError."""
        self._keep_rested()
        self._loggers.append(log_of(writer))

    def _log(self, step: StepFigures, *, looks: bool) -> None:
        """Write the figures of a step that has ended. A writer that fails once gets no more of them."""
        held_bytes = self._executor.residence.held_bytes() if looks else None
        values = values_of(step, self.budget_bytes, held_bytes)
        for log in list(self._loggers):
            try:
                log(self._kept, values)
            except Exception as problem:  # noqa: BLE001 - a training does not end because a logger is closed
                self._loggers.remove(log)
                warn(
                    f"elbowroom: a writer given to log_to failed after step {self._kept} and gets no more figures: "
                    f"{type(problem).__name__}: {problem}. Give another one to log_to"
                )

    def now(self) -> RunNow:
        """Return what the run holds and does now, and change nothing: another thread calls this as the run goes on."""
        recent, rested_ns, last = self._figures[-STEPS_KEPT:], self._rested_ns, self._last
        steps, ran = self._kept + len(rested_ns), recent[-1] if recent else None
        in_step = self._running and not rested_ns
        begun = self._running or steps > 0
        mode: Mode = self._mode if in_step or ran is None else ("keep" if rested_ns else ran.mode)
        stall_ns = self._executor.counters.stall_ns if in_step else (ran.stall_ns if ran and not rested_ns else 0)
        return RunNow(
            device=str(self.device),
            steps=steps,
            in_step_ns=time.perf_counter_ns() - self._begin_ns if in_step and self._begin_ns else None,
            mode=mode,
            plan=plan_in_force(mode if begun else "", last.plan if last else None, last.trace if last else None),
            budget_bytes=self.budget_bytes,
            planned_peak_bytes=last.planned_bytes if last else 0,
            device_bytes=self._held_now(),
            resident_bytes=resident_bytes(),
            lower_bytes={str(tier): size for tier, size in self._executor.tier.bytes_by_tier().items()},
            pinned_bytes=self.pinned_bytes,
            stall_ns=stall_ns,
            last_step_ns=rested_ns[-1] if rested_ns else (ran.step_ns if ran else None),
            recent=recent,
        )

    def _held_now(self) -> int:
        """Return what the device holds now; in RAM, the most that a recorded step held."""
        held_bytes = self._executor.residence.held_bytes()
        return self._learner.met_kinds.totals.measured_peak_bytes if held_bytes is None else held_bytes

    def _see_what_lies_there(self) -> bool:
        """Look at the start of a step whether the device holds more than the budget, from code between steps."""
        beyond_bytes = self._executor.residence.beyond(self._learner.limit_bytes)
        self.beyond_bytes = max(self.beyond_bytes, beyond_bytes)
        if beyond_bytes and self._settled:
            warn_once(
                self._once,
                "beyond",
                f"elbowroom: after step {self._steps_ended} {self.device} holds {format_bytes(beyond_bytes)} more than "
                f"the budget of {format_bytes(self.budget_bytes)}. No plan knows of what runs between steps, such as "
                "an evaluation. Give a budget less by as much, or call torch.cuda.empty_cache() before that runs; "
                "room.beyond_bytes is the most",
            )
        return beyond_bytes > 0

    @property
    def budget_bytes(self) -> int:
        """What the device tier may hold."""
        return self._learner.budget_bytes

    @property
    def kinds(self) -> Kinds:
        """What each kind of step holds."""
        self._keep_rested()
        return self._learner.met_kinds.totals

    @property
    def planned_peak_bytes(self) -> int:
        """The most that the plans of all kinds of steps hold, as the budget counts it; 0 if there is none."""
        return self.kinds.planned_peak_bytes

    @property
    def held_bytes(self) -> int:
        """The most that the training was measured to hold, as the budget counts it."""
        return self._executor.residence.most_bytes() or self.kinds.measured_peak_bytes

    @property
    def over_bytes(self) -> int:
        """Measured bytes beyond the budget; 0 if they are less than 1/100 of it."""
        # a hard limit may have lowered it since; an `auto` budget has a margin
        return self._beyond(self._learner.free_bytes)

    @property
    def of_margin_bytes(self) -> int:
        """Measured bytes beyond an `auto` budget, all of which its margin had; 0 if they are less than 1/100 of it."""
        return 0 if self.over_bytes or not self._learner.free_bytes else self._beyond(0)

    def _beyond(self, allowed_bytes: int) -> int:
        """Return the measured bytes beyond the largest budget of the run, or beyond what is allowed if that is more."""
        budget_bytes = max(self._first_budget_bytes, self.budget_bytes, allowed_bytes)
        return beyond(self.held_bytes, budget_bytes) if self._steps_ended else 0

    def loss(self) -> DeviceLost | None:
        """Return the error to raise if the device is lost. The device is asked for nothing from then on."""
        return loss_of(self._executor, self._steps_ended)

    def refusal(self, problem: BaseException | None) -> Infeasible | None:
        """Return what to raise for an error that ends the run, if a hard limit or others on the device caused it."""
        if problem is None:
            return None
        of_device = self._executor.residence.refusal(problem, self._learner.budget_bytes, self._place())
        return of_device or self._learner.refusal(problem, self._needs())

    def _needs(self) -> Needs:
        """Return what is known of the memory that steps need."""
        return Needs(0, 0)

    def _place(self) -> str:
        """Say in words what runs now."""
        return f"after {self._steps_ended} steps" if self._steps_ended else "before the first step"

    @property
    def machine(self) -> Machine:
        """This computer, with the rates that the transfers of the run show."""
        return self._learner.machine

    @property
    def pinned_bytes(self) -> int:
        """Bytes of page-locked host memory in use now."""
        return self._executor.tier.pinned_bytes

    @property
    def trace(self) -> Trace | None:
        """Trace of the kind of step that ran last."""
        return self._last.trace if self._last else None

    @property
    def plan(self) -> Plan | None:
        """Plan of the kind of step that ran last."""
        return self._last.plan if self._last else None

    @property
    def simulated(self) -> Timeline | None:
        """Simulated timeline of the last step's plan."""
        last = self._last
        return simulated(last.trace, last.machine, last.course, begins_empty=last.begins_empty) if last else None

    @property
    def measured(self) -> Timeline | None:
        """Timeline of the last step that was recorded under this plan; None if there was none yet."""
        if self._last is None or self._measured is None:
            return None
        key, followed, line = self._measured
        same = key == self._last_key and self._last.does_as(followed)
        return replace(line, trace_id=self._last.trace.id) if same else None

    def measure_next_step(self) -> None:
        """Record the next planned step; its timeline is in `measured` once it has ended."""
        self._measure_next = True

    def summary(self) -> str:
        """Return what the run held, kept, swapped and recomputed, as lines of text."""
        rank = launched_rank()
        which = f"{rank.label}, " if rank.of_many else ""
        head = f"elbowroom: {which}budget {format_bytes(self.budget_bytes)}{self._of_margin()}"
        refused = figures.refused(self._executor.refused)
        if not self._steps_ended:
            return "\n".join((f"{head}; no training step was seen", *refused))
        reason = self._learner.unplanned_as or (figures.DIFFER if self.kinds.differ else "")
        lines = [f"{head}; {self._steps_ended} steps, {f'no plan: {reason}' if reason else 'no plan yet'}"]
        if self._last is not None:
            lines = figures.summary(head, self.kinds, self._last, self.steps, self._steps_ended)
            lines += figures.unplanned(self.steps, reason)
        shared = [f"  {self._learner.shared}"] if self._learner.shared else []
        energy = figures.energy_lines(self.measured_energy, self.simulated_energy)
        return "\n".join(
            [*lines, *refused, *shared, *self._may_move(), *figures.held(self), *energy, *self.kinds.lines()]
        )

    def _of_margin(self) -> str:
        """Say how much of the margin that `auto` leaves the plans use."""
        more_bytes = min(self.planned_peak_bytes, self._learner.limit_bytes) - self.budget_bytes
        return f" and {format_bytes(more_bytes)} of the margin it leaves" if more_bytes > 0 else ""

    def _may_move(self) -> list[str]:
        """Return a line on the least size of storages that move, if some move and the user gave no `min_size`."""
        moves = self._last is not None and self._last.plan.moves
        line = said(self.min_size_bytes) if moves and self._learner.follows else ""
        return [f"  {line}"] if line else []
