"""Job rank: one process of a job of many, by the numbers and the environment variables that torchrun gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from elbowroom.errors import UsageError

MOST_ON_A_NODE = 8
"""GPUs of a computer if nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRank:
    """One process of a job, with a GPU of its own.

    Attributes:
        rank: its number in the job, from 0.
        ranks: processes of the job.
        local_ranks: processes on each of its computers.
    """

    rank: int = 0
    ranks: int = 1
    local_ranks: int = 1

    @classmethod
    def of(cls, rank: int, ranks: int, local_ranks: int | None = None) -> Self:
        """Make it of what a user gave.

        Args:
            rank: its number.
            ranks: processes of the job.
            local_ranks: processes on each computer; None for all of up to 8, else 8.

        Raises:
            UsageError: there is no such process.
        """
        if type(ranks) is not int or ranks < 1:
            raise UsageError(f"ranks: given {ranks!r}; allowed is a whole number from 1; name the size of the job")
        local = min(ranks, MOST_ON_A_NODE) if local_ranks is None else local_ranks
        if type(local) is not int or local < 1 or ranks % local:
            raise UsageError(
                f"local: given {local!r} of {ranks} ranks; allowed is a divisor of {ranks}, as each computer has as "
                f"many; name the GPUs of one computer, such as {_nearest_divisor(ranks, local)}"
            )
        if type(rank) is not int or not 0 <= rank < ranks:
            raise UsageError(
                f"rank: given {rank!r} of {ranks} ranks; allowed are 0 to {ranks - 1}; name one of them, or last"
            )
        return cls(rank=rank, ranks=ranks, local_ranks=local)

    @property
    def local_rank(self) -> int:
        """Its number on its computer, which is that of its GPU."""
        return self.rank % self.local_ranks

    def environment(self) -> dict[str, str]:
        """Return the variables that torchrun sets for it."""
        node, nodes = self.rank // self.local_ranks, self.ranks // self.local_ranks
        numbers = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "GROUP_RANK": node,
            "ROLE_RANK": self.rank,
            "WORLD_SIZE": self.ranks,
            "LOCAL_WORLD_SIZE": self.local_ranks,
            "GROUP_WORLD_SIZE": nodes,
            "ROLE_WORLD_SIZE": self.ranks,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
        }
        words = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "ROLE_NAME": "default"}
        return {name: str(value) for name, value in numbers.items()} | words | {"TORCHELASTIC_RUN_ID": "none"}


class OwnGpu:
    """The GPU of this process.

    Attributes:
        index: its number, which is set before elbowroom.capture.virtual is imported and stays.
    """

    index = 0


def _nearest_divisor(ranks: int, wanted: object) -> int:
    near = wanted if isinstance(wanted, int) and wanted > 0 else MOST_ON_A_NODE
    divisors = (each for each in range(1, min(ranks, 4096) + 1) if not ranks % each)
    return min(divisors, key=lambda each: (abs(each - near), -each))
