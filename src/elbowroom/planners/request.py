"""What a run asks of its planners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from elbowroom.planners.problem import DEFAULT_MEANS, Means
from elbowroom.step.least_size import MIN_SIZE_BYTES, least_size
from elbowroom.step.module_selection import EVERY, Selection, selection


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What plans of a run may do, checked. Attributes as in `Knobs` of run/options.py, but that `gradients` are apart.

    Attributes:
        follows: no least size was given: it follows the budget.
        modules: what of the modules that exist `include` and `exclude` name.
    """

    allow: tuple[Means, ...] = DEFAULT_MEANS
    gradients: bool = False
    min_size_bytes: int = MIN_SIZE_BYTES
    follows: bool = False
    planner: str | None = None
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    gds: bool = False
    managed_bytes: int = 0
    modules: Selection = EVERY

    def with_budget(self, budget_bytes: int) -> PlanRequest:
        """With a least size that follows the budget, where none was given: small models have small storages."""
        return replace(self, min_size_bytes=least_size(budget_bytes)) if self.follows else self

    def among(self, modules: Callable[[], Iterable[str]]) -> PlanRequest:
        """With the modules that exist now. Patterns may match any: not every kind of step calls all of them."""
        if not (self.include or self.exclude):
            return self
        return replace(self, modules=selection(self.include, self.exclude, modules()))
