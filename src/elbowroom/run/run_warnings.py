"""Warnings of a run, each given once: a step that is not what its plan expects, or cannot be observed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from elbowroom.capture.recording.user_profile import WHOLE_STEPS
from elbowroom.notices import Once, warn_once
from elbowroom.units import format_bytes, format_exact_bytes

NO_STEP = (
    "elbowroom: no step of a training ended, as no optimizer stepped and no parameter changed after a backward: every "
    "large saved storage was swapped all the time, and nothing was planned"
)

TRAINS_APART = (
    "elbowroom: an optimizer steps in a process that was forked from this one: nothing moves there, and no budget "
    "holds it. Train in the process that was started, or open elbowroom.within in the new one"
)

TRAINS_IN_A_THREAD = (
    "elbowroom: an optimizer steps in another thread than the one in which the run began: nothing moves there, and no "
    "budget holds it. Train in that thread, or open elbowroom.within in the other one"
)

PROFILED = (
    "elbowroom: torch's profiler is in use, and only one can be: {then}. Start it after the third step, such as with "
    "schedule=torch.profiler.schedule(wait=3, warmup=1, active=2)"
)

MAKES_WAY = (
    f"in its first {WHOLE_STEPS} steps every large saved storage is swapped and nothing is planned. If it still runs "
    "then, it is put aside for the steps that a plan is made from, mostly two: those are missing in it, and a trace "
    "that it exports begins after them"
)

STAYS = (
    "no step can be observed, so that every large saved storage is swapped in each step until the profiler stops, as a "
    "plan for the least budget would, and nothing is planned. The memory figures were read where storages are saved "
    "and read: between those, more may be held"
)

OBSERVED_AGAIN = "the rest of the step is swapped whole, and the next such step is observed again"


def warn_unplanned(once: Once, inputs: str, budget_bytes: int, helps: str, *, is_planned: bool) -> None:
    """Warn once per run that steps with these inputs follow no plan.

    Args:
        once: what was warned of.
        inputs: the inputs of such a step.
        budget_bytes: the budget.
        helps: a sentence on what would help.
        is_planned: whether plans were made, and none is within the budget; if not, memory ran out in observed steps.
    """
    why = (
        f"no plan that was simulated holds steps of {inputs} within {format_bytes(budget_bytes)}"
        if is_planned
        else f"memory ran out within {format_bytes(budget_bytes)} in each observed step of {inputs}, so it has no plan"
    )
    warn_once(
        once,
        "unplanned",
        f"elbowroom: {why}, and steps without one have held it so far: storages leave in each of them as early as they "
        f"can, and come back where they are read. {helps}",
    )


def to_observe(what: str, needed_bytes: int) -> str:
    """Return a sentence on the least budget, or hard limit, with which memory would not have run out where it did."""
    return f"With a {what} of at least {format_exact_bytes(needed_bytes)} a step may be observed, and then planned"


def help_without_limit(least_bytes: int) -> str:
    """Return a sentence on the budget that would do: the least that a plan was found to meet, or 0."""
    return (
        f"A budget of {format_exact_bytes(least_bytes)} would do" if least_bytes else "A larger budget makes it faster"
    )


@final
class Surprises:
    """Warns once per run of each sort of surprise."""

    def __init__(self) -> None:
        self._once = Once()

    def save(self, n: int, expected: Sequence[tuple[int, str]], found: tuple[int, str]) -> None:
        """Warn that the n-th saved storage has other (bytes, dtype) than expected, or that no more was expected."""
        wanted = f"{expected[0][0]} bytes of {expected[0][1]}" if expected else "nothing more"
        self._warn(f"saved storage {n} of a step has {found[0]} bytes of {found[1]} where its plan expects {wanted}")

    def profiled(self, *, makes_way: bool) -> None:
        """Warn that a step is to be observed while the user's profiler runs.

        Args:
            makes_way: whether the user's profiler is put aside after the first steps.
        """
        warn_once(self._once, "profiler", PROFILED.format(then=MAKES_WAY if makes_way else STAYS))

    def lies_there(self, more_bytes: int) -> None:
        """Warn that a step begins with more bytes on the device than when its plan was made."""
        warn_once(
            self._once,
            "more",
            f"elbowroom: {format_bytes(more_bytes)} more lie on the device where a step begins than when the first "
            "of its kind did, such as what an evaluation keeps; its plan fits the budget without them, so as much "
            "more than that may be held. Free them, or give a larger budget",
        )

    def memory(self, excess_bytes: int, *, of_process: bool) -> None:
        """Warn that a step that was not checked has held more bytes than the budget allows.

        Args:
            excess_bytes: bytes beyond the budget.
            of_process: whether these are resident bytes of the process, of which tensors may be a part only.
        """
        more = f"held {format_bytes(excess_bytes)} more than the budget allows"
        self._warn(
            f"the process {more} since it was last looked at: in a step that begins as those before it, between two "
            "steps, or in memory of other libraries such as NumPy, which looks the same there"
            if of_process
            else f"a step that begins as those before it {more}",
            "what autograd saves in the next ones is compared with the plan again",
        )

    def stays(self, tensor: torch.Tensor, device: torch.device) -> str:
        """Warn of a large saved tensor that stays where it is. Returns its key in `RunFigures.passed`.

        Args:
            tensor: the saved tensor.
            device: the device of the budget.
        """
        if tensor.device != device:
            self._elsewhere(tensor.device, device)
            return str(tensor.device)
        self._subclass(type(tensor).__name__)
        return type(tensor).__name__

    def _subclass(self, name: str) -> None:
        """Warn that saved tensors of this class stay on the device."""
        if "subclass" not in self._once:  # for each such tensor
            warn_once(
                self._once,
                "subclass",
                f"elbowroom: large saved tensors of class {name} stay on the device, as nothing says which bytes are "
                "behind them (it has a __torch_dispatch__, but no __tensor_flatten__ and __tensor_unflatten__): the "
                "step may need more than its budget. Give a budget larger by them; the logger elbowroom counts them",
            )

    def _elsewhere(self, device: torch.device, budget_of: torch.device) -> None:
        """Warn that saved tensors on this device stay there, as the budget is for another one."""
        if "device" not in self._once:  # for each such tensor
            warn_once(
                self._once,
                "device",
                f"elbowroom: large saved tensors on {device} stay there, as the budget is for {budget_of}; where "
                f"{device} is the one that is short of memory, give within(..., device={str(device)!r}); the logger "
                "elbowroom counts them",
            )

    def differs(self, what: str) -> None:
        """Warn that something is not what the plan expects; `what` says it in words."""
        self._warn(what)

    def rebuilt(self, count: int) -> None:
        """Warn of `count` storages that were not rebuilt with the same bits, in a step that proves its recomputes."""
        self._warn(
            f"{count} storages of a step did not come out the same when they were recomputed",
            "the copies that were kept took their place, and they are not recomputed again",
        )

    def _warn(self, what: str, then: str = OBSERVED_AGAIN) -> None:
        warn_once(self._once, "step", f"elbowroom: {what}; {then}; room.steps counts them")
