"""Plan: what to do with each storage. Keep is the default and is not written. Only its bound has times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from elbowroom.files import field_rules as rules
from elbowroom.files.record_files import Filed
from elbowroom.machine import TIERS, TierName
from elbowroom.notebook_tables import NotebookBar, notebook_table
from elbowroom.units import format_bytes, format_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Move one storage to a lower tier while no op needs it.

    A saved storage is away between its last use in forward and its first read in backward. An optimizer state, a
    gradient or a parameter that outlives the step may be away across its end: then `back_before_op` is at most
    `out_after_op`, and the storage comes back in the next step. Only a parameter may have several swaps.

    Attributes:
        storage: id in the plan's trace.
        tier: where it goes; on a machine with a host tier, a storage for "disk" passes through the host.
        out_after_op: the copy out starts once this op has ended (-1: before the first op).
        back_before_op: the copy back starts before this op starts; from here its bytes count on the device again.
    """

    storage: int
    tier: TierName
    out_after_op: int
    back_before_op: int

    def __post_init__(self) -> None:
        rules.integer("Swap.storage", self.storage)
        rules.one_of("Swap.tier", self.tier, TIERS[1:])
        rules.integer("Swap.out_after_op", self.out_after_op, least=-1)
        rules.integer("Swap.back_before_op", self.back_before_op)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Drop saved storages once only autograd holds them, and rebuild all of them together by running ops again.

    Attributes:
        storages: ids of the storages that are dropped; each is made by an op of the recipe.
        recipe: the ops of the last step that run again, ascending. Storages that they read and do not make must be on
            the device then: kept, back by then, or rebuilt by an earlier Recompute.
        before_op: the recipe runs before this op starts: the first read back of any of the storages.
    """

    storages: tuple[int, ...]
    recipe: tuple[int, ...]
    before_op: int

    def __post_init__(self) -> None:
        rules.integers("Recompute.storages", self.storages)
        rules.integer("Recompute.before_op", self.before_op)
        rules.integers("Recompute.recipe", self.recipe)
        if not self.storages:
            rules.refuse("Recompute.storages", self.storages, "at least one storage")
        if not self.recipe:
            rules.refuse("Recompute.recipe", self.recipe, "at least one op")
        rules.distinct("Recompute.storages", self.storages)
        rules.ascending("Recompute.recipe", self.recipe)
        rules.distinct("Recompute.recipe", self.recipe)
        if self.recipe[-1] >= self.before_op:
            rules.refuse("Recompute.recipe, last", self.recipe[-1], f"an op before before_op, {self.before_op}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """Run one op with another of the algorithms that its trace offers.

    Attributes:
        op: its id.
        choice: name of an entry of `Op.choices`.
    """

    op: int
    choice: str

    def __post_init__(self) -> None:
        rules.integer("Algorithm.op", self.op)
        rules.text("Algorithm.choice", self.choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How good a plan is on one machine.

    Attributes:
        machine: its name.
        step_ns: simulated time of the step under the plan.
        lower_bound_ns: no plan of the same means takes less, in the order of ops of the trace.
    """

    machine: str
    step_ns: int
    lower_bound_ns: int

    def __post_init__(self) -> None:
        rules.text("Bound.machine", self.machine)
        rules.integer("Bound.step_ns", self.step_ns)
        rules.integer("Bound.lower_bound_ns", self.lower_bound_ns, most=self.step_ns)

    @property
    def gap(self) -> float:
        """Time of the step above the lower bound, as a share of the bound; infinite if the bound is 0."""
        over_ns = self.step_ns - self.lower_bound_ns
        return over_ns / self.lower_bound_ns if self.lower_bound_ns else float("inf") if over_ns else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Filed):
    """Decisions for the last step of one trace.

    Attributes:
        trace_id: `Trace.id` of the trace it was made for.
        planner: name of the planner that made it.
        budget_bytes: allocated bytes the device tier may hold.
        swaps: in the order of `out_after_op`; a storage that no swap and no recompute names is kept.
        recomputes: in the order they run.
        algorithms: in the order of the ops; every other op runs as it was recorded.
        bound: how good the plan is; None if nothing was proven.
    """

    trace_id: str
    planner: str
    budget_bytes: int
    swaps: tuple[Swap, ...] = ()
    recomputes: tuple[Recompute, ...] = ()
    algorithms: tuple[Algorithm, ...] = ()
    bound: Bound | None = None

    @property
    def moves(self) -> bool:
        """Whether any storage leaves the device."""
        return bool(self.swaps or self.recomputes)

    @property
    def decides(self) -> bool:
        """Whether it decides anything but to keep what is saved and to run ops as they were recorded."""
        return self.moves or bool(self.algorithms)

    def __repr__(self) -> str:
        decided = f"{len(self.swaps)} swaps, {len(self.recomputes)} recomputes, {len(self.algorithms)} algorithms"
        return f"<Plan by {self.planner} within {format_bytes(self.budget_bytes)}: {decided}>"

    def _repr_html_(self) -> str:
        """Return the plan as a table for notebooks: how many storages go where."""
        counts = Counter(f"swapped to {swap.tier}" for swap in self.swaps)
        counts["recomputed"] = sum(len(each.storages) for each in self.recomputes)
        counts["ops with another algorithm"] = len(self.algorithms)
        shown = [(name, count) for name, count in counts.items() if count]
        most = max((count for _, count in shown), default=1)
        bars = [NotebookBar(name=name, text=f"{count:,}", share=count / most) for name, count in shown]
        facts = [("budget", format_bytes(self.budget_bytes))]
        if self.bound is not None:
            bound = f"{format_ns(self.bound.step_ns)}, simulated on {self.bound.machine}"
            facts += [("step time", bound), ("no plan takes less than", format_ns(self.bound.lower_bound_ns))]
        title = f"Plan by {self.planner}" + ("" if shown else ": every storage is kept")
        return notebook_table(title, facts, bars, "moves of storages, and ops, by number")

    def __post_init__(self) -> None:
        rules.text("Plan.trace_id", self.trace_id)
        rules.text("Plan.planner", self.planner)
        rules.integer("Plan.budget_bytes", self.budget_bytes)
        rules.records("Plan.swaps", self.swaps, Swap)
        rules.ascending("Plan.swaps.out_after_op", tuple(swap.out_after_op for swap in self.swaps))
        rules.distinct("Plan.swaps", [(swap.storage, swap.out_after_op) for swap in self.swaps])
        rules.records("Plan.recomputes", self.recomputes, Recompute)
        rules.ascending("Plan.recomputes.before_op", tuple(each.before_op for each in self.recomputes))
        dropped = [storage for each in self.recomputes for storage in each.storages]
        rules.distinct("Plan.swaps.storage and Plan.recomputes.storages", [*{s.storage for s in self.swaps}, *dropped])
        rules.records("Plan.algorithms", self.algorithms, Algorithm)
        rules.ascending("Plan.algorithms.op", tuple(algorithm.op for algorithm in self.algorithms))
        rules.distinct("Plan.algorithms.op", [algorithm.op for algorithm in self.algorithms])
        if self.bound is not None and type(self.bound) is not Bound:
            rules.refuse("Plan.bound", self.bound, "an instance of Bound, or None")
