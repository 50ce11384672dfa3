"""The three trials: plain, plain under the limit, and elbowroom under the same limit."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elbowroom.demo import limited_run
from elbowroom.demo.limited_run import ChildOrder, LimitedTrial, Watcher
from elbowroom.demo.limits import CommandLimit, Kind, available_kind, hard_limit
from elbowroom.demo.trainer import RECORDS, TrainingOrder
from elbowroom.errors import ElbowroomError, UsageError
from elbowroom.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a demo.

    Attributes:
        shape_XYZ: voxels of the volume.
        steps: steps of each trial.
    """

    shape_XYZ: tuple[int, int, int]
    steps: int


SIZES = {
    "default": Size(shape_XYZ=(128, 96, 48), steps=5),
    "small": Size(shape_XYZ=(96, 64, 48), steps=4),
}

MIB = 2**20
SHARE = 0.35
"""The part that the limit leaves of the memory that plain training needs above the bare process."""

MOST_SHARE = 0.40
"""The most that the limit leaves of that memory, `STACKS_BYTES` included."""

MARGIN_BYTES = 96 * MIB
"""Bytes kept free below the limit for memory other than storages: scratch memory of the convolutions, code that the
first step loads, buffers of the disk tier, page tables. About two thirds of it were seen in use."""

STACKS_BYTES = 64 * MIB
"""Bytes that RLIMIT_DATA counts and a cgroup does not: stacks of 8 MiB per thread, nearly all of them unused."""

OBSERVED_STEPS = 2
"""Steps that elbowroom observes before its plan is final; timings of all trials leave them out."""


class DemoFailed(ElbowroomError):
    """A trial did not go as expected."""

    exit_code = 1


class Audience(Protocol):
    """Observer of the trials."""

    def watch(self, name: str) -> Watcher:
        """Note that a trial starts; return the function that gets its events."""
        ...

    def ended(self, name: str, trial: LimitedTrial) -> None:
        """Note that a trial has ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Settings of a demo."""

    folder: Path
    size: Size = SIZES["default"]
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """The three trials and the limit between them.

    Attributes:
        limit_kind: the kind of the limit.
        limit_bytes: bytes of the limit, as its kind counts.
        bare_bytes: bytes of the bare process, counted the same way.
        budget_bytes: elbowroom's budget: bytes of storages that may be allocated.
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
        """Elbowroom's step time as a multiple of plain PyTorch's, both without the observed steps."""
        plain_ns, within_ns = self.plain.step_ns(OBSERVED_STEPS), self.within.step_ns(OBSERVED_STEPS)
        return within_ns / plain_ns if plain_ns and within_ns else None

    @property
    def bit_equal(self) -> bool:
        """Whether elbowroom's losses and final weights are plain PyTorch's, bit by bit."""
        return self.within.has_numbers_of(self.plain)


def run(settings: DemoSettings, audience: Audience) -> DemoOutcome:
    """Run the demo.

    Args:
        settings: settings of the demo.
        audience: observer of the trials.

    Raises:
        UsageError: MONAI or nibabel is not installed.
        DemoFailed: plain training failed without a limit, or a trial failed for another reason than memory.
    """
    check_packages()
    prepare(settings.folder)
    kind = available_kind()
    plain = trial("plain", _order(settings, mode="plain"), None, audience)
    require(plain, "plain PyTorch without a limit", not plain.failed)
    bare_bytes, budget_bytes, limit_bytes = amounts(plain, kind)
    with hard_limit(limit_bytes, kind) as limit:
        limited = trial("limited", _order(settings, mode="plain", measure=False), limit, audience)
        require(limited, "plain PyTorch under the limit", limited.out_of_memory or not limited.failed)
        within = trial("within", _order(settings, mode="within", budget_bytes=budget_bytes), limit, audience)
        return DemoOutcome(
            limit_kind=kind,
            limit_bytes=limit.limit_bytes,
            bare_bytes=bare_bytes,
            budget_bytes=budget_bytes,
            plain=plain,
            limited=limited,
            within=within,
        )


def prepare(folder: Path) -> None:
    """Make the folder of a demo, without the records of an earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in RECORDS:
        (folder / f"{name}.json").unlink(missing_ok=True)


def trial(name: str, order: ChildOrder, limit: CommandLimit | None, audience: Audience) -> LimitedTrial:
    """Run a trial before its audience."""
    done = limited_run.run(order, limit, audience.watch(name))
    audience.ended(name, done)
    return done


def amounts(plain: LimitedTrial, kind: Kind) -> tuple[int, int, int]:
    """Compute the bytes of the bare process, of elbowroom's budget and of the limit from those of plain training.

    The limit is the bare process and `SHARE` of the memory that training needs above it. The budget counts storages
    only. It is the room above the bare process less `MARGIN_BYTES`, plus the storages of the bare process.
    """
    need = need_bytes(plain)
    # A cgroup does not count library files that are in the page cache already; RLIMIT_DATA counts address space.
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
    """Return the memory of plain training above the bare process (interpreter, libraries, weights and data)."""
    return plain.figure("peak_rss_bytes", "trained") - plain.figure("rss_bytes", "bare")


def peak_rss_bytes(trial: LimitedTrial) -> int:
    """Return the resident peak of the training alone if it ended; the step measured after it takes more."""
    trained = trial.figure("peak_rss_bytes", "trained")
    return trial.peak_rss_bytes if trained is None else trained


def check_packages() -> None:
    """Raise unless the packages are installed that the demo needs in addition to elbowroom."""
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


def require(done: LimitedTrial, name: str, went_well: bool) -> None:
    """Raise DemoFailed unless a trial went well."""
    if not went_well:
        raise DemoFailed(f"demo: {name}: {done.ending()}; what it wrote last:\n{done.output.strip()[-3000:]}")
