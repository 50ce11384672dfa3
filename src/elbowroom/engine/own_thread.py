"""The thread that a run began in: other threads may train too, and nothing of theirs belongs to the run."""

from __future__ import annotations

import threading
from typing import final

from elbowroom.torch_compat.core import in_backward


@final
class OwnThread:
    """The thread that makes this."""

    def __init__(self) -> None:
        self._number = threading.get_ident()

    @property
    def left(self) -> bool:
        """Whether another thread runs this. Those of autograd count as this one: they run its backward on a GPU."""
        return threading.get_ident() != self._number and not in_backward()
