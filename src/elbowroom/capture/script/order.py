"""What a child process shall run, and the names of the phases that it tells its parent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

TIMEOUT_S = 900
WRITING = "writing the trace"
COMPILING = "asking the compiler what it would save"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOrder:
    """What a child shall run.

    Attributes:
        script: its path.
        module: its dotted name where it is run as `python -m` does, "" otherwise.
        arguments: its words.
        steps: optimizer steps to record.
        constants: numbers that replace module-level ones.
        timeout_s: the time limit, for messages.
        min_size_bytes: as for the virtual device.
        network: whether it may use the network.
        compiled: whether to tell what torch.compile saves for backward.
    """

    script: str
    arguments: tuple[str, ...]
    steps: int
    constants: Mapping[str, int | float]
    timeout_s: float = TIMEOUT_S
    module: str = ""
    min_size_bytes: int | None = None
    network: bool = False
    compiled: bool = False

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"-m {self.module}" if self.module else self.script

    def argument(self) -> str:
        """As a word of a command line."""
        return json.dumps(asdict(self))
