"""Study captures: the script of a study on virtual GPUs, with values of an argument.

Captures are kept for the next study. Those that a study will need soon run while it looks at another one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from elbowroom.answers.study_points import StudyCase, with_memory
from elbowroom.cli import choosing, scripts
from elbowroom.cli.captures_ahead import CaptureKey, CapturesAhead
from elbowroom.planners import means_of, parts_for
from elbowroom.step.least_size import least_size
from elbowroom.watch import Watch

if TYPE_CHECKING:
    from elbowroom.capture.script.script_knobs import Knob
    from elbowroom.machine import Machine
    from elbowroom.trace import Trace


@final
class StudyCaptures:
    """Captures of one script, each made once. Leaving it ends those that still run.

    Args:
        script: the script.
        arguments: words of the command.
        watch: shows progress, and limits the time.
        knob: what is varied; None for the script as it is.
    """

    def __init__(
        self, script: scripts.Script, arguments: argparse.Namespace, watch: Watch, knob: Knob | None = None
    ) -> None:
        self._script = script
        self._arguments = arguments
        self._watch = watch
        self._knob = knob
        self._captures = CapturesAhead(self._capture)

    def __enter__(self) -> Self:
        self._captures.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, place: TracebackType | None
    ) -> None:
        self._captures.__exit__(kind, problem, place)

    def case(self, machine: Machine, value: int, *, memory_bytes: int = 0, least_bytes: int = 0) -> StudyCase:
        """Return the case of a GPU, a value or a budget.

        Args:
            machine: the GPU that the script finds.
            value: value of the case; it is that of the knob if there is one.
            memory_bytes: memory that the device has in this case; 0 for its own.
            least_bytes: the least budget that the same captures are planned for; 0 for the memory of the case.
        """
        memory_bytes = memory_bytes or machine.tiers[0].capacity_bytes
        turned = None if self._knob is None else value
        plain = (machine, turned, None)
        parts = (machine, turned, least_size(least_bytes or memory_bytes))
        return StudyCase(
            value=value,
            machine=with_memory(machine, memory_bytes),
            trace=partial(self._captures.get, plain),
            in_parts=partial(self._captures.get, parts),
            begin=lambda planned: self._captures.begin(parts if planned else plain),
        )

    def _capture(self, key: CaptureKey, look: Callable[[], None]) -> Trace:
        """Capture the script.

        Args:
            key: the GPU, the value of the knob (None without one), and with optimizers' steps in parts the least size
                of a state that moves (None for steps as they are).
            look: is called now and then, and ends the capture if it raises.

        Raises:
            CaptureError: it could not be captured.
            TimeOver: the time is over.
        """
        machine, value, least_bytes = key
        given, where = self._arguments, f"on a virtual {machine.name}"
        what = f"{self._knob.name} = {value} {where}" if self._knob and value is not None else where
        turned = self._knob.turned(self._script.arguments, value) if self._knob and value is not None else None
        means = means_of(choosing.allowed(given.allow))
        parts = {} if least_bytes is None else parts_for(means, least_bytes)
        options = {"what": what, "turned": turned, "kept": True, "on_wait": look, **parts}
        return scripts.captured_in_time(self._script, machine, given, self._watch, failing=what, **options)
