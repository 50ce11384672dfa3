"""The three trials: plain, plain under the limit, and elbowroom under the same limit."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elbowroom.demo import limited_run
from elbowroom.demo.limited_run import LimitedTrial, Watcher
from elbowroom.demo.limits import CommandLimit, Kind, available_kind, hard_limit
from elbowroom.demo.trainer import TrainingOrder
from elbowroom.errors import ElbowroomError, UsageError
from elbowroom.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much work a demo is.

    Attributes:
        shape_XYZ: voxels of the volume.
        steps: of each trial.
    """

    shape_XYZ: tuple[int, int, int]
    steps: int


SIZES = {
    "default": Size(shape_XYZ=(128, 96, 48), steps=5),
    "small": Size(shape_XYZ=(96, 64, 48), steps=4),
}

MIB = 2**20
SHARE = 0.35
"""Of what plain training needs above the bare process, the part that the limit leaves."""

MOST_SHARE = 0.40
"""The limit leaves no more than this, `STACKS_BYTES` included."""

MARGIN_BYTES = 96 * MIB
"""Kept free below the limit for what is no storage: scratch memory of the convolutions, code that the first step loads,
buffers of the disk tier, page tables. About two thirds of it were seen in use."""

STACKS_BYTES = 64 * MIB
"""What RLIMIT_DATA counts and a cgroup does not: stacks of 8 MiB per thread that nearly nothing of is used."""

OBSERVED_STEPS = 2
"""Steps that elbowroom observes before its plan is final; timings of all trials leave them out."""


class DemoFailed(ElbowroomError):
    """A trial did not go as the demo shows it."""

    exit_code = 1


class Audience(Protocol):
    """Who is told how the trials go."""

    def watch(self, name: str) -> Watcher:
        """A trial starts; gives who is told its events."""
        ...

    def ended(self, name: str, trial: LimitedTrial) -> None:
        """A trial has ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What a demo is told."""

    folder: Path
    size: Size = SIZES["default"]
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """The three trials and the limit between them.

    Attributes:
        limit_kind: what set the limit.
        limit_bytes: of the limit, as its kind counts.
        bare_bytes: what the bare process holds, counted the same way.
        budget_bytes: given to elbowroom: storages that may be allocated.
    """

    limit_kind: Kind
    limit_bytes: int
    bare_bytes: int
    budget_bytes: int
    plain: LimitedTrial
    limited: LimitedTrial
    within: LimitedTrial

    @property
    def as_it_should(self) -> bool:
        """Whether the limit stopped plain PyTorch and elbowroom finished under it with the same numbers."""
        return self.limited.failed and not self.within.failed and self.bit_equal

    @property
    def step_ratio(self) -> float | None:
        """Elbowroom's step time to plain PyTorch's, the observed steps left out of both."""
        plain_ns, within_ns = self.plain.step_ns(OBSERVED_STEPS), self.within.step_ns(OBSERVED_STEPS)
        return within_ns / plain_ns if plain_ns and within_ns else None

    @property
    def bit_equal(self) -> bool:
        """Whether elbowroom's losses and final weights are plain PyTorch's, bit by bit."""
        weights = [of.figure("weights_sha256", "trained") for of in (self.plain, self.within)]
        return self.plain.losses == self.within.losses and weights[0] is not None and weights[0] == weights[1]


def run(settings: DemoSettings, audience: Audience) -> DemoOutcome:
    """Run the demo.

    Args:
        settings: what it is told.
        audience: is told how the trials go.

    Raises:
        UsageError: MONAI or nibabel is not installed.
        DemoFailed: plain training failed without a limit, or a trial failed for another reason than memory.
    """
    check_packages()
    settings.folder.mkdir(parents=True, exist_ok=True)
    kind = available_kind()
    plain = _trial("plain", _order(settings, mode="plain"), None, audience)
    _require(plain, "plain PyTorch without a limit", not plain.failed)
    bare_bytes, budget_bytes, limit_bytes = amounts(plain, kind)
    with hard_limit(limit_bytes, kind) as limit:
        limited = _trial("limited", _order(settings, mode="plain", measure=False), limit, audience)
        _require(limited, "plain PyTorch under the limit", limited.out_of_memory or not limited.failed)
        within = _trial("within", _order(settings, mode="within", budget_bytes=budget_bytes), limit, audience)
        return DemoOutcome(
            limit_kind=kind,
            limit_bytes=limit.limit_bytes,
            bare_bytes=bare_bytes,
            budget_bytes=budget_bytes,
            plain=plain,
            limited=limited,
            within=within,
        )


def _trial(name: str, order: TrainingOrder, limit: CommandLimit | None, audience: Audience) -> LimitedTrial:
    done = limited_run.run(order, limit, audience.watch(name))
    audience.ended(name, done)
    return done


def amounts(plain: LimitedTrial, kind: Kind) -> tuple[int, int, int]:
    """Bytes of the bare process, of elbowroom's budget and of the limit, from what plain training took.

    The limit is the bare process and `SHARE` of what training needs above it. The budget counts storages only: it is
    what the limit leaves above the bare process less `MARGIN_BYTES`, and the storages that the bare process holds.
    """
    need = need_bytes(plain)
    # A cgroup is not charged for library files that are in the page cache already; RLIMIT_DATA counts address space.
    bare_bytes = plain.figure("data_bytes" if kind == "RLIMIT_DATA" else "anonymous_bytes", "bare")
    stacks_bytes = STACKS_BYTES if kind == "RLIMIT_DATA" else 0
    room = min(int(need * SHARE) + stacks_bytes, int(need * MOST_SHARE))
    taken = MARGIN_BYTES + stacks_bytes
    if room <= taken:
        raise DemoFailed(
            f"demo: given a limit that leaves {format_bytes(room)} above the bare process; allowed is more than the "
            f"{format_bytes(taken)} kept free for what is no storage; use a larger --size"
        )
    return bare_bytes, plain.figure("allocated_bytes", "bare") + room - taken, bare_bytes + room


def need_bytes(plain: LimitedTrial) -> int:
    """What plain training needs above the bare process: interpreter, libraries, weights and data."""
    return plain.figure("peak_rss_bytes", "trained") - plain.figure("rss_bytes", "bare")


def peak_rss_bytes(trial: LimitedTrial) -> int:
    """Of the training alone where it came to its end; the step that is measured after it takes more."""
    trained = trial.figure("peak_rss_bytes", "trained")
    return trial.peak_rss_bytes if trained is None else trained


def check_packages() -> None:
    """Raise unless what the demo needs beside elbowroom is there."""
    missing = [name for name in ("monai", "nibabel", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"demo: {' and '.join(missing)} not installed; the demo trains MONAI's 3D U-Net on nibabel's brain MRI; "
            "install them with: pip install 'elbowroom[demo]'"
        )


def _order(settings: DemoSettings, **more: Any) -> TrainingOrder:
    folder = os.fspath(settings.folder.resolve())
    return TrainingOrder(
        pipe=-1, shape_XYZ=settings.size.shape_XYZ, seed=settings.seed, steps=settings.size.steps, folder=folder, **more
    )


def _require(done: LimitedTrial, name: str, went_well: bool) -> None:
    if not went_well:
        raise DemoFailed(f"demo: {name}: {done.ending()}; what it wrote last:\n{done.output.strip()[-3000:]}")
