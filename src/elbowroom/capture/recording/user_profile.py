"""The profile that a training makes of itself with torch's profiler, of which only one can run in a process.

Note: [Put aside]
A recording needs the profiler. A profile of the user's keeps it for its first steps, so that a short one is whole. If
it still runs then, it is put aside while a step is recorded, and goes on with the next call of an outermost module. Its
tables (`key_averages`, `events`) have all that it has seen; a trace that it exports has what came after.
Nothing is put aside where an op is running: what is open then is written, at its end, into memory of the old session.
"""

from __future__ import annotations

import weakref
from typing import Any, final

from elbowroom.torch_compat.profiler import go_on, prepare_again, profiler_running, put_aside, user_profile

WHOLE_STEPS = 3
"""So many steps of a profile are never missing in it."""


@final
class UserProfile:
    """Makes way for recordings.

    Attributes:
        makes_way: whether the profile that runs can be put aside once it has seen its first steps.
    """

    def __init__(self) -> None:
        self._session: tuple[weakref.ref[Any], int] | None = None
        self._steps = 0
        self._aside: Any = None
        self.makes_way = False

    def make_way(self, *, between_ops: bool) -> bool:
        """Whether the profiler is free for the step that begins; asked once for each that is to be recorded.

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
        """No step is recorded: a profile that is aside goes on."""
        found, self._aside = self._aside, None
        if found is not None:
            go_on(found)

    def _found(self) -> Any:
        """The profile that runs; counts the steps it has been asked for in this session of it."""
        found = self._session[0]() if self._session is not None else None
        if found is None or self._session != (weakref.ref(found), found.profiling_start_time_ns):
            found, self._steps = user_profile(), 0
            self._session = None if found is None else (weakref.ref(found), found.profiling_start_time_ns)
        self._steps += 1
        return found
