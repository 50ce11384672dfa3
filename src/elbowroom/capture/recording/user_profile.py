"""User profile: the profile that a training makes of itself with torch's profiler; only one can run in a process.

Note: [Put aside]
A recording needs the profiler. A profile of the user's keeps it for its first steps, so that a short profile is
complete. If it still runs after that, it is put aside while a step is recorded. It goes on with the next call of an
outermost module. Its tables (`key_averages`, `events`) have all that it has seen; a trace that it exports has only what
came after. A profile is not put aside while an op runs: an open op writes, at its end, into memory of the old session.
"""

from __future__ import annotations

import weakref
from typing import Any, final

from elbowroom.torch_compat.profiler import go_on, prepare_again, profiler_running, put_aside, user_profile

WHOLE_STEPS = 3
"""Number of first steps that a profile always has."""


@final
class UserProfile:
    """The user's profile, which makes way for recordings.

    Attributes:
        makes_way: whether the profile that runs can be put aside once it has seen its first steps.
    """

    def __init__(self) -> None:
        self._session: tuple[weakref.ref[Any], int] | None = None
        self._steps = 0
        self._aside: Any = None
        self.makes_way = False

    def make_way(self, *, between_ops: bool) -> bool:
        """Return whether the profiler is free for the step that begins; called once for each step to record.

        Args:
            between_ops: whether no op is running.
        """
        if not profiler_running():
            prepare_again()
            return True
        found = self._found()
        self.makes_way = found is not None
        if found is None or not between_ops or self._steps <= WHOLE_STEPS:
            return False
        put_aside(found)
        self._aside = found
        return True

    def go_on(self) -> None:
        """Resume a profile that was put aside, as no step is recorded."""
        found, self._aside = self._aside, None
        if found is not None:
            go_on(found)

    def _found(self) -> Any:
        """Return the running profile; count the steps for which it was wanted in this session."""
        found = self._session[0]() if self._session is not None else None
        if found is None or self._session != (weakref.ref(found), found.profiling_start_time_ns):
            found, self._steps = user_profile(), 0
            self._session = None if found is None else (weakref.ref(found), found.profiling_start_time_ns)
        self._steps += 1
        return found
