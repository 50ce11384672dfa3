"""Ending: the last thing that a process does is to become another program, if one was asked for."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from typing import final


@final
class Ending:
    """What a process becomes as it ends: after the handlers that the script registers, as it is registered first."""

    def __init__(self) -> None:
        self._command: Sequence[str] = ()
        self._process = os.getpid()
        atexit.register(self._become)

    def become(self, command: Sequence[str]) -> None:
        """Run a command in the place of this process as that ends: all its memory is free then."""
        self._command = command

    def _become(self) -> None:
        if self._command and os.getpid() == self._process:
            sys.stdout.flush()
            sys.stderr.flush()
            os.execv(self._command[0], [*self._command])
