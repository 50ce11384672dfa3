"""Plan: what to do with each storage. Keep is the default and is not written. Holds no times."""

from __future__ import annotations

from dataclasses import dataclass

from elbowroom import rules
from elbowroom.files import Filed
from elbowroom.machine import TIERS, TierName


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Move one saved storage to a lower tier between its last use in forward and its first read in backward.

    Attributes:
        storage: id in the plan's trace.
        tier: where it goes.
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
        if self.back_before_op <= self.out_after_op:
            rules.refuse("Swap.back_before_op", self.back_before_op, f"an op after out_after_op, {self.out_after_op}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Filed):
    """Decisions for the last step of one trace.

    Attributes:
        trace_id: `Trace.id` of the trace it was made for.
        planner: name of the planner that made it.
        budget_bytes: allocated bytes the device tier may hold.
        swaps: in the order of `out_after_op`; every other storage is kept.
    """

    trace_id: str
    planner: str
    budget_bytes: int
    swaps: tuple[Swap, ...] = ()

    def __post_init__(self) -> None:
        rules.text("Plan.trace_id", self.trace_id)
        rules.text("Plan.planner", self.planner)
        rules.integer("Plan.budget_bytes", self.budget_bytes)
        rules.records("Plan.swaps", self.swaps, Swap)
        rules.ascending("Plan.swaps.out_after_op", tuple(swap.out_after_op for swap in self.swaps))
        rules.distinct("Plan.swaps.storage", [swap.storage for swap in self.swaps])
