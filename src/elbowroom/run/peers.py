"""Peers: the other ranks of a job. If one cannot go on, all raise the same error, which names it.

Note: [Other ranks]
Ranks agree through the store of the default process group, never by a collective: a rank that fails takes part in none.
A rank that is about to raise an error of this package writes it to the store first. The others look where a step
begins, and after they have planned. A rank that is inside a collective by then leaves it as the connection of the one
that failed closes. Its own error is then replaced by the one in the store.

What this does not cover:
- NCCL notices no closed connection. Such a rank waits until its launcher ends it (torchrun does so within seconds), or
  until the group's timeout.
- A rank that fails, and stays: the others wait in their collective as long as it lives, and no longer than the timeout.
- Rank 0 holds the store if no launcher does. If it fails, the others may see the closed connection alone.
- Errors before the group is there, and a process that is killed: nobody tells of them.
- The ranks open their rooms in the same order. An error in the second room of one is that of the others' second room.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from elbowroom import errors
from elbowroom.errors import ElbowroomError
from elbowroom.notices import LOGGER
from elbowroom.torch_compat.process_groups import Meeting, default_meeting

LOOK_S = 0.5
"""Least time between two looks. A look takes a tenth of a millisecond on one computer."""

_rooms = itertools.count()


@final
class Peers:
    """The other ranks, for one room. Without a process group, or alone in it, it does nothing."""

    def __init__(self) -> None:
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun may keep the store between them
        self._key = f"elbowroom/start{restarts}/room{next(_rooms)}/failed"
        self._meeting: Meeting | None = None
        self._next_look_s = 0.0
        self._over = False

    def look(self) -> None:
        """Raise the error of a rank that has failed, if there is one. Mostly this takes less than a microsecond."""
        if self._over or time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + LOOK_S
        found = self._found()
        if found is not None:
            raise found

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Context that tells the other ranks of an error before it goes on."""
        try:
            yield
        except ElbowroomError as error:
            self.tell(error)
            raise

    def tell(self, error: ElbowroomError) -> None:
        """Tell the other ranks of an error that ends this one, and name this rank in its message."""
        meeting = self._met()
        if self._over or meeting is None:
            return
        self._over = True
        error.args = (f"rank {meeting.rank} of {meeting.ranks}: {error}", *error.args[1:])
        said = {"kind": type(error).__name__, "message": str(error), "attributes": vars(error)}
        try:
            meeting.store.compare_set(self._key, "", json.dumps(said))
        except Exception as problem:  # noqa: BLE001 - whatever a store raises: this rank ends with its own error
            LOGGER.info("elbowroom: the other ranks do not hear of an error: %s", problem)

    def instead_of(self, error: BaseException | None) -> ElbowroomError | None:
        """Return the error of another rank that explains this one, such as that of a closed connection; None if none.

        The other ranks hear of an error of this package instead.
        """
        if isinstance(error, ElbowroomError):
            self.tell(error)
        elif isinstance(error, RuntimeError) and not self._over:
            return self._found()
        return None

    def close(self) -> None:
        """Tell and hear nothing more: the training is over."""
        self._over, self._meeting = True, None

    def _met(self) -> Meeting | None:
        """Return the store, if there are other ranks."""
        if self._meeting is None:
            self._meeting = default_meeting()
        return self._meeting if self._meeting is not None and self._meeting.ranks > 1 else None

    def _found(self) -> ElbowroomError | None:
        """Return the error of the rank that failed first; None if none has."""
        meeting = self._met()
        if meeting is None:
            return None
        try:
            said = meeting.store.get(self._key) if meeting.store.check([self._key]) else None
        except Exception as problem:  # noqa: BLE001 - the store is gone, and with it the rank that held it
            LOGGER.info("elbowroom: the other ranks cannot be asked: %s", problem)
            self._over = True
            return None
        if said is None:
            return None
        self._over = True
        return _error_of(json.loads(said))


def _error_of(said: dict[str, Any]) -> ElbowroomError:
    """Return an error as another rank has raised it."""
    kind: type[ElbowroomError] = getattr(errors, said["kind"], ElbowroomError)
    made = kind.__new__(kind, said["message"])
    made.__dict__.update(said["attributes"])
    return made
