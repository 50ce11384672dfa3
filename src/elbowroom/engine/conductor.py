"""Interfaces through which the engine asks the run: for the plan of the present step, and for its recorder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from elbowroom.engine.entries import Entry
from elbowroom.machine import TierName
from elbowroom.step.schedule import Action, Schedule
from elbowroom.trace import Category


class PartsObserver(Protocol):
    """Records the parts of optimizers' steps, and the accumulations of gradients."""

    def part_begins(self) -> None:
        """Note that a part of an optimizer's step, or an accumulation, begins."""

    def part_ends(
        self, states: Iterable[tuple[torch.UntypedStorage, torch.dtype]], category: Category = "optimizer_state"
    ) -> None:
        """Note that it ends, and needed these storages on the device: states of the part, or the gradient."""

    def released(self, gradients: Iterable[tuple[torch.UntypedStorage, torch.dtype]]) -> None:
        """Note that nothing reads these gradients after the part that has just ended."""

    def absent(self, entry: Entry, dtype: torch.dtype) -> None:
        """Note a gradient that is away where the recording begins."""

    def classify(self, category: Category, tensors: Iterable[torch.Tensor]) -> None:
        """Note what the storages of these tensors are for."""

    def others(self, storages: Iterable[torch.UntypedStorage]) -> None:
        """Note states and gradients on the device that may leave before the step, if nothing in it uses them."""

    def used(self, parameters: Iterable[tuple[torch.UntypedStorage, torch.dtype]]) -> None:
        """Note that the op that begins uses the bytes of these parameters."""

    def asked(self, storage: torch.UntypedStorage) -> None:
        """Note that this gradient was read between backward and the optimizer's step."""


class StepPlan(Protocol):
    """Plan of a step, as the engine needs it.

    Attributes:
        in_parts: whether the steps of optimizers are carried out in parts.
        schedule: the compiled plan.
        tier_of: window -> the tier that it goes to.
    """

    @property
    def in_parts(self) -> bool: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def tier_of(self) -> Mapping[int, TierName]: ...


class Conductor(ABC):
    """What optimizer states and gradients ask of the run at the borders of parts."""

    @abstractmethod
    def known(self) -> StepPlan | None:
        """Return the plan of the step; None if it is observed."""

    @abstractmethod
    def recorder(self) -> PartsObserver | None:
        """Return the recorder of the step; None if it is not recorded."""

    @abstractmethod
    def aside(self) -> AbstractContextManager[None]:
        """Return a context for the engine's own work, which is not part of the step."""

    @abstractmethod
    def act(self, action: Action | None) -> None:
        """Carry out the plan's action at a tick."""

    @abstractmethod
    def surprised_by(self, what: str) -> None:
        """Treat the rest of the step as unknown: `what`, in words, is not what the plan expects."""
