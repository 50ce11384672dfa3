"""The trials of `demo --weights`: weights, gradients and optimizer states are three times a hard limit of RAM.

The limit is a third of these bytes. Plain PyTorch cannot meet it, elbowroom does. A smaller model of the same kind then
trains plain without a limit, and with elbowroom under the same one, so that both can be compared bit by bit.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elbowroom.demo.limited_run import LimitedTrial
from elbowroom.demo.limits import Kind, available_kind, hard_limit
from elbowroom.demo.main import Audience, prepare, require, trial
from elbowroom.demo.weights_trainer import WeightsOrder
from elbowroom.errors import UsageError

TIMES = 3
"""Weights, gradients and optimizer states divided by the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSize:
    """Size of the demo.

    Attributes:
        width: features of both models.
        depth: blocks of the model.
        small_depth: blocks of the smaller model.
        steps: steps of each trial.
    """

    width: int
    depth: int
    small_depth: int
    steps: int


# The optimizer's part of the largest weight holds six times its bytes: the weight, its gradient, two moments and two
# temporary tensors. The limit leaves a quarter of its bytes for storages, the rest is the process. So a smaller size
# has a smaller weight too. One with many blocks leaves no room to read what was recorded of a step.
WEIGHTS_SIZES = {
    "default": WeightsSize(width=1024, depth=8, small_depth=2, steps=12),
    "small": WeightsSize(width=832, depth=10, small_depth=2, steps=6),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSettings:
    """Settings of the demo."""

    folder: Path
    size: WeightsSize = WEIGHTS_SIZES["default"]
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOutcome:
    """The four trials and the limit.

    Attributes:
        limit_kind: the kind of the limit.
        limit_bytes: its bytes.
        training_bytes: bytes of weights, gradients and optimizer states of the model.
        small_training_bytes: the same of the smaller model.
        limited: plain PyTorch under the limit.
        within: elbowroom under the limit.
        small_plain: plain PyTorch without a limit, with the smaller model.
        small_within: elbowroom under the limit, with the smaller model.
    """

    limit_kind: Kind
    limit_bytes: int
    training_bytes: int
    small_training_bytes: int
    limited: LimitedTrial
    within: LimitedTrial
    small_plain: LimitedTrial
    small_within: LimitedTrial

    @property
    def loss_fell(self) -> bool:
        """Whether the last third of the losses is lower on average than the first third."""
        losses = self.within.losses
        count = len(losses) // 3
        return count > 0 and sum(losses[-count:]) < sum(losses[:count])

    @property
    def bit_equal(self) -> bool:
        """Whether the smaller model has the losses and final weights of plain PyTorch, bit by bit."""
        return self.small_within.has_numbers_of(self.small_plain)

    @property
    def as_it_should(self) -> bool:
        """Whether the limit stopped plain PyTorch, and elbowroom trained under it with the same numbers."""
        done = not self.within.failed and not self.small_within.failed
        return self.limited.failed and done and self.loss_fell and self.bit_equal


def run(settings: WeightsSettings, audience: Audience) -> WeightsOutcome:
    """Run the demo.

    Args:
        settings: settings of the demo.
        audience: observer of the trials.

    Raises:
        UsageError: torch is not installed.
        DemoFailed: plain training failed without a limit, or failed under it for another reason than memory.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError("demo: torch not installed; the demo trains with it; install it with: pip install torch")
    from elbowroom.demo import weights_job

    size = settings.size
    prepare(settings.folder)
    needed_bytes, small_bytes = (
        weights_job.training_bytes(size.width, depth) for depth in (size.depth, size.small_depth)
    )
    small_plain = trial("small_plain", _order(settings, size.small_depth, mode="plain"), None, audience)
    require(small_plain, "plain PyTorch without a limit", not small_plain.failed)
    kind = available_kind()
    with hard_limit(needed_bytes // TIMES, kind) as limit:
        limited = trial("limited", _order(settings, size.depth, mode="plain"), limit, audience)
        require(limited, "plain PyTorch under the limit", limited.out_of_memory or not limited.failed)
        within = trial("within", _order(settings, size.depth, mode="within", records=True), limit, audience)
        small_within = trial("small_within", _order(settings, size.small_depth, mode="within"), limit, audience)
        return WeightsOutcome(
            limit_kind=kind,
            limit_bytes=limit.limit_bytes,
            training_bytes=needed_bytes,
            small_training_bytes=small_bytes,
            limited=limited,
            within=within,
            small_plain=small_plain,
            small_within=small_within,
        )


def _order(settings: WeightsSettings, depth: int, **more: Any) -> WeightsOrder:
    folder, size = os.fspath(settings.folder.resolve()), settings.size
    return WeightsOrder(width=size.width, depth=depth, seed=settings.seed, steps=size.steps, folder=folder, **more)
