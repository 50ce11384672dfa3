"""Order: what a child process runs, and the names of the phases that it reports to its parent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

TIMEOUT_S = 900
WRITING = "writing the trace"
COMPILING = "asking the compiler what it would save"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOrder:
    """Order for a child.

    Attributes:
        script: path of the script.
        module: its dotted name if it is run as by `python -m`, else "".
        arguments: its words.
        steps: optimizer steps to record.
        constants: numbers that replace module-level ones.
        timeout_s: the time limit, for messages.
        min_size_bytes: as for the virtual device.
        network: whether it may use the network.
        compiled: whether to report what torch.compile saves for backward.
        job: rank, ranks and ranks of a computer of the process of a job that it is; empty if it is not said.
        kept: whether the trace is kept for the next capture, so that the child says which files the script read.
        mail: folder in which ranks of the job send each other what has to be known; "" if there are none.
        companion: whether it runs only for what it sends to the rank that is captured.
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
    job: Sequence[int] = ()
    kept: bool = False
    mail: str = ""
    companion: bool = False

    @property
    def label(self) -> str:
        """Name of the script in messages."""
        return f"-m {self.module}" if self.module else self.script

    def argument(self) -> str:
        """Write it as a word of a command line."""
        return json.dumps(asdict(self))
