"""What the engine asks of who decides: the plan of the step that runs, and what records its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from elbowroom.machine import TierName
from elbowroom.step.schedule import Action, Schedule
from elbowroom.trace import Category


class PartsObserver(Protocol):
    """Records the parts of optimizers' steps, and the accumulations of gradients."""

    def part_begins(self) -> None:
        """A part of an optimizer's step, or an accumulation, begins here."""

    def part_ends(
        self, states: Iterable[tuple[torch.UntypedStorage, torch.dtype]], category: Category = "optimizer_state"
    ) -> None:
        """It ends, and had to have these states on the device; or an accumulation, and this gradient."""

    def asked(self, storage: torch.UntypedStorage) -> None:
        """This gradient was read between backward and the optimizer's step."""


class StepPlan(Protocol):
    """What is to be done in a step.

    Attributes:
        in_parts: whether the steps of optimizers are carried out in parts.
        schedule: the compiled plan.
        tier_of: where what is away goes, by window.
    """

    @property
    def in_parts(self) -> bool: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def tier_of(self) -> Mapping[int, TierName]: ...


class Conductor(ABC):
    """What the states ask of the room at the borders of parts."""

    @abstractmethod
    def known(self) -> StepPlan | None:
        """What the step is taken for; None where it is observed."""

    @abstractmethod
    def recorder(self) -> PartsObserver | None:
        """What records the step."""

    @abstractmethod
    def aside(self) -> AbstractContextManager[None]:
        """Around the runtime's own work, which is not part of the step."""

    @abstractmethod
    def act(self, action: Action | None) -> None:
        """Do what the plan says to do at a tick."""

    @abstractmethod
    def surprised_by(self, what: str) -> None:
        """Something, in words, is not what the plan expects: the rest of the step is observed."""
