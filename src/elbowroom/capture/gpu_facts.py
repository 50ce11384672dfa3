"""GPU facts: the figures of a GPU that the virtual device's rules read.

Two GPUs with the same facts run the same kernels with the same scratch memory. So one capture serves both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from elbowroom.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a rule can read of a GPU; a rule that needs more adds a field here.

    Attributes:
        compute_capability: major * 10 + minor.
        multiprocessors: number of streaming multiprocessors.
    """

    compute_capability: int = 90
    multiprocessors: int = 132

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """Return the facts of a machine; unknown ones are those of an H100."""
        return cls(
            compute_capability=machine.compute_capability or cls().compute_capability,
            multiprocessors=machine.multiprocessors or cls().multiprocessors,
        )
