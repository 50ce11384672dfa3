"""Requests to planners: checked knobs, and budgets resolved to bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from elbowroom.planners.problem import DEFAULT_MEANS, Means, Objective
from elbowroom.step.least_size import MIN_SIZE_BYTES, least_size
from elbowroom.step.module_selection import ALL_MODULES, Selection, selection

KEPT_FREE = 40
"""1/KEPT_FREE of a device stays free, even if no plan meets an `auto` budget with its whole margin."""
TIME_LIMIT_S = 60.0
"""Default time limit of a planner that searches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedBudget:
    """Bytes that each tier of one machine may hold; 0 for a tier that it does not have.

    Attributes:
        device_bytes: bytes of the device; 0 if the least is asked for, or one budget after the other.
        free_bytes: bytes of the device that were free when its budget was made from them; 0 for one that was given.
        host_bytes: bytes of the host.
        pinned_bytes: bytes of the host that may be page-locked.
        disk_bytes: bytes of the disk.
        sharers: processes on this computer among which memory was divided.
        divided: what was, in words, such as "RAM".
    """

    device_bytes: int = 0
    host_bytes: int = 0
    pinned_bytes: int = 0
    disk_bytes: int = 0
    free_bytes: int = 0
    sharers: int = 1
    divided: tuple[str, ...] = ()

    def on_device(self, device_bytes: int) -> ResolvedBudget:
        """Return the budgets with another one for the device."""
        return replace(self, device_bytes=device_bytes)

    @property
    def spare_bytes(self) -> int:
        """Bytes of the device beyond the budget that a run may take if no plan does with less: most of a margin."""
        return max(0, self.free_bytes - self.free_bytes // KEPT_FREE - self.device_bytes)

    @property
    def lower(self) -> dict[str, int]:
        """Bytes of the lower tiers, and how many of the host's may be pinned."""
        return {"host": self.host_bytes, "pinned": self.pinned_bytes, "disk": self.disk_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Checked knobs of plans. Attributes as in `Knobs` of run/options.py, and these.

    Attributes:
        follows: whether the least size follows the budget, as no size was given.
        modules: the existing modules that `include` and `exclude` select.
        time_limit_s: a planner that searches stops after this time with the best plan it has.
        objective: what plans are chosen by.
    """

    allow: tuple[Means, ...] = DEFAULT_MEANS
    min_size_bytes: int = MIN_SIZE_BYTES
    follows: bool = False
    planner: str | None = None
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    gds: bool = False
    managed_bytes: int = 0
    modules: Selection = ALL_MODULES
    time_limit_s: float = TIME_LIMIT_S
    objective: Objective = "time"

    @property
    def gradients(self) -> bool:
        """Whether gradients may be swapped."""
        return "gradient" in self.allow

    @property
    def parameters(self) -> bool:
        """Whether parameters may be swapped."""
        return "parameter" in self.allow

    @property
    def in_parts(self) -> bool:
        """Whether the steps of optimizers are carried out in parts, so that states or gradients may move."""
        return "state" in self.allow or "gradient" in self.allow

    def with_budget(self, budget_bytes: int) -> PlanRequest:
        """Return the request with a least size that follows the budget, if no size was given.

        Small models have small storages.
        """
        return replace(self, min_size_bytes=least_size(budget_bytes)) if self.follows else self

    def among(self, modules: Callable[[], Iterable[str]]) -> PlanRequest:
        """Return the request with the modules that exist now. A pattern may match any: no step has to call all."""
        if not (self.include or self.exclude):
            return self
        return replace(self, modules=selection(self.include, self.exclude, modules()))
