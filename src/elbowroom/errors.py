"""Every error elbowroom raises on purpose.

    ElbowroomError
    ├── FormatError            a record's file is not what its specification says, or cannot be read or written
    ├── InvalidRecord          a record was built from values that contradict each other
    ├── InvalidPlan            a plan does not fit its trace, or would read a storage while it is away
    ├── Infeasible             no plan meets the budget; carries the least feasible one
    ├── CaptureError           a step could not be recorded
    ├── TimeOver               a search had no answer yet when its time was over
    ├── RecomputeFailed        a dropped storage could not be rebuilt with the same bits; no optimizer stepped with it
    ├── DeviceLost             the device does not answer any more in this process
    ├── UsageError             an argument of a command or a call is not allowed
    └── TierError              a tier could not take or give back bytes
        ├── TierFull           no space left on it
        └── TierFailed         a read or a write failed or came up short

Each message says what was given, what is allowed and what to do next. The command line prints the message and exits
with `exit_code`.
"""

from __future__ import annotations

import typing
from typing import Any


class ElbowroomError(Exception):
    """Base of all errors of this package."""

    exit_code = 2

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the attributes, as `__init__` may have more arguments than the message."""
        return _with_attributes, (type(self), self.args, vars(self))


class FormatError(ElbowroomError):
    """A file could not be read as the record it should hold, or could not be written."""


class InvalidRecord(ElbowroomError, ValueError):
    """A record was built from values that are not allowed."""


class InvalidPlan(ElbowroomError):
    """A plan contradicts its trace."""


class Infeasible(ElbowroomError):
    """No plan of the planner meets the budget.

    Attributes:
        budget_bytes: the budget that was given.
        least_feasible_bytes: the smallest budget that the planner can meet.
        counts_reserved: whether both count reserved bytes, and not only allocated ones.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, budget_bytes: int, least_feasible_bytes: int, counts_reserved: bool = False
    ) -> None:
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.least_feasible_bytes = least_feasible_bytes
        self.counts_reserved = counts_reserved

    def reworded(
        self, message: str, *, least_feasible_bytes: int | None = None, counts_reserved: bool | None = None
    ) -> Infeasible:
        """Return a new error with another message, and another least or kind of bytes where these are given."""
        return Infeasible(
            message,
            budget_bytes=self.budget_bytes,
            least_feasible_bytes=self.least_feasible_bytes if least_feasible_bytes is None else least_feasible_bytes,
            counts_reserved=self.counts_reserved if counts_reserved is None else counts_reserved,
        )


class CaptureError(ElbowroomError):
    """A training step could not be recorded.

    Attributes:
        ours: whether elbowroom failed, and not the script.
    """

    def __init__(self, message: str, *, ours: bool = False) -> None:
        super().__init__(message)
        self.ours = ours


class TimeOver(ElbowroomError):
    """A search had no answer yet when its time was over."""


class RecomputeFailed(ElbowroomError, RuntimeError):
    """A storage that was dropped in forward could not be rebuilt in backward."""


class DeviceLost(ElbowroomError, RuntimeError):
    """The device of a run does not answer any more, and will not in this process; the cause is torch's own error."""


class UsageError(ElbowroomError, ValueError):
    """An argument is not allowed."""


class TierError(ElbowroomError, RuntimeError):
    """A tier could not do what the runtime needs of it.

    Attributes:
        tier: its name, "host" or "disk".
    """

    def __init__(self, message: str, *, tier: str) -> None:
        super().__init__(message)
        self.tier = tier


class TierFull(TierError):
    """A tier has no room for the bytes that must leave the device."""


class TierFailed(TierError):
    """A read or write of a tier failed or came up short."""


AnyError = typing.TypeVar("AnyError", bound=ElbowroomError)


def again(error: AnyError) -> AnyError:
    """Return the error as a new object, without the frames that the first one came through.

    Frames that hold an error in a variable make a cycle with it. Raised in a training, it would keep the caller's model
    and optimizer alive until the garbage collector runs.
    """
    return _with_attributes(type(error), error.args, vars(error))


def _with_attributes(kind: type[AnyError], args: tuple[Any, ...], attributes: dict[str, Any]) -> AnyError:
    made = kind.__new__(kind, *args)
    vars(made).update(attributes)
    return made
