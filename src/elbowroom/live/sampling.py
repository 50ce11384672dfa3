"""Sampling: a thread that looks at a run once a second, and keeps the last minutes.

The thread reads values and changes nothing of the run. A step is counted when its figures appear, so that the training
has nothing to do for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, final

from elbowroom.notices import LOGGER

if TYPE_CHECKING:
    from elbowroom.run.run_now import RunNow

EVERY_S = 1.0
"""Seconds between two looks."""
KEPT = 900
"""Looks that are kept: a quarter of an hour."""


class LivePoint(NamedTuple):
    """One look, for a curve. Seconds since the first look, bytes and nanoseconds."""

    at_s: float
    device_bytes: int
    resident_bytes: int
    lower_bytes: int
    steps: int
    step_ns: int
    stall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFigures:
    """All that is shown of a run.

    Attributes:
        script: the script, as it was named.
        running_s: seconds since the first look.
        now: the run at the last look.
        last: what the last step moved, by the names of `StepFigures`; empty before it.
        totals: sums over all steps.
    """

    script: str
    running_s: float
    now: RunNow
    last: dict[str, Any] = field(default_factory=dict[str, Any])
    totals: dict[str, int] = field(default_factory=dict[str, int])

    def as_json(self) -> dict[str, Any]:
        """Return these figures as an object of JSON."""
        now = {each.name: getattr(self.now, each.name) for each in fields(self.now) if each.name != "recent"}
        return {
            "script": self.script,
            "running_s": self.running_s,
            **now,
            "lower_bytes": dict(self.now.lower_bytes),
            "last": self.last,
            "totals": self.totals,
        }


OF_STEP = ("stall_ns", "swapped_out_bytes", "swapped_back_bytes", "recomputed_bytes", "mismatches")
"""Names of the figures of a step that are shown and summed up."""


@final
class Sampler:
    """Looks at a run once a second.

    Args:
        look: returns the run at this moment. It may fail while the run changes; then the look before stays.
        script: the script, as it was named.
        shown: called with the figures after each look, such as to draw them.

    Attributes:
        figures: those of the last look.
        points: the looks of the last minutes.
    """

    def __init__(self, look: Callable[[], RunNow], script: str, shown: Callable[[LiveFigures], None]) -> None:
        self._look, self._script, self._shown = look, script, shown
        self._began_s = time.monotonic()
        self._seen: object = None
        self._totals = dict.fromkeys(OF_STEP, 0)
        self._steps = 0
        self.points: deque[LivePoint] = deque(maxlen=KEPT)
        self.figures = self._figures_of(look())
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="elbowroom-live", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End. The last figures stay."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self.take()

    def _sample(self) -> None:
        while not self._done.wait(EVERY_S):
            self.take()
            with contextlib.suppress(OSError):  # a terminal that is gone
                self._shown(self.figures)

    def take(self) -> None:
        """Look once."""
        try:
            self.figures = self._figures_of(self._look())
        except Exception as problem:  # noqa: BLE001 - the training changes what is looked at; the next look comes
            LOGGER.debug("a look at the run failed: %s", problem)

    def _figures_of(self, now: RunNow) -> LiveFigures:
        self._count(now)
        self._steps = max(self._steps, now.steps)  # a look in the middle of a count may see less
        last: Any = now.recent[-1] if now.recent else None
        at_s = time.monotonic() - self._began_s
        self.points.append(
            LivePoint(
                at_s=at_s,
                device_bytes=now.device_bytes,
                resident_bytes=now.resident_bytes,
                lower_bytes=sum(now.lower_bytes.values()),
                steps=self._steps,
                step_ns=now.last_step_ns or 0,
                stall_ns=now.stall_ns,
            )
        )
        return LiveFigures(
            script=self._script,
            running_s=at_s,
            now=now,
            last={name: getattr(last, name) for name in OF_STEP} if last is not None else {},
            totals={"steps": self._steps, **self._totals},
        )

    def _count(self, now: RunNow) -> None:
        """Sum up the steps that have ended since the last look: those behind the last one that was seen."""
        new: list[Any] = []
        for step in reversed(now.recent):
            if step is self._seen:
                break
            new.append(step)
        for step in new:
            for name in OF_STEP:
                self._totals[name] += getattr(step, name)
        if new:
            self._seen = new[0]
