"""What people are told where a step is not what its plan expects: once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import final

import torch

from elbowroom.capture.user_profile import WHOLE_STEPS
from elbowroom.units import format_bytes

NO_STEP = (
    "elbowroom: no step of a training ended, as no optimizer stepped and no parameter changed after a backward: every "
    "large saved storage was swapped all the time, and nothing was planned"
)

PROFILED = (
    "elbowroom: torch's profiler is in use, and only one can be: {then}. Start it after the third step, such as with "
    "schedule=torch.profiler.schedule(wait=3, warmup=1, active=2). Said once"
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


@final
class Surprises:
    """Warns of the first."""

    def __init__(self) -> None:
        self._warned = False
        self._told_of_subclass = self._told_of_device = self._told_of_more = self._told_of_profiler = False

    def save(self, n: int, expected: Sequence[tuple[int, str]], found: tuple[int, str]) -> None:
        """The n-th saved storage has other (bytes, dtype) than expected, or none was expected any more."""
        wanted = f"{expected[0][0]} bytes of {expected[0][1]}" if expected else "nothing more"
        self._warn(f"saved storage {n} of a step has {found[0]} bytes of {found[1]} where its plan expects {wanted}")

    def profiled(self, *, makes_way: bool) -> None:
        """A step is to be observed while torch's profiler is in the user's use; `makes_way`: for its first steps."""
        if not self._told_of_profiler:
            self._told_of_profiler = True
            warnings.warn(PROFILED.format(then=MAKES_WAY if makes_way else STAYS), RuntimeWarning, stacklevel=6)

    def lies_there(self, more_bytes: int) -> None:
        """Where a step begins, so much more lies on the device than when its plan was made."""
        if not self._told_of_more:
            self._told_of_more = True
            warnings.warn(
                f"elbowroom: {format_bytes(more_bytes)} more lie on the device where a step begins than when the first "
                "of its kind did, such as what an evaluation keeps; its plan fits the budget without them, so as much "
                "more than that may be held. Free them, or give a larger budget. Said once",
                RuntimeWarning,
                stacklevel=6,
            )

    def memory(self, excess_bytes: int) -> None:
        """A step that was not checked has held so much more than the budget allows."""
        self._warn(
            f"a step that begins as those before it held {format_bytes(excess_bytes)} more than the budget allows",
            "what autograd saves in the next ones is compared with the plan again",
        )

    def stays(self, tensor: torch.Tensor, device: torch.device) -> str:
        """A large saved tensor stays where it is, in a run with a budget for this device; what it is counted as."""
        if tensor.device != device:
            self._elsewhere(tensor.device, device)
            return str(tensor.device)
        self._subclass(type(tensor).__name__)
        return type(tensor).__name__

    def _subclass(self, name: str) -> None:
        """Saved tensors of this class stay on the device."""
        if not self._told_of_subclass:
            self._told_of_subclass = True
            warnings.warn(
                f"elbowroom: large saved tensors of class {name} stay on the device, as nothing says which bytes are "
                "behind them (it has a __torch_dispatch__, but no __tensor_flatten__ and __tensor_unflatten__): the "
                "step may need more than its budget. Said once; room.passed counts them",
                RuntimeWarning,
                stacklevel=6,
            )

    def _elsewhere(self, device: torch.device, budget_of: torch.device) -> None:
        """Saved tensors on this device stay there, as the budget is another one's."""
        if not self._told_of_device:
            self._told_of_device = True
            warnings.warn(
                f"elbowroom: large saved tensors on {device} stay there, as the budget is for {budget_of}; where "
                f"{device} is the one that is short of memory, give within(..., device={str(device)!r}). Said once; "
                "room.passed counts them",
                RuntimeWarning,
                stacklevel=6,
            )

    def differs(self, what: str) -> None:
        """Something, in words, is not what the plan expects."""
        self._warn(what)

    def rebuilt(self, count: int) -> None:
        """So many storages were not rebuilt with the same bits, in a step that proves its recomputes."""
        self._warn(
            f"{count} storages of a step did not come out the same when they were recomputed",
            "the copies that were kept took their place, and they are not recomputed again",
        )

    def _warn(self, what: str, then: str = OBSERVED_AGAIN) -> None:
        if not self._warned:
            self._warned = True
            text = f"elbowroom: {what}; {then}. Said once; room.steps counts them"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
